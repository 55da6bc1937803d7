//! Whole tables of adapters: an embedding or an output projection in place of the base model's.
//!
//! Rows of an adapter with such a table are computed with it alone, by the kernels that compute the base
//! model's, so that their bits do not depend on the other rows.

use std::path::PathBuf;

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use burn::tensor::{DType, Int, Tensor};
use hearth_forward::WholeTable;
use hearth_shaders::{AdapterGroup, AdapterIndex, BlockFormat, BlockMatrix, Kernels, Summation};

use super::blocks::{Blocks, Quantized};
use super::load::ServedAs;
use super::primitive::{indices, tensor};
use super::table::Table;
use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::weights::{Bytes, Format, StoredTensor, Weights};

/// The name of a table in [`Weights`] that have nothing else.
const NAME: &str = "table";

/// The tables of one matrix in the slots that have room for them.
pub(super) struct OwnTables<B: Backend> {
    slots: Vec<OwnTable<B>>,
    shape: [usize; 2],
    served: ServedAs,
}

struct OwnTable<B: Backend> {
    /// `None` if its numbers could not be copied.
    table: Option<Table<B>>,
    /// True if the adapter in the slot has this table.
    is_set: bool,
}

/// How the tables of adapters are kept: as matrices of the base model that are not quantized.
fn plain(served: ServedAs) -> ServedAs {
    ServedAs {
        blocks: Blocks {
            quantized: Quantized::None,
            ..served.blocks
        },
        ..served
    }
}

/// Bytes of one table on the device.
pub(super) fn table_bytes<B: Kernels>(config: &ModelConfig, served: ServedAs) -> u64 {
    let (rows, columns) = (config.vocab_size, config.hidden_size);
    bytes_of_rows::<B>(served, rows, columns)
}

fn bytes_of_rows<B: Kernels>(served: ServedAs, rows: usize, columns: usize) -> u64 {
    let bytes = match served.blocks.bf16 {
        true => B::packed_bytes(BlockFormat::Bf16, rows, columns),
        false => rows * columns * served.matrix.size(),
    };
    bytes as u64
}

