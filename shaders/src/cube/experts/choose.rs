//! The choice of experts.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::dims;
use crate::cube::reduce::cube_sum;
use crate::cube::sample::{clean, finite, order};
use crate::{ExpertWeights, Routing};

/// Units of the cube that chooses a row's experts.
const THREADS: usize = 64;

/// [`Kernels::choose_experts`](crate::Kernels::choose_experts): ids and weights.
pub fn choose<R: CubeRuntime>(
    logits: CubeTensor<R>,
    routing: Routing,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let [rows, experts] = dims(&logits);
    assert!(
        routing.top <= experts,
        "choose_experts: {} of {experts} experts",
        routing.top
    );
    let (client, device, dtype) = (logits.client.clone(), logits.device.clone(), logits.dtype);
    let empty = |dtype| {
        let shape = Shape::from([rows, routing.top]);
        empty_device_contiguous_dtype(client.clone(), device.clone(), shape, dtype)
    };
    let (ids, weights) = (empty(DType::I32), empty(DType::F32));
    // SAFETY: there is one cube per row of `logits`, `ids` and `weights`, and its units stay within
    // the row: a row has at least as many experts as are chosen.
    unsafe {
        choose_kernel::launch_unchecked(
            &client,
            CubeCount::Static(rows as u32, 1, 1),
            CubeDim::new_1d(THREADS as u32),
            logits.into_array_arg(),
            ids.clone().into_array_arg(),
            weights.clone().into_array_arg(),
            experts,
            routing.top,
            routing.weights == ExpertWeights::OfAll,
            dtype.into(),
        );
    }
    (ids, weights)
}

/// Finds the largest logit as often as there are experts to choose.
#[cube(launch_unchecked)]
fn choose_kernel<E: Float>(
    logits: &Array<E>,
    ids: &mut Array<i32>,
    weights: &mut Array<f32>,
    #[comptime] experts: usize,
    #[comptime] top: usize,
    #[comptime] of_all: bool,
    #[define(E)] _dtype: StorageType,
) {
    let row = CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    // Integers in the order of the logits; 0 for those that were chosen.
    let mut left = SharedMemory::<u32>::new(experts);
    let mut best = SharedMemory::<u32>::new(comptime!(THREADS));
    let mut at = SharedMemory::<u32>::new(comptime!(THREADS));
    let mut chosen = SharedMemory::<f32>::new(top);
    let mut scratch = SharedMemory::<f32>::new(comptime!(THREADS));
    for id in range_stepped(unit, experts, THREADS) {
        left[id] = order(clean(finite(f32::cast_from(logits[row * experts + id]))));
    }
    sync_cube();
    for rank in 0..top {
        let mut largest = 0u32;
        let mut place = 0u32;
        // A unit sees its experts by ascending id, so that of equal ones it keeps the first.
        for id in range_stepped(unit, experts, THREADS) {
            if left[id] > largest {
                largest = left[id];
                place = id as u32;
            }
        }
        best[unit] = largest;
        at[unit] = place;
        sync_cube();
        let steps = comptime!(THREADS.ilog2());
        #[unroll]
        for step in 0..steps {
            let stride = comptime!(THREADS >> (step as usize + 1));
            if unit < stride {
                let (mine, other) = (best[unit], best[unit + stride]);
                let (my_place, its_place) = (at[unit], at[unit + stride]);
                if other > mine || (other == mine && its_place < my_place) {
                    best[unit] = other;
                    at[unit] = its_place;
                }
            }
            sync_cube();
        }
        if unit == 0 {
            let id = at[0] as usize;
            ids[row * top + rank] = i32::cast_from(at[0]);
            chosen[rank] = finite(f32::cast_from(logits[row * experts + id]));
            left[id] = 0u32;
        }
        sync_cube();
    }
    let largest = chosen[0];
    let mut sum = 0.0f32;
    if comptime!(of_all) {
        let mut part = 0.0f32;
        for id in range_stepped(unit, experts, THREADS) {
            part += f32::exp(finite(f32::cast_from(logits[row * experts + id])) - largest);
        }
        sum = cube_sum(part, &mut scratch, THREADS);
    } else {
        for rank in 0..top {
            sum += f32::exp(chosen[rank] - largest);
        }
    }
    for rank in range_stepped(unit, top, THREADS) {
        weights[row * top + rank] = f32::exp(chosen[rank] - largest) / sum;
    }
}
