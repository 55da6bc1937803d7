//! The handlers of the routes.
//!
//! - `pass`: requests that workers answer.
//! - `status`: health, readiness, what the router is.
//! - `fleet`: questions to all workers.
//! - `workers`: the list of workers, and changes to it.
//! - `scrape`: the router's metrics.

pub mod fleet;
pub mod pass;
pub mod scrape;
pub mod status;
pub mod workers;
