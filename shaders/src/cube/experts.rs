//! Mixture of experts on GPUs: one launch chooses the experts of all rows ([`choose`]), one
//! computes the gated halves of their MLPs, and one the second products and their sum ([`mix`]).
//! The choice stays on the device.

mod choose;
mod mix;

pub use choose::choose;
pub use mix::{Stack, mix};
