//! The kernels: the tiles of one split of the columns, and the sum of the splits.

use cubecl::prelude::*;

use super::{CHUNK, PADDING, THREADS, Tile, VECTOR, WIDTH};

/// Computes one tile of `[splits, tokens, output]`: the sums over `share` chunks of columns, or
/// over fewer in the last split.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn split_product<E: Float, O: Float, N: Size>(
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

    // The vectors of a chunk that each unit copies to shared memory.
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
        // Write the chunk that was loaded in the last step to the buffer that no unit reads in this
        // step.
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

    // The compiler may place the sums in the memory of the buffers.
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

/// Multiplies one chunk and adds the products to `sums`: the tokens from `at_x` on in `xs`, by the
/// rows of `W` from `at_w` on in `ws`.
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

/// Adds the `splits` parts of each of `elements` elements in their order.
#[cube(launch_unchecked)]
pub fn add_parts<E: Float>(
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
