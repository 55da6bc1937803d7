//! Copies of the slots of KV pools, whatever their format.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{dims, two_dimensions};

const THREADS: usize = 64;

/// [`Kernels::read_slots`](crate::Kernels::read_slots).
pub fn read<R: CubeRuntime>(pool: &CubeTensor<R>, slots: CubeTensor<R>) -> CubeTensor<R> {
    let pool = in_words(pool);
    let shape = Shape::from([slots.meta.num_elements(), dims(&pool)[1]]);
    let rows =
        empty_device_contiguous_dtype(pool.client.clone(), pool.device.clone(), shape, DType::I32);
    copy(pool, slots, rows.clone(), false);
    rows
}

/// [`Kernels::write_slots`](crate::Kernels::write_slots).
pub fn write<R: CubeRuntime>(pool: &CubeTensor<R>, slots: CubeTensor<R>, rows: CubeTensor<R>) {
    let pool = in_words(pool);
    let shape = [slots.meta.num_elements(), dims(&pool)[1]];
    assert_eq!(dims(&rows), shape, "slots: shape of the rows");
    copy(pool, slots, rows, true);
}

/// The memory of a pool as words, `[slots, words]`.
fn in_words<R: CubeRuntime>(pool: &CubeTensor<R>) -> CubeTensor<R> {
    let shape = pool.meta.shape();
    let bytes = shape[1] * shape[2] * pool.dtype.size();
    let words = bytes / size_of::<i32>();
    assert_eq!(words * size_of::<i32>(), bytes, "a slot has whole words");
    let shape = Shape::from([shape[0], words]);
    CubeTensor::new_contiguous(
        pool.client.clone(),
        pool.device.clone(),
        shape,
        pool.handle.clone(),
        DType::I32,
    )
}

/// Copies between the `slots` of `pool` and `rows`, one row after another.
fn copy<R: CubeRuntime>(
    pool: CubeTensor<R>,
    slots: CubeTensor<R>,
    rows: CubeTensor<R>,
    to_pool: bool,
) {
    let [count, words] = dims(&rows);
    if count == 0 {
        return;
    }
    let [across, down] = two_dimensions(count);
    let client = pool.client.clone();
    // SAFETY: the caller has checked that the slots lie within the pool. A cube copies one row, if
    // there is one for it, and its units stay within the row. Pools are written in place, and no
    // other launch uses these slots at the same time, because a device runs launches in order.
    unsafe {
        copy_kernel::launch_unchecked(
            &client,
            CubeCount::Static(across, down, 1),
            CubeDim::new_1d(THREADS as u32),
            pool.into_array_arg(),
            slots.into_array_arg(),
            rows.into_array_arg(),
            count as u32,
            words,
            to_pool,
        );
    }
}

#[cube(launch_unchecked)]
fn copy_kernel(
    pool: &mut Array<i32>,
    slots: &Array<i32>,
    rows: &mut Array<i32>,
    count: u32,
    #[comptime] words: usize,
    #[comptime] to_pool: bool,
) {
    let row = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    if row < count {
        let slot = slots[row as usize] as usize * words;
        let first = row as usize * words;
        for i in range_stepped(UNIT_POS as usize, words, THREADS) {
            if comptime!(to_pool) {
                pool[slot + i] = rows[first + i];
            } else {
                rows[first + i] = pool[slot + i];
            }
        }
    }
}
