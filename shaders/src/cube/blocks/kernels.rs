//! Kernels that multiply with rows in blocks, and that dequantise rows.

use cubecl::prelude::*;

use super::elements::{
    Buffer, RUN, RowShape, element, lower, minimum, own_lower, scale, table_of, upper,
};
use crate::cube::linear::{Epilogue, LANES, ROWS, finish, first_of, row_of};

/// Rows that a unit computes. The activations that it loads are used for all of them.
pub const EACH: usize = 2;
/// Units of a cube that dequantises a row.
pub const THREADS: usize = 256;

/// How many runs a unit loads before it computes with them. With few tokens to compute with, more
/// loads have to be in flight to hide the latency of memory.
pub fn ahead(group: usize) -> usize {
    (4 / group).max(1)
}

/// Multiplies `group` tokens with [`EACH`] rows for each of the [`ROWS`] rows of units in a cube,
/// which gives `output` elements per token in total. `full` means that every group has all its
/// tokens. `x` is `[tokens, shape.columns]`, `bias` has an element for each row of the matrix, and
/// `out` is `[tokens, output]`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn product<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    matrix: &Buffer<W>,
    bias: &Array<E>,
    out: &mut Array<E>,
    tokens: u32,
    output: u32,
    #[comptime] group: usize,
    #[comptime] full: bool,
    #[comptime] ahead: usize,
    #[comptime] shape: RowShape,
    #[comptime] has_bias: bool,
    #[comptime] epilogue: Epilogue,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(shape.columns / vector);
    let runs = comptime!(shape.runs());
    let width = comptime!(shape.width());
    let minimums = comptime!(shape.has_minimums());
    let whole = comptime!(shape.is_whole());
    let table = table_of(comptime!(shape.format));

    let lane = UNIT_POS_X as usize;
    let first = CUBE_POS_X as usize * group;
    let cube = CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y;
    let target = first_of(cube as usize, EACH, epilogue);
    let row = row_of(target, output, epilogue);
    let last = comptime!(ROWS / epilogue.units()) * output as usize - 1;
    let here = tokens as usize - first;

    let mut sums = Array::<f32>::new(comptime!(group * EACH));
    #[unroll]
    for sum in 0..comptime!(group * EACH) {
        sums[sum] = 0.0f32;
    }
    let mut read = Array::<u32>::new(comptime!(ahead * EACH * width));
    let mut above = Array::<u32>::new(comptime!(ahead * EACH));
    let mut scales = Array::<f32>::new(comptime!(ahead * EACH));
    let mut least = Array::<f32>::new(comptime!(ahead * EACH));
    let mut weights = Array::<f32>::new(comptime!(EACH * RUN));
    let mut parts = Array::<f32>::new(comptime!(EACH));
    for start in range_stepped(lane, runs, comptime!(LANES * ahead)) {
        #[unroll]
        for step in 0..ahead {
            // Runs beyond the end of the row get a scale of zero.
            let run = start + step * LANES;
            let there = select(run < runs, run, comptime!(runs - 1));
            #[unroll]
            for each in 0..comptime!(EACH) {
                let from = select(row + each <= last, row + each, last);
                let at = comptime!(step * EACH + each);
                let word = lower::<W>(matrix, from, there, shape);
                #[unroll]
                for n in 0..width {
                    read[comptime!(at * width + n)] = own_lower(word[n], there, shape);
                }
                above[at] = upper::<W>(matrix, from, there, shape);
                let scale = scale::<W>(matrix, from, there, shape);
                scales[at] = select(run < runs, scale, 0.0f32);
                if minimums {
                    let minimum = minimum::<W>(matrix, from, there, shape);
                    least[at] = select(run < runs, minimum, 0.0f32);
                }
            }
        }
        #[unroll]
        for step in 0..ahead {
            let run = start + step * LANES;
            let there = select(run < runs, run, comptime!(runs - 1));
            #[unroll]
            for each in 0..comptime!(EACH) {
                let at = comptime!(step * EACH + each);
                #[unroll]
                for n in 0..comptime!(RUN) {
                    let word = read[comptime!(at * width + shape.word_of(n))];
                    weights[comptime!(each * RUN + n)] =
                        element(word, above[at], &table, n, comptime!(shape.format));
                }
            }
            #[unroll]
            for token in 0..group {
                if full || token < here {
                    #[unroll]
                    for each in 0..comptime!(EACH) {
                        parts[each] = 0.0f32;
                    }
                    // The sum of the activations, which the minimum is multiplied with.
                    let mut total = 0.0f32;
                    #[unroll]
                    for part in 0..comptime!(RUN / vector) {
                        let at = there * comptime!(RUN / vector) + part;
                        if whole || at < vectors {
                            let a = x[(first + token) * vectors + at];
                            #[unroll]
                            for n in 0..vector {
                                let value = f32::cast_from(a[n]);
                                if minimums {
                                    total += value;
                                }
                                #[unroll]
                                for each in 0..comptime!(EACH) {
                                    parts[each] = parts[each]
                                        + weights[comptime!(each * RUN + part * vector + n)]
                                            * value;
                                }
                            }
                        }
                    }
                    #[unroll]
                    for each in 0..comptime!(EACH) {
                        let sum = comptime!(token * EACH + each);
                        let at = comptime!(step * EACH + each);
                        sums[sum] = sums[sum] + parts[each] * scales[at];
                        if minimums {
                            sums[sum] = sums[sum] + total * least[at];
                        }
                    }
                }
            }
        }
    }
    finish::<E>(
        &sums, bias, out, target, first, here, output, group, EACH, full, has_bias, epilogue,
    );
}

