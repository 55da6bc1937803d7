//! Matrix multiplications of tens of tokens, as in decoding a batch. Like multiplications of a few
//! tokens they are bound by reading `W` once, but they have enough arithmetic to need cooperative
//! matrices.
//!
//! A cube computes a tile of [`WIDTH`] rows of `W` by up to [`MOST_TOKENS`] tokens. Few tokens make
//! few tiles, so the columns are split among as many cubes as keep the device busy (split-K), and a
//! second kernel adds the partial sums. A cube has two buffers in shared memory. While it
//! multiplies one chunk of columns, it loads the next one into registers, so that it waits for
//! memory only at the first chunk.
//!
//! The kernel reads 16 bytes at once, as vectors of eight elements. wgpu's devices have no such
//! vectors, so the kernel does not support them.

mod kernels;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use crate::cube::{dims, empty_like, two_dimensions};
use kernels::{add_parts, split_product};

/// The most tokens of a tile, and its rows of `W`.
const MOST_TOKENS: usize = 64;
const WIDTH: usize = 64;
/// The numbers of tokens that a tile may have. The smallest that fits all tokens is used.
pub const TILE_TOKENS: [usize; 3] = [16, 32, MOST_TOKENS];
/// Columns of `x` and `W` that a buffer holds.
const CHUNK: usize = 64;
/// Elements that are read at once: 16 bytes.
const VECTOR: usize = 8;
/// Padding after each row in shared memory, in elements. Rows then begin in different banks, and
/// the stride of matrices has to be a multiple of this.
const PADDING: usize = 8;
/// Subgroups of a cube.
const PLANES: usize = 4;
/// Cubes per multiprocessor: some compute while others wait for memory.
const CUBES_PER_PROCESSOR: usize = 4;
const MOST_SPLITS: usize = 16;
/// The fewest chunks of a split, because its partial sums have to be written and read again.
const FEWEST_CHUNKS: usize = 4;
/// The number of multiprocessors to assume where the driver does not report it.
const USUAL_PROCESSORS: usize = 32;
const THREADS: usize = 256;

/// The tile of a cube, and the cooperative matrices that it consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The size of a cooperative matrix multiplication on this device: `[m, k]` by `[k, n]`.
    m: usize,
    n: usize,
    k: usize,
    /// Units of a subgroup.
    subgroup: usize,
    tokens: usize,
}

impl Tile {
    /// Number of subgroups along the tokens. The remaining subgroups divide the rows of `W`.
    fn planes_down(self) -> usize {
        if self.tokens < MOST_TOKENS { 1 } else { 2 }
    }

    /// Cooperative matrices of a subgroup along the tokens.
    fn down(self) -> usize {
        self.tokens / self.planes_down() / self.m
    }

    /// Cooperative matrices of a subgroup along the rows of `W`.
    fn across(self) -> usize {
        WIDTH * self.planes_down() / PLANES / self.n
    }

    fn threads(self) -> usize {
        PLANES * self.subgroup
    }

    /// The tile for so many tokens, of the largest cooperative matrices that fit; `None` if none
    /// do.
    fn of<R: CubeRuntime>(client: &ComputeClient<R>, dtype: DType, tokens: usize) -> Option<Self> {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let subgroup = hardware.plane_size_max as usize;
        let factor = StorageType::Scalar(ElemType::Float(match dtype {
            DType::F16 => FloatKind::F16,
            DType::BF16 => FloatKind::BF16,
            _ => return None,
        }));
        let sum = StorageType::Scalar(ElemType::Float(FloatKind::F32));
        if hardware.plane_size_min as usize != subgroup || hardware.max_vector_size < VECTOR {
            return None;
        }
        let tokens = TILE_TOKENS.into_iter().find(|most| tokens <= *most);
        let matrices = properties.features.matmul.cmma.iter();
        matrices
            .filter(|matrix| (matrix.a_type, matrix.b_type) == (factor, factor))
            .filter(|matrix| matrix.cd_type == sum)
            .map(|matrix| Self {
                m: matrix.m as usize,
                n: matrix.n as usize,
                k: matrix.k as usize,
                subgroup,
                tokens: tokens.unwrap_or(MOST_TOKENS),
            })
            .filter(|tile| {
                let halves = tile.tokens / tile.planes_down();
                halves.is_multiple_of(tile.m)
                    && (WIDTH * tile.planes_down() / PLANES).is_multiple_of(tile.n)
                    && CHUNK.is_multiple_of(tile.k)
                    && [tile.n, tile.k].iter().all(|n| n.is_multiple_of(VECTOR))
                    && tile.threads() <= hardware.max_units_per_cube as usize
                    && tile.shared_bytes() <= hardware.max_shared_memory_size
            })
            .max_by_key(|tile| {
                (
                    tile.m * tile.n * tile.k,
                    std::cmp::Reverse(tile.m.abs_diff(tile.n)),
                )
            })
    }

