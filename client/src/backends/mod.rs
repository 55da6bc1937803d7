//! Back ends over HTTP.

mod anthropic;
mod chat;
mod chats;
mod completions;
mod server;
mod wire;

pub use anthropic::AnthropicApi;
pub use chat::ChatApi;
pub use completions::CompletionsApi;
pub use server::Server;
