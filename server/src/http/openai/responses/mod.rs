//! OpenAI's Responses API: a conversation that the server remembers, so that the next
//! request can go on with it.

mod answer;
pub mod create;
pub(in crate::http) mod request;
pub mod stored;
mod stream;

pub use stored::Responses;
