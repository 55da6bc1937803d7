//! The likeliest token of each row of logits: one cube per row.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::dims;

const THREADS: usize = 256;

pub fn argmax<R: CubeRuntime>(logits: CubeTensor<R>) -> CubeTensor<R> {
    let [rows, vocab] = dims(&logits);
    let (client, device, dtype) = (logits.client.clone(), logits.device.clone(), logits.dtype);
    let out = empty_device_contiguous_dtype(client, device, Shape::from([rows]), DType::I32);
    // SAFETY: a cube stays within its row of `vocab` elements.
    unsafe {
        argmax_kernel::launch_unchecked(
            &logits.client.clone(),
            CubeCount::Static(rows as u32, 1, 1),
            CubeDim::new_1d(THREADS as u32),
            logits.into_array_arg(),
            out.clone().into_array_arg(),
            vocab as u32,
            dtype.into(),
        );
    }
    out
}

/// What no candidate can be: below every finite number.
const NONE: f32 = -3.4e38;

#[cube(launch_unchecked)]
fn argmax_kernel<E: Float>(
    logits: &Array<E>,
    out: &mut Array<i32>,
    vocab: u32,
    #[define(E)] _dtype: StorageType,
) {
    let mut values = SharedMemory::<f32>::new(THREADS);
    let mut tokens = SharedMemory::<i32>::new(THREADS);
    let unit = UNIT_POS as usize;
    let row = CUBE_POS_X as usize * vocab as usize;
    let mut best = f32::new(NONE);
    let mut token = i32::new(-1);
    for i in range_stepped(UNIT_POS, vocab, THREADS as u32) {
        let value = f32::cast_from(logits[row + i as usize]);
        // False for NaN, and for all but the first of equals.
        if value > best {
            best = value;
            token = i32::cast_from(i);
        }
    }
    values[unit] = best;
    tokens[unit] = token;
    sync_cube();
    let steps = comptime!(THREADS.ilog2());
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(THREADS >> (step as usize + 1));
        if unit < stride {
            let other = values[unit + stride];
            let its_token = tokens[unit + stride];
            let ahead = other > values[unit]
                || (other == values[unit] && its_token >= 0 && its_token < tokens[unit]);
            if ahead {
                values[unit] = other;
                tokens[unit] = its_token;
            }
        }
        sync_cube();
    }
    if unit == 0 {
        out[CUBE_POS_X as usize] = tokens[0];
    }
}
