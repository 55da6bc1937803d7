//! Which cooperative matrices a device uses for tiles of attention, and how a tile is divided.

use std::fmt;

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use cubecl::client::ComputeClient;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind, StorageType};

use crate::{HeadLayout, TILE_ROWS};

/// The most shared memory of a cube, in bytes. Every CUDA device has it, and with it several cubes
/// fit a multiprocessor.
const MOST_SHARED_BYTES: usize = 48 << 10;
/// Padding after each row in shared memory, in elements. Rows then begin in different banks, and
/// the stride is a multiple of 16 bytes, as cooperative matrices require.
pub const PADDING: usize = 8;
/// As [`PADDING`], for rows of scores (f32).
pub const SCORE_PADDING: usize = 4;
/// Units that share a row of scores.
pub const PARTS: usize = 2;

/// How attention computes chunks of many tokens: in tiles of rows, one tile of keys and values
/// after another, with cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionTiles {
    /// The size of a cooperative matrix multiplication on this device: `[m, k]` by `[k, n]`.
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Strips of `m` rows in a cube; each is computed by one subgroup.
    pub strips: usize,
    /// Positions whose keys and values are in shared memory at once.
    pub positions: usize,
    /// Positions of those that are scored at once.
    pub scored: usize,
    /// Units of the largest subgroup. On a device whose subgroups are smaller at run time, a cube
    /// has more subgroups than strips, and the rest stay idle.
    pub subgroup: usize,
    /// True if a barrier of one subgroup is enough between the steps, instead of one of the cube.
    pub subgroup_barrier: bool,
    /// Elements that are loaded at once.
    pub vector: usize,
}

/// The properties of a device on which tiles depend.
#[derive(Debug, Clone, Copy)]
struct Limits {
    shared_bytes: usize,
    units: usize,
    subgroup: usize,
    vector: usize,
    subgroup_barrier: bool,
}

impl AttentionTiles {
    /// The tiles for `layout` on a device; `None` where no cooperative matrices fit.
    pub(crate) fn of<R: CubeRuntime>(
        client: &ComputeClient<R>,
        layout: HeadLayout,
        dtype: DType,
    ) -> Option<Self> {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let limits = Limits {
            shared_bytes: hardware.max_shared_memory_size,
            units: hardware.max_units_per_cube as usize,
            subgroup: hardware.plane_size_max as usize,
            vector: hardware.max_vector_size,
            // In SPIR-V, CubeCL's subgroup barrier does not order memory accesses.
            subgroup_barrier: R::name(client) == "cuda",
        };
        let matrices = properties.features.matmul.cmma.iter();
        Self::choose(matrices, limits, layout, dtype)
    }

    fn choose<'a>(
        matrices: impl Iterator<Item = &'a MmaConfig>,
        limits: Limits,
        layout: HeadLayout,
        dtype: DType,
    ) -> Option<Self> {
        let factor = StorageType::Scalar(ElemType::Float(match dtype {
            DType::F16 => FloatKind::F16,
            DType::BF16 => FloatKind::BF16,
            _ => return None,
        }));
        let sum = StorageType::Scalar(ElemType::Float(FloatKind::F32));
        let vector = limits.vector.min(8);
        let size = |matrix: &MmaConfig| [matrix.m, matrix.n, matrix.k].map(|size| size as usize);
        let mut fitting: Vec<[usize; 3]> = matrices
            .filter(|matrix| (matrix.a_type, matrix.b_type) == (factor, factor))
            .filter(|matrix| matrix.cd_type == sum)
            .map(size)
            .filter(|[m, n, k]| {
                TILE_ROWS.is_multiple_of(*m)
                    && [n, k].iter().all(|size| {
                        layout.head_dim.is_multiple_of(**size) && size.is_multiple_of(vector)
                    })
            })
            .collect();
        // Prefer the largest product, and of those the one whose factors are the most square.
        fitting.sort_by_key(|[m, n, k]| (m * n * k, std::cmp::Reverse(m.abs_diff(*n))));
        let [m, n, k] = fitting.pop()?;
        let most = TILE_ROWS / m;
        let strips = std::iter::successors(Some(most), |strips| Some(strips / 2));
        let strips = strips.take_while(|strips| *strips > 0);
        // Prefer more rows, because keys and values are then read less often.
        let sizes = [(64, 32), (32, 32), (32, 16), (16, 16)];
        strips
            .flat_map(|strips| sizes.map(|(positions, scored)| (strips, positions, scored)))
            .map(|(strips, positions, scored)| Self {
                m,
                n,
                k,
                strips,
                positions,
                scored,
                subgroup: limits.subgroup,
                subgroup_barrier: limits.subgroup_barrier,
                vector,
            })
            .find(|tiles| tiles.fits(limits, layout.head_dim))
    }

    fn fits(&self, limits: Limits, head_dim: usize) -> bool {
        let shared = limits.shared_bytes.min(MOST_SHARED_BYTES);
        self.scored.is_multiple_of(self.n)
            && self.scored.is_multiple_of(self.k)
            && self.threads() <= limits.units
            && self.shared_bytes(head_dim) <= shared
    }

    /// Rows of a cube.
    pub fn rows(&self) -> usize {
        self.strips * self.m
    }

    /// Cubes that share a tile.
    pub fn cubes(&self) -> usize {
        TILE_ROWS / self.rows()
    }

    /// Units of a cube.
    pub fn threads(&self) -> usize {
        self.strips * self.subgroup
    }

    /// Shared memory of a cube, in bytes: queries, keys and values; scores and weights; the state
    /// of the rows; slots.
    fn shared_bytes(&self, head_dim: usize) -> usize {
        let (half, single) = (2, 4);
        let rows = self.rows();
        half * (rows + 2 * self.positions) * (head_dim + PADDING)
            + single * rows * (self.scored + SCORE_PADDING)
            + half * rows * (self.scored + PADDING)
            + single * rows * (3 * PARTS + 2)
            + single * (self.positions + self.strips)
    }
}

