//! Products of tens of tokens, as decoding a batch has them: bound by reading `W` once, like those
//! of a few tokens, but with enough arithmetic to need cooperative matrices.
//!
//! A tile of [`WIDTH`] rows of `W` and up to [`MOST_TOKENS`] tokens is a cube's. Tiles are few where
//! tokens are, so the columns are split among as many cubes as keep the device busy (split-K), and
//! a second kernel adds the sums of the parts. A cube has two buffers in shared memory: while it
//! multiplies one chunk of columns, the next is on its way in registers, and nobody waits for
//! memory but at the first.
//!
//! It reads 16 bytes at once: wgpu's devices have no vectors of eight, and refuse.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use crate::cube::{dims, empty_like};

/// Tokens of a tile at most, and rows of `W`.
const MOST_TOKENS: usize = 64;
const WIDTH: usize = 64;
/// Tokens that a tile can have: the smallest that fits all tokens is used.
pub const TILE_TOKENS: [usize; 3] = [16, 32, MOST_TOKENS];
/// Columns of both that are in a buffer.
const CHUNK: usize = 64;
/// Elements that are read at once: 16 bytes.
const VECTOR: usize = 8;
/// Elements between rows in shared memory: strides of matrices are multiples of it, and rows
/// begin in different banks.
const PADDING: usize = 8;
/// Subgroups of a cube.
const PLANES: usize = 4;
/// Cubes that a multiprocessor works on, so that one computes while others wait.
const CUBES_PER_PROCESSOR: usize = 4;
const MOST_SPLITS: usize = 16;
/// Chunks of a split at least: its sums are written and read again.
const FEWEST_CHUNKS: usize = 4;
/// Where a driver does not tell how many processors there are.
const USUAL_PROCESSORS: usize = 32;
const THREADS: usize = 256;

/// A cube's tile, and the matrices that it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The product of matrices that the device has: `[m, k]` by `[k, n]`.
    m: usize,
    n: usize,
    k: usize,
    /// Units of a subgroup.
    subgroup: usize,
    tokens: usize,
}

impl Tile {
    /// Subgroups side by side along the tokens; the others stand along the rows of `W`.
    fn planes_down(self) -> usize {
        if self.tokens < MOST_TOKENS { 1 } else { 2 }
    }

    /// Matrices of a subgroup, along the tokens and along the rows of `W`.
    fn down(self) -> usize {
        self.tokens / self.planes_down() / self.m
    }

    fn across(self) -> usize {
        WIDTH * self.planes_down() / PLANES / self.n
    }

    fn threads(self) -> usize {
        PLANES * self.subgroup
    }

    /// The largest of the device's matrices that make a tile for so many tokens.
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

    /// Two buffers of both factors, and the sums when they leave the matrices.
    fn shared_bytes(self) -> usize {
        2 * (self.tokens + WIDTH) * (CHUNK + PADDING) * size_of::<u16>()
            + self.tokens * WIDTH * size_of::<f32>()
    }
}

/// The parts that `chunks` of columns are split into, where there are so many `tiles`.
fn splits(tiles: usize, chunks: usize, processors: usize) -> usize {
    let wanted = (processors * CUBES_PER_PROCESSOR).div_ceil(tiles);
    let most = (chunks / FEWEST_CHUNKS).clamp(1, MOST_SPLITS);
    let splits = wanted.clamp(1, most);
    // As many as have all a share.
    chunks.div_ceil(chunks.div_ceil(splits))
}

