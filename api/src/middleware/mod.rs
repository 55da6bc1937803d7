//! The steps that every request passes before its handler; [`server`](crate::server) has their
//! order.

pub mod abandoned;
pub mod auth;
pub mod cors;
pub mod hosts;
pub mod observe;
pub mod refusals;
pub mod request_id;