    /// Two buffers each for `x` and `W`, and the sums when they leave the cooperative matrices.
    fn shared_bytes(self) -> usize {
        2 * (self.tokens + WIDTH) * (CHUNK + PADDING) * size_of::<u16>()
            + self.tokens * WIDTH * size_of::<f32>()
    }
}

/// The number of parts to split `chunks` chunks of columns into, for so many `tiles`.
fn splits(tiles: usize, chunks: usize, processors: usize) -> usize {
    let wanted = (processors * CUBES_PER_PROCESSOR).div_ceil(tiles);
    let most = (chunks / FEWEST_CHUNKS).clamp(1, MOST_SPLITS);
    let splits = wanted.clamp(1, most);
    // Rounding must not leave a part without chunks.
    chunks.div_ceil(chunks.div_ceil(splits))
}

/// As [`super::product`]; `None` where the device has no suitable cooperative matrices, or where
/// the columns are not a multiple of [`CHUNK`].
pub fn product<R: CubeRuntime>(x: CubeTensor<R>, weight: CubeTensor<R>) -> Option<CubeTensor<R>> {
    let ([tokens, input], [output, _]) = (dims(&x), dims(&weight));
    let (client, dtype) = (x.client.clone(), x.dtype);
    let tile = Tile::of(&client, dtype, tokens)?;
    if !input.is_multiple_of(CHUNK) {
        return None;
    }
    let (groups, columns) = (tokens.div_ceil(tile.tokens), output.div_ceil(WIDTH));
    let processors = client.properties().hardware.num_streaming_multiprocessors;
    let processors = processors.map_or(USUAL_PROCESSORS, |count| count as usize);
    let chunks = input / CHUNK;
    let splits = splits(groups * columns, chunks, processors);
    let out = empty_like(&x, tokens, output);
    let target = match splits {
        1 => out.clone(),
        _ => empty_device_contiguous_dtype(
            client.clone(),
            x.device.clone(),
            Shape::from([splits, tokens, output]),
            DType::F32,
        ),
    };
    // Groups of tokens that read the same rows of `W` are neighbours in the grid.
    let [across, down] = two_dimensions(columns);
    let count = CubeCount::Static((groups * splits) as u32, across, down);
    // SAFETY: row and token indices are clamped to the last row and token when reading, and only
    // rows and tokens that exist are written. `target` has an element for every split, token and
    // row.
    unsafe {
        split_product::launch_unchecked(
            &client,
            count,
            CubeDim::new_2d(tile.subgroup as u32, PLANES as u32),
            VECTOR,
            x.into_array_arg(),
            weight.into_array_arg(),
            target.clone().into_array_arg(),
            tokens as u32,
            output as u32,
            groups as u32,
            chunks.div_ceil(splits) as u32,
            input,
            tile,
            dtype.into(),
            target.dtype.into(),
        );
    }
    if splits > 1 {
        let elements = tokens * output;
        let [across, down] = two_dimensions(elements.div_ceil(THREADS));
        // SAFETY: a unit writes the element of its own index only if it is below `elements`, and
        // reads the elements of the same index from the `splits` parts of `target`.
        unsafe {
            add_parts::launch_unchecked(
                &client,
                CubeCount::Static(across, down, 1),
                CubeDim::new_1d(THREADS as u32),
                target.into_array_arg(),
                out.clone().into_array_arg(),
                elements as u32,
                splits as u32,
                dtype.into(),
            );
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_split_where_tiles_are_few() {
        // The matrices of Llama-3.2-1B on 132 multiprocessors, with 64 tokens.
        assert_eq!(splits(256, 32, 132), 3);
        assert_eq!(splits(48, 32, 132), 8);
        assert_eq!(splits(32, 128, 132), 16);
        assert_eq!(splits(2004, 32, 132), 1);
    }

    #[test]
    fn every_split_has_chunks_and_all_chunks_have_a_split() {
        for tiles in 1..200 {
            for chunks in 1..200 {
                let splits = splits(tiles, chunks, 100);
                let share = chunks.div_ceil(splits);
                assert!(splits <= MOST_SPLITS && (splits - 1) * share < chunks);
                assert!(splits * share >= chunks);
            }
        }
    }
}
