//! The language on a made-up back end: every primitive, batches, graphs, and two property tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod batches;
mod fake;
mod graphs;
mod primitives;
mod random;
mod same_results;
mod speculation;
