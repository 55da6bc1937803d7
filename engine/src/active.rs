//! A request inside the engine, waiting or running.

mod forced;
mod grammar;
mod outcome;
mod overlap;
mod phase;
mod request;
mod speculation;
mod transfer;

pub(crate) use grammar::NewTokens;
pub(crate) use outcome::Outcome;
pub(crate) use overlap::NextSample;
pub(crate) use request::ActiveRequest;
