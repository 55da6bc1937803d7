//! Decoder-only transformers on Burn: weights, tokenizer, chat template, KV pool.

pub mod chat_template;
pub mod checkpoint;
pub mod config;
mod cpu_threads;
pub mod device;
pub mod doctor;
pub mod dtype;
pub mod gguf;
mod host_pool;
pub mod hub;
mod kv_pool;
mod memory;
pub mod progress;
mod rope;
pub mod runner;
pub mod tokenizer;
pub mod transformer;
pub mod weights;

pub use hearth_shaders::{cpu_times, size_classes};
