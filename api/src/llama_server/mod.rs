//! llama-server's own routes: text completion, and what tools ask for about the model and its slots.

pub mod answer;
pub mod bias;
pub mod completion;
pub mod prompts;
pub mod request;
pub mod status;
