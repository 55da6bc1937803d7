//! Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) as the host holds them.

use std::fmt;
use std::sync::Arc;

/// A matrix of the model that an adapter may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdaptedMatrix {
    /// Token embedding, `[vocab, hidden]`.
    Embedding,
    /// The output projection, `[vocab, hidden]`, which may be tied to the embedding.
    LmHead,
    Layer(u32, LayerMatrix),
}

/// A matrix of a layer that an adapter may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerMatrix {
    Query,
    Key,
    Value,
    /// The output projection of attention.
    Output,
    Gate,
    Up,
    Down,
}

/// The change of one matrix `W`: `x W^T`, with the base model's bias if there is one, becomes
/// `(x W^T) * scale + (x A^T) B + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    pub matrix: AdaptedMatrix,
    pub rank: usize,
    /// `[rank, in]`. For the embedding `[vocab, rank]`: the rows of single tokens.
    pub a: Vec<f32>,
    /// `[rank, out]`, multiplied by the adapter's scale.
    pub b: Vec<f32>,
    /// `[out]`, multiplied by the adapter's scale; empty for none.
    pub bias: Vec<f32>,
    /// `[out]`; empty for 1.
    pub scale: Vec<f32>,
}

/// The type of the numbers of a [`WholeTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableNumbers {
    F32,
    F16,
    Bf16,
}

/// A whole embedding or output projection, `[vocab, hidden]`, in place of the base model's. Changes of
/// the same matrix are added to it.
#[derive(Clone, PartialEq)]
pub struct WholeTable {
    /// [`AdaptedMatrix::Embedding`] or [`AdaptedMatrix::LmHead`].
    pub matrix: AdaptedMatrix,
    pub numbers: TableNumbers,
    /// Row-major and little-endian. Shared, because these are gigabytes.
    pub bytes: Arc<Vec<u8>>,
}

/// An adapter, ready to be copied to the device.
#[derive(Clone, Default, PartialEq)]
pub struct Adapter {
    /// A digest of everything that changes a result: `changes` with the scale in them, and `tables`. Two
    /// adapters with the same digest are the same function, so that they may share keys and values.
    pub digest: String,
    /// At most one for each matrix, in the order of [`AdaptedMatrix`].
    pub changes: Vec<LowRank>,
    /// At most one for each of the two matrices, in the order of [`AdaptedMatrix`].
    pub tables: Vec<WholeTable>,
}

impl Adapter {
    /// The largest rank of all changes.
    pub fn rank(&self) -> usize {
        let ranks = self.changes.iter().map(|change| change.rank);
        ranks.max().unwrap_or(0)
    }

    /// True if the adapter needs a slot with room for whole tables.
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Bytes of the whole tables in the host's memory.
    pub fn table_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.bytes.len()).sum()
    }
}

impl fmt::Debug for Adapter {
    /// Without the numbers, which are millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("digest", &self.digest)
            .field("rank", &self.rank())
            .field("changes", &self.changes.len())
            .field("tables", &self.tables.len())
            .finish()
    }
}
