//! Reductions over the units of a cube, in shared memory.

use cubecl::prelude::*;

/// The sum of `value` over all `threads` units (a power of two), returned to every unit. `scratch`
/// has `threads` elements and may be reused after the call.
#[cube]
pub fn cube_sum(value: f32, scratch: &mut SharedMemory<f32>, #[comptime] threads: usize) -> f32 {
    let unit = UNIT_POS as usize;
    scratch[unit] = value;
    sync_cube();
    let steps = comptime!(threads.ilog2());
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(threads >> (step as usize + 1));
        if unit < stride {
            scratch[unit] = scratch[unit] + scratch[unit + stride];
        }
        sync_cube();
    }
    let sum = scratch[0];
    sync_cube();
    sum
}

/// In each of `rows` rows of `threads` elements (a power of two), the first element becomes the sum
/// of all elements, or the largest element if `largest`. Begins and ends with a barrier. The loop
/// is not unrolled, because shader compilers take seconds for long unrolled loops.
#[cube]
pub fn fold_rows(
    scratch: &mut SharedMemory<f32>,
    #[comptime] rows: usize,
    #[comptime] threads: usize,
    #[comptime] largest: bool,
) {
    sync_cube();
    for step in 0..comptime!(threads.ilog2()) {
        let stride = comptime!(threads / 2) >> step as usize;
        for i in range_stepped(UNIT_POS as usize, rows * stride, threads) {
            let at = i / stride * threads + i % stride;
            if comptime!(largest) {
                scratch[at] = cubecl::prelude::max(scratch[at], scratch[at + stride]);
            } else {
                scratch[at] = scratch[at] + scratch[at + stride];
            }
        }
        sync_cube();
    }
}