/// As [`super::product`]; `None` where the device has no such matrices, or columns are no whole
/// number of chunks.
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
    // Groups that read the same rows are neighbours; a grid has 65,535 in its other dimensions.
    let across = columns.min(32_768);
    let count = CubeCount::Static(
        (groups * splits) as u32,
        across as u32,
        columns.div_ceil(across) as u32,
    );
    // SAFETY: rows and tokens beyond the last are read as the last, and not written.
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
        let blocks = elements.div_ceil(THREADS);
        let across = blocks.min(32_768);
        // SAFETY: a unit writes one element, if there is one.
        unsafe {
            add_parts::launch_unchecked(
                &client,
                CubeCount::Static(across as u32, blocks.div_ceil(across) as u32, 1),
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

/// A tile of `[splits, tokens, output]`: the sums over `share` chunks of columns, or fewer in the
/// last split.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn split_product<E: Float, O: Float, N: Size>(
    x: &Array<Vector<E, N>>,
    weight: &Array<Vector<E, N>>,
    out: &mut Array<O>,
    tokens: u32,
    output: u32,
    groups: u32,
    share: u32,
    #[comptime] input: usize,
    #[comptime] tile: Tile,
    #[define(E)] _dtype: StorageType,
    #[define(O)] _target: StorageType,
) {
    let threads = comptime!(tile.threads());
    let lanes = comptime!(CHUNK / VECTOR);
    let stride = comptime!((CHUNK + PADDING) / VECTOR);
    let vectors = comptime!(input / VECTOR);
    let unit = UNIT_POS as usize;
    let group = (CUBE_POS_X % groups) as usize;
    let split = (CUBE_POS_X / groups) as usize;
    let first_token = group * comptime!(tile.tokens);
    let first_row = (CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y) as usize * WIDTH;
    let chunks = comptime!(input / CHUNK);
    let from = split * share as usize;
    let to = cubecl::prelude::min(from + share as usize, chunks);

    // Where each unit reads a share of a chunk, and where it puts it.
    let of_x = comptime!((tile.tokens * CHUNK / VECTOR).div_ceil(tile.threads()));
    let of_w = comptime!((WIDTH * CHUNK / VECTOR).div_ceil(tile.threads()));
    let size_x = comptime!(tile.tokens * (CHUNK + PADDING) / VECTOR);
    let size_w = comptime!(WIDTH * (CHUNK + PADDING) / VECTOR);
    let mut xs =
        SharedMemory::<Vector<E, N>>::new_aligned(comptime!(2 * size_x), comptime!(32usize));
    let mut ws =
        SharedMemory::<Vector<E, N>>::new_aligned(comptime!(2 * size_w), comptime!(32usize));
    let mut next_x = Array::<Vector<E, N>>::new(of_x);
    let mut next_w = Array::<Vector<E, N>>::new(of_w);

    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(tile.down() * tile.across()) {
        sums.push(cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            tile.m,
            tile.n,
            tile.k,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    let plane = UNIT_POS_Y as usize;
    let plane_row = plane % comptime!(tile.planes_down()) * comptime!(tile.down() * tile.m);
    let plane_column = plane / comptime!(tile.planes_down()) * comptime!(tile.across() * tile.n);

    for step in 0..to - from + 1 {
        // What was read during the last step goes where nobody reads in this one.
        if step > 0 {
            let buffer = (step - 1) % 2;
            #[unroll]
            for i in 0..of_x {
                let at = unit + i * threads;
                if comptime!((tile.tokens * CHUNK / VECTOR).is_multiple_of(tile.threads()))
                    || at < comptime!(tile.tokens * CHUNK / VECTOR)
                {
                    xs[buffer * size_x + at / lanes * stride + at % lanes] = next_x[i];
                }
            }
            #[unroll]
            for i in 0..of_w {
                let at = unit + i * threads;
                if comptime!((WIDTH * CHUNK / VECTOR).is_multiple_of(tile.threads()))
                    || at < comptime!(WIDTH * CHUNK / VECTOR)
                {
                    ws[buffer * size_w + at / lanes * stride + at % lanes] = next_w[i];
                }
            }
        }
        sync_cube();
        if from + step < to {
            let column = (from + step) * lanes;
            #[unroll]
            for i in 0..of_w {
                let at = unit + i * threads;
                let row = cubecl::prelude::min(first_row + at / lanes, output as usize - 1);
                next_w[i] = weight[row * vectors + column + at % lanes];
            }
            #[unroll]
            for i in 0..of_x {
                let at = unit + i * threads;
                let token = cubecl::prelude::min(first_token + at / lanes, tokens as usize - 1);
                next_x[i] = x[token * vectors + column + at % lanes];
            }
        }
        if step > 0 {
            let buffer = (step - 1) % 2;
            multiply::<E, N>(
                &xs,
                &ws,
                &mut sums,
                buffer * size_x + plane_row * stride,
                buffer * size_w + plane_column * stride,
                tile,
            );
        }
    }

    // The sums may lie where the buffers did.
    sync_cube();
    let mut tiles =
        SharedMemory::<f32>::new_aligned(comptime!(tile.tokens * WIDTH), comptime!(32usize));
    #[unroll]
    for down in 0..comptime!(tile.down()) {
        #[unroll]
        for across in 0..comptime!(tile.across()) {
            let at = (plane_row + comptime!(down * tile.m)) * WIDTH
                + plane_column
                + comptime!(across * tile.n);
            cmma::store::<f32, f32>(
                &mut tiles.slice_mut(at, at + comptime!((tile.m - 1) * WIDTH + tile.n)),
                sums.index(comptime!(down * tile.across() + across)),
                comptime!(WIDTH as u32),
                cmma::MatrixLayout::RowMajor,
            );
        }
    }
    sync_cube();
    for i in range_stepped(unit, comptime!(tile.tokens * WIDTH), threads) {
        let (token, row) = (first_token + i / WIDTH, first_row + i % WIDTH);
        if token < tokens as usize && row < output as usize {
            let at = (split * tokens as usize + token) * output as usize + row;
            out[at] = O::cast_from(tiles[i]);
        }
    }
}

/// Adds the products of a chunk: of the tokens from `at_x` on in `xs`, and of the rows of `W` from
/// `at_w` on in `ws`.
#[cube]
fn multiply<E: Float, N: Size>(
    xs: &SharedMemory<Vector<E, N>>,
    ws: &SharedMemory<Vector<E, N>>,
    sums: &mut Sequence<cmma::Matrix<f32>>,
    at_x: usize,
    at_w: usize,
    #[comptime] tile: Tile,
) {
    let stride = comptime!((CHUNK + PADDING) / VECTOR);
    #[unroll]
    for step in 0..comptime!(CHUNK / tile.k) {
        let mut rows = Sequence::<cmma::Matrix<Vector<E, N>>>::new();
        #[unroll]
        for across in 0..comptime!(tile.across()) {
            let at = at_w + comptime!(across * tile.n * stride + step * tile.k / VECTOR);
            rows.push(cmma::Matrix::<Vector<E, N>>::from_slice(
                cmma::MatrixIdent::B,
                tile.m,
                tile.n,
                tile.k,
                cmma::MatrixLayout::ColMajor,
                &ws.slice(at, at + comptime!((tile.n - 1) * stride + tile.k / VECTOR)),
                comptime!((stride * VECTOR) as u32),
            ));
        }
        #[unroll]
        for down in 0..comptime!(tile.down()) {
            let at = at_x + comptime!(down * tile.m * stride + step * tile.k / VECTOR);
            let tokens = cmma::Matrix::<Vector<E, N>>::from_slice(
                cmma::MatrixIdent::A,
                tile.m,
                tile.n,
                tile.k,
                cmma::MatrixLayout::RowMajor,
                &xs.slice(at, at + comptime!((tile.m - 1) * stride + tile.k / VECTOR)),
                comptime!((stride * VECTOR) as u32),
            );
            #[unroll]
            for across in 0..comptime!(tile.across()) {
                let sum = sums.index(comptime!(down * tile.across() + across));
                cmma::execute::<Vector<E, N>, Vector<E, N>, f32, f32>(
                    &tokens,
                    rows.index(across),
                    sum,
                    sum,
                );
            }
        }
    }
}

/// The sum of `splits` parts of `elements`, one after another.
#[cube(launch_unchecked)]
fn add_parts<E: Float>(
    parts: &Array<f32>,
    out: &mut Array<E>,
    elements: u32,
    splits: u32,
    #[define(E)] _dtype: StorageType,
) {
    let at = (CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X) as usize * THREADS + UNIT_POS as usize;
    if at < elements as usize {
        let mut sum = 0.0f32;
        for split in 0..splits as usize {
            sum += parts[split * elements as usize + at];
        }
        out[at] = E::cast_from(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_split_where_tiles_are_few() {
        // Llama-3.2-1B's matrices on 132 processors, 64 tokens.
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
