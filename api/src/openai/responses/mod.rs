//! OpenAI's Responses API: the server stores a conversation, so that the next request can continue
//! it.

mod answer;
pub mod create;
mod input;
mod output;
pub(crate) mod request;
pub mod stored;
mod stream;

pub use stored::Responses;
