//! The contract between the scheduler and the model.
//!
//! The scheduler describes one forward pass as a [`ForwardBatch`]; an [`Executor`] runs the
//! model over it and returns a [`ForwardOutput`]. Where the executor samples on the device,
//! each row to sample from comes with a [`SampleRequest`]. Between two forward passes the
//! scheduler may ask for [`KvCopy`]s between the device and the host's memory, and for
//! [`Adapter`]s in the device's slots, which sequences of a batch name by their slots.
//!
//! ```text
//! engine ──ForwardBatch, SampleRequest──▶ Executor (model) ──▶ kernels (shaders)
//!        ◀─────────ForwardOutput─────────
//! ```
//!
//! **Architecture Invariant.** This crate depends on nothing: no tensors, no requests, no
//! HTTP. The engine, the model, the kernels and the prefix cache all use these types
//! themselves, so that nothing is converted on the way.

mod adapter;
mod batch;
mod error;
mod executor;
mod kv;
mod output;
mod panic;
mod sample;

pub use adapter::{AdaptedMatrix, Adapter, LayerMatrix, LowRank, TableNumbers, WholeTable};
pub use batch::{ForwardBatch, SequenceSpan};
pub use error::ForwardError;
pub use executor::{Executor, ExecutorLimits, WindowLimits};
pub use kv::{CopyDirection, KvCopy};
pub use output::ForwardOutput;
pub use panic::panic_text;
pub use sample::{LogitEdit, SampleParams, SampleRequest, SampleRequests, TokenMask};
