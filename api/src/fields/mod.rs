//! The request fields that several dialects share: their types, their bounds, and their
//! translation to the engine's parameters. No dialect is named here.

pub mod adapters;
pub mod bounds;
pub mod capped;
pub mod disaggregation;
pub mod each;
pub mod messages;
pub mod rid;
pub mod sampling;
pub mod schema;
pub mod speculation;
pub mod structured;
pub mod tools;
pub mod wire;