/// Writes `rows` rows of the matrix as floats `[rows, shape.columns]`: the rows `ids` if `named`,
/// otherwise the rows from `from` on.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn rows<E: Float, N: Size, W: Size>(
    matrix: &Buffer<W>,
    ids: &Array<i32>,
    out: &mut Array<Vector<E, N>>,
    rows: u32,
    from: u32,
    #[comptime] shape: RowShape,
    #[comptime] named: bool,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(shape.columns / vector);
    let minimums = comptime!(shape.has_minimums());
    let whole = comptime!(shape.is_whole());
    let table = table_of(comptime!(shape.format));
    let to = (CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X) as usize;
    if to < rows as usize {
        let mut row = to + from as usize;
        if comptime!(named) {
            row = ids[to] as usize;
        }
        for run in range_stepped(UNIT_POS as usize, comptime!(shape.runs()), THREADS) {
            let word = lower::<W>(matrix, row, run, shape);
            let above = upper::<W>(matrix, row, run, shape);
            let scale = scale::<W>(matrix, row, run, shape);
            let mut least = 0.0f32;
            if minimums {
                least = minimum::<W>(matrix, row, run, shape);
            }
            #[unroll]
            for part in 0..comptime!(RUN / vector) {
                let at = run * comptime!(RUN / vector) + part;
                if whole || at < vectors {
                    let mut values = Vector::<E, N>::empty();
                    #[unroll]
                    for n in 0..vector {
                        let place = comptime!(part * vector + n);
                        let own = own_lower(word[comptime!(shape.word_of(place))], run, shape);
                        let element = element(own, above, &table, place, comptime!(shape.format));
                        let mut value = element * scale;
                        if minimums {
                            value += least;
                        }
                        values[n] = E::cast_from(value);
                    }
                    out[to * vectors + at] = values;
                }
            }
        }
    }
}

/// A lane's part of the product of row `from` of a matrix in blocks with row `row` of `x`
/// `[rows, shape.columns]`. `table` is that of the format.
#[cube]
pub fn dot<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    row: usize,
    matrix: &Buffer<W>,
    table: &SharedMemory<f32>,
    from: usize,
    #[comptime] shape: RowShape,
) -> f32 {
    let vector = N::value();
    let vectors = comptime!(shape.columns / vector);
    let minimums = comptime!(shape.has_minimums());
    let whole = comptime!(shape.is_whole());
    let mut sum = 0.0f32;
    for run in range_stepped(UNIT_POS_X as usize, comptime!(shape.runs()), LANES) {
        let word = lower::<W>(matrix, from, run, shape);
        let above = upper::<W>(matrix, from, run, shape);
        let mut part = 0.0f32;
        let mut total = 0.0f32;
        #[unroll]
        for piece in 0..comptime!(RUN / vector) {
            let at = run * comptime!(RUN / vector) + piece;
            if whole || at < vectors {
                let a = x[row * vectors + at];
                #[unroll]
                for n in 0..vector {
                    let place = comptime!(piece * vector + n);
                    let own = own_lower(word[comptime!(shape.word_of(place))], run, shape);
                    let value = f32::cast_from(a[n]);
                    part += element(own, above, table, place, comptime!(shape.format)) * value;
                    if minimums {
                        total += value;
                    }
                }
            }
        }
        sum += part * scale::<W>(matrix, from, run, shape);
        if minimums {
            sum += total * minimum::<W>(matrix, from, run, shape);
        }
    }
    sum
}
