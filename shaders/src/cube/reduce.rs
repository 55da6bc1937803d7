//! Reductions over the units of a cube, in shared memory.

use cubecl::prelude::*;

/// The sum of `value` over all `threads` units (a power of two); every unit gets it.
/// `scratch` holds `threads` elements and may be used again after the call.
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
