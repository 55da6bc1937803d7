//! One decoder-only transformer for all families, driven by the config.
//!
//! The parameters live in [`Transformer`], a Burn module. Two forward passes read them: `dense`
//! is plain Burn, differentiable, for training and as the reference; `paged` serves requests over
//! the KV pool with the kernels of `hearth_shaders`.
//!
//! Matrices keep Hugging Face's layout, `[out, in]`. The query, key and value projections are one
//! matrix, and so are gate and up: the speed of a decode step is limited by the number of launches
//! and by the bytes that are read, and three small multiplications would only add launches.

mod adapters;
mod blocks;
mod dense;
mod experts;
mod export;
mod load;
mod own_tables;
mod paged;
mod parameters;
mod primitive;
mod table;

pub(crate) use adapters::matrix_shape;
pub use adapters::{AdapterStacks, adapter_bytes, own_table_bytes};
pub use blocks::{Blocks, Quantized};
pub use export::ExportedTensor;
pub use load::ServedAs;
pub use paged::{DeviceBatch, DeviceOutput, PagedContext};
pub use parameters::{DenseMlp, Layer, LayerMlp, Transformer};
pub(crate) use primitive::{indices, primitive};
pub use table::Table;