impl fmt::Display for AttentionTiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            m, n, k, positions, ..
        } = self;
        let rows = self.rows();
        write!(
            f,
            "cooperative matrices of {m} x {n} x {k}, {rows} rows by {positions} positions"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: Limits = Limits {
        shared_bytes: 227 << 10,
        units: 1024,
        subgroup: 32,
        vector: 16,
        subgroup_barrier: true,
    };
    const SMALL: Limits = Limits {
        shared_bytes: 32 << 10,
        units: 1024,
        subgroup: 8,
        vector: 4,
        subgroup_barrier: false,
    };

    fn matrix(kind: FloatKind, sums: FloatKind, [m, n, k]: [u32; 3]) -> MmaConfig {
        let float = |kind| StorageType::Scalar(ElemType::Float(kind));
        MmaConfig {
            a_type: float(kind),
            b_type: float(kind),
            cd_type: float(sums),
            m,
            n,
            k,
        }
    }

    fn chosen(
        matrices: &[MmaConfig],
        limits: Limits,
        head_dim: usize,
        dtype: DType,
    ) -> Option<AttentionTiles> {
        let layout = HeadLayout {
            heads: 32,
            kv_heads: 8,
            head_dim,
        };
        AttentionTiles::choose(matrices.iter(), limits, layout, dtype)
    }

    #[test]
    fn the_squarest_of_the_largest_products_is_taken_and_f32_has_none() {
        let (f16, f32) = (FloatKind::F16, FloatKind::F32);
        let cuda = [[16, 16, 16], [32, 8, 16], [8, 32, 16]].map(|size| matrix(f16, f32, size));
        let tiles = chosen(&cuda, CUDA, 64, DType::F16).unwrap();
        assert_eq!((tiles.m, tiles.n, tiles.k), (16, 16, 16));
        assert_eq!((tiles.rows(), tiles.threads(), tiles.cubes()), (64, 128, 1));
        assert_eq!((tiles.positions, tiles.vector), (64, 8));
        assert_eq!(chosen(&cuda, CUDA, 64, DType::F32), None);
        assert_eq!(chosen(&cuda, CUDA, 64, DType::BF16), None);
        // Sums in f16 would be too imprecise.
        let coarse = [matrix(f16, f16, [16, 16, 16])];
        assert_eq!(chosen(&coarse, CUDA, 64, DType::F16), None);
        assert_eq!(chosen(&[], CUDA, 64, DType::F16), None);
    }

    #[test]
    fn heads_that_no_matrix_divides_have_no_tiles() {
        let bf16 = [matrix(FloatKind::BF16, FloatKind::F32, [16, 16, 16])];
        for (head_dim, has) in [(64, true), (80, true), (40, false), (72, false)] {
            let tiles = chosen(&bf16, CUDA, head_dim, DType::BF16);
            assert_eq!(tiles.is_some(), has, "{head_dim}");
        }
    }

    #[test]
    fn tiles_fit_the_shared_memory_of_the_device() {
        let f16 = [matrix(FloatKind::F16, FloatKind::F32, [16, 16, 16])];
        let of = |limits: Limits, head_dim| {
            let tiles = chosen(&f16, limits, head_dim, DType::F16)?;
            assert!(tiles.shared_bytes(head_dim) <= limits.shared_bytes.min(48 << 10));
            Some((tiles.rows(), tiles.positions, tiles.scored))
        };
        assert_eq!(of(CUDA, 64), Some((64, 64, 32)));
        assert_eq!(of(CUDA, 128), Some((64, 32, 16)));
        assert_eq!(of(CUDA, 256), Some((32, 16, 16)));
        assert_eq!(of(SMALL, 64), Some((64, 32, 16)));
        assert_eq!(of(SMALL, 128), Some((32, 32, 16)));
        assert_eq!(of(SMALL, 1024), None);
        let tight = Limits { units: 32, ..CUDA };
        assert_eq!(of(tight, 64).map(|(rows, ..)| rows), Some(16));
    }
}
