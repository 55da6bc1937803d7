//! Decoder-only transformers on Burn: weights, tokenizer, chat template, KV pool.

pub mod config;
pub mod dtype;
pub mod weights;
