//! Decoder-only transformers on Burn: everything between a checkpoint and its logits.
//!
//! | module | job |
//! |---|---|
//! | [`checkpoint`] | opens a model: a directory, a GGUF file, the Hub or the embedded model |
//! | [`config`] | `config.json`: the description of a decoder |
//! | [`weights`] | tensors by name, from safetensors, GGUF or at random; quantization at load |
//! | [`quantization`] | `quantization_config`: how published files are quantized |
//! | [`gguf`] | GGUF files as the parts of a Hugging Face checkpoint |
//! | [`hub`] | downloads from the Hugging Face Hub |
//! | [`tokenizer`] | text to tokens and back |
//! | [`chat_template`], [`quoting`] | conversations as prompts (Jinja), in which text stays text |
//! | [`lora`] | adapters from PEFT directories and GGUF files |
//! | [`transformer`] | the parameters and the two forward passes: for serving and for training |
//! | `kv_pool`, `host_pool` | keys and values on the device and in the host's memory |
//! | [`device`] | the devices of this machine, the choice among them, and opening one |
//! | `memory` | how many slots fit beside the weights |
//! | `runner` | [`load`], [`estimate`] and the forward passes of a loaded model |
//! | [`certified`] | the families that were compared with a reference |
//! | `decoder`, `report`, `load_options`, `load_error` | the interface of a loaded model |
//! | `startup_check`, `kernel_check` | the proof that a GPU's kernels compute correctly, at every start |
//! | `tuning` | the fastest kernels of a GPU, and the cache of that choice |
//! | [`doctor`] | diagnosis of a device (`hearth doctor`) |
//! | `cpu_threads`, `driver_panic`, [`dtype`], [`progress`], `refused`, `regular_file`, `rope` | helpers |
//!
//! [`load`] returns a [`Decoder`], which is the [`Executor`](hearth_forward::Executor) that the
//! scheduler drives.
//!
//! **Architecture Invariant.** This crate knows tensors and devices; it never sees a request.

pub mod certified;
pub mod chat_template;
pub mod checkpoint;
pub mod config;
mod cpu_threads;
mod decoder;
pub mod device;
pub mod doctor;
mod driver_panic;
pub mod dtype;
pub mod gguf;
mod host_pool;
pub mod hub;
mod kernel_check;
mod kv_pool;
mod kv_rows;
mod load_error;
mod load_options;
pub mod lora;
mod memory;
pub mod progress;
pub mod quantization;
pub mod quoting;
mod refused;
mod regular_file;
mod report;
mod rope;
mod runner;
mod slot_runs;
mod startup_check;
pub mod tokenizer;
pub mod transformer;
mod tuning;
pub mod weights;

pub use decoder::{Decoder, Submission};
pub use hearth_shaders::{cpu_times, size_classes};
pub use load_error::LoadError;
pub use load_options::{AdapterSlots, HeadsDoNotFit, KvDtype, LargestStep, LoadOptions};
pub use memory::{MemoryError, max_model_len};
pub use report::Report;
pub use runner::{Estimate, estimate, load};