impl<B: Kernels> OwnTables<B> {
    /// Takes the memory of `slots` tables. They are zeros, which are in use until an adapter comes, so
    /// that the kernels run when the model is warmed up.
    pub fn new(config: &ModelConfig, slots: usize, served: ServedAs, device: &B::Device) -> Self {
        let served = plain(served);
        let shape = [config.vocab_size, config.hidden_size];
        let slot = |_| OwnTable {
            table: Some(zeros::<B>(shape, served, device)),
            is_set: true,
        };
        Self {
            slots: (0..slots).map(slot).collect(),
            shape,
            served,
        }
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Puts `table` into `slot`, or says that the adapter there has none.
    ///
    /// # Errors
    /// The slot has no room for a table, or the table has another shape. Then there is none.
    pub fn load(
        &mut self,
        slot: usize,
        table: Option<&WholeTable>,
        device: &B::Device,
    ) -> Result<(), String> {
        let (shape, served) = (self.shape, self.served);
        let Some(own) = self.slots.get_mut(slot) else {
            return match table {
                None => Ok(()),
                Some(_) => Err(format!(
                    "a whole table in adapter slot {}, which has no room for one",
                    slot + 1
                )),
            };
        };
        own.is_set = false;
        let Some(table) = table else {
            return Ok(());
        };
        let dtype = Dtype::from(table.numbers);
        let [rows, columns] = shape;
        if table.bytes.len() != rows * columns * dtype.size() {
            return Err(format!("a whole table of another shape than {shape:?}"));
        }
        // Its memory is free for the table that takes its place.
        own.table = None;
        let stored = StoredTensor {
            file: 0,
            format: Format::Float(dtype),
            shape: shape.to_vec(),
            bytes: 0..table.bytes.len(),
            heads: None,
        };
        let file = (
            PathBuf::from("the adapter"),
            Bytes::Read(table.bytes.clone()),
        );
        let weights = Weights::from_files(vec![file], vec![(NAME.to_owned(), stored)]);
        let loaded = served.table::<B>(&weights, NAME, shape, device);
        own.table = Some(loaded.map_err(|error| error.to_string())?);
        own.is_set = true;
        Ok(())
    }

    /// The slot has no table any more.
    pub fn forget(&mut self, slot: usize) {
        if let Some(own) = self.slots.get_mut(slot) {
            own.is_set = false;
        }
    }

    /// The rows `ids` of the table of each row's adapter; of `base` where an adapter has none.
    pub fn embed(
        &self,
        index: &AdapterIndex<B>,
        ids: IntTensor<B>,
        base: &Table<B>,
    ) -> Tensor<B, 2> {
        let rows = Tensor::<B, 1, Int>::from_primitive(ids.clone()).dims()[0];
        let of_base = || base.embed(ids.clone());
        // A table has every token, so that what it gives for rows of others is simply not taken.
        let of_group = |table: &Table<B>, _: &AdapterGroup| table.embed(ids.clone());
        self.by_adapter(index, rows, of_base, of_group)
    }

    /// `x` times the transpose of the table of each row's adapter; of `base` where an adapter has none.
    pub fn project(
        &self,
        index: &AdapterIndex<B>,
        x: Tensor<B, 2>,
        base: &Table<B>,
        summation: Summation,
    ) -> Tensor<B, 2> {
        let [rows, _] = x.dims();
        let of_base = || base.project(x.clone(), summation);
        let of_group = |table: &Table<B>, group: &AdapterGroup| {
            if group.rows.len() == rows {
                return table.project(x.clone(), summation);
            }
            // The product is by far more than the copies around it.
            let device = x.device();
            let rows_of_group = indices(&group.rows, &device);
            let own = table.project(x.clone().select(0, rows_of_group), summation);
            let mut places = vec![0; rows];
            for (place, row) in (0..).zip(&group.rows) {
                places[*row as usize] = place;
            }
            own.select(0, indices(&places, &device))
        };
        self.by_adapter(index, rows, of_base, of_group)
    }

    /// A matrix whose rows are those of `of_group` for rows of adapters with tables, and those of `of_base`
    /// for all others.
    fn by_adapter(
        &self,
        index: &AdapterIndex<B>,
        rows: usize,
        of_base: impl FnOnce() -> Tensor<B, 2>,
        of_group: impl Fn(&Table<B>, &AdapterGroup) -> Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let table = |group: &AdapterGroup| {
            let own = self.slots.get(group.slot).filter(|own| own.is_set)?;
            own.table.as_ref()
        };
        let groups = index.groups.iter();
        let own: Vec<_> = groups
            .filter_map(|group| Some((table(group)?, group)))
            .collect();
        let owned: usize = own.iter().map(|(_, group)| group.rows.len()).sum();
        let mut all = (owned < rows).then(of_base);
        for (table, group) in own {
            let rows_of_group = of_group(table, group);
            all = Some(match all {
                // No row is the base model's, so that the others are overwritten.
                None => rows_of_group,
                Some(all) => {
                    let [rows, columns] = all.dims();
                    let slots = Tensor::<B, 1, Int>::from_primitive(index.slots.clone());
                    let here = slots.equal_elem(group.slot as i32);
                    let here = here.reshape([rows, 1]).expand([rows, columns]);
                    all.mask_where(here, rows_of_group)
                }
            });
        }
        all.expect("a batch has rows")
    }
}

fn zeros<B: Kernels>(shape: [usize; 2], served: ServedAs, device: &B::Device) -> Table<B> {
    let [rows, columns] = shape;
    let bytes = |rows| bytes_of_rows::<B>(served, rows, columns);
    let rows_of_a_part = served.rows_of_a_part(rows, bytes);
    let part = |from: usize| {
        let rows = rows_of_a_part.min(rows - from);
        Param::from_tensor(match served.blocks.bf16 {
            true => {
                let matrix = BlockMatrix::zeros(&[(BlockFormat::Bf16, rows)], columns);
                tensor(B::packed(matrix, DType::from(served.vector), device))
            }
            false => {
                let options = (device, DType::from(served.matrix));
                // In one dimension, because CubeCL would pad the rows on CUDA.
                Tensor::<B, 1>::zeros([rows * columns], options).reshape([rows, columns])
            }
        })
    };
    let parts = (0..rows).step_by(rows_of_a_part).map(part);
    Table::of(parts.collect(), rows_of_a_part)
}
