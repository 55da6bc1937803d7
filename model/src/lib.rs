//! Decoder-only transformers on Burn: weights, tokenizer, chat template, KV pool.

pub mod chat_template;
pub mod checkpoint;
pub mod config;
pub mod dtype;
pub mod hub;
pub mod progress;
pub mod tokenizer;
pub mod weights;
