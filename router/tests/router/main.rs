//! The router over real HTTP, in front of workers that are played by small servers of this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod captured;
mod control;
mod failures;
mod fake;
mod harness;
mod kv_events;
mod limits;
mod pd;
mod pd_failures;
mod regular;
