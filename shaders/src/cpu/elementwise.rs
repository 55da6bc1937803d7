//! Norms and activations, one row per token.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::output::room;
use super::simd::{Simd, Task, dispatch, exp, tanh};
use crate::Activation;

/// With fewer elements, a second thread costs more than it saves.
pub const PARALLEL_FROM: usize = 1 << 15;

/// A row whose elements are all written.
type NewRow<'a> = &'a mut [MaybeUninit<f32>];

/// RMSNorm of the rows of `x`, as wide as `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    // SAFETY: `Norm` writes every element of a row, because `x`, `weight` and `out` have the same
    // length.
    unsafe {
        filled(x.len() / width, width, |out| {
            let norm = |(x, out)| {
                dispatch(Norm {
                    x,
                    weight,
                    eps,
                    out,
                })
            };
            if x.len() < PARALLEL_FROM {
                x.chunks_exact(width)
                    .zip(out.chunks_exact_mut(width))
                    .for_each(norm);
            } else {
                let rows = x
                    .par_chunks_exact(width)
                    .zip(out.par_chunks_exact_mut(width));
                rows.for_each(norm);
            }
        })
    }
}

/// Adds `scale * delta` to `x` in place, and returns the RMSNorm of the sums.
pub fn add_rms_norm(
    x: &mut [f32],
    delta: &[f32],
    scale: f32,
    weight: &[f32],
    eps: f32,
) -> Vec<f32> {
    let width = weight.len();
    // SAFETY: as in `rms_norm`.
    unsafe {
        filled(x.len() / width, width, |out| {
            let add_norm = |((x, delta), out): ((&mut [f32], &[f32]), NewRow)| {
                dispatch(Add {
                    x: &mut *x,
                    delta,
                    scale,
                });
                dispatch(Norm {
                    x,
                    weight,
                    eps,
                    out,
                });
            };
            if x.len() < PARALLEL_FROM {
                let sums = x.chunks_exact_mut(width).zip(delta.chunks_exact(width));
                sums.zip(out.chunks_exact_mut(width)).for_each(add_norm);
            } else {
                let sums = x
                    .par_chunks_exact_mut(width)
                    .zip(delta.par_chunks_exact(width));
                sums.zip(out.par_chunks_exact_mut(width)).for_each(add_norm);
            }
        })
    }
}

/// `activation(gate) * up` of rows `[gate, up]`, each `inner` wide.
pub fn gate(gate_up: &[f32], inner: usize, activation: Activation) -> Vec<f32> {
    // SAFETY: `Gate` writes every element of a row: `gate`, `up` and `out` have `inner` elements.
    unsafe {
        filled(gate_up.len() / (2 * inner), inner, |out| {
            let gated = |(row, out): (&[f32], NewRow)| {
                let (gate, up) = row.split_at(inner);
                dispatch(Gate {
                    gate,
                    up,
                    activation,
                    out,
                });
            };
            if gate_up.len() < PARALLEL_FROM {
                let rows = gate_up.chunks_exact(2 * inner);
                rows.zip(out.chunks_exact_mut(inner)).for_each(gated);
            } else {
                let rows = gate_up.par_chunks_exact(2 * inner);
                rows.zip(out.par_chunks_exact_mut(inner)).for_each(gated);
            }
        })
    }
}

/// Multiplies `x` by `scale`, and bounds it to `cap * tanh(x / cap)`.
pub fn scale_and_cap(x: &mut [f32], scale: f32, cap: Option<f32>) {
    /// Elements of a task.
    const PART: usize = 1 << 12;
    let bounded = |x: &mut [f32]| dispatch(Bounded { x, scale, cap });
    if x.len() < PARALLEL_FROM {
        bounded(x);
    } else {
        x.par_chunks_mut(PART).for_each(bounded);
    }
}

/// Allocates `rows` rows of `width` elements and returns them after `fill` has written them.
///
/// # Safety
/// `fill` must write all elements.
unsafe fn filled(rows: usize, width: usize, fill: impl FnOnce(NewRow)) -> Vec<f32> {
    let mut out = room(rows * width);
    fill(&mut out.spare_capacity_mut()[..rows * width]);
    // SAFETY: the capacity is large enough, and the caller guarantees that `fill` has written all
    // elements.
    unsafe { out.set_len(rows * width) };
    out
}

// The following are tasks and not closures: only code that is inlined into `Task::run` is compiled
// for the chosen vectors, and closures are not guaranteed to be inlined.

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: NewRow<'a>,
}

impl Task for Norm<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let scale = inverse_rms(self.x, self.eps);
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            out.write(x * scale * weight);
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`
#[inline(always)]
pub fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    // Sixteen partial sums, because the compiler may not reorder the additions of a single one.
    let mut sums = [0.0f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    let mut tail = 0.0;
    for x in rest {
        tail += x * x;
    }
    for chunk in chunks {
        for i in 0..16 {
            sums[i] += chunk[i] * chunk[i];
        }
    }
    let mut sum = 0.0;
    for part in sums {
        sum += part;
    }
    let mean = (sum + tail) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

struct Add<'a> {
    x: &'a mut [f32],
    delta: &'a [f32],
    scale: f32,
}

impl Task for Add<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (x, delta) in self.x.iter_mut().zip(self.delta) {
            *x += delta * self.scale;
        }
    }
}

struct Gate<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    activation: Activation,
    out: NewRow<'a>,
}

impl Task for Gate<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let pairs = self.out.iter_mut().zip(self.gate).zip(self.up);
        match self.activation {
            Activation::Silu => {
                for ((out, gate), up) in pairs {
                    out.write(gate / (1.0 + exp::<S>(-gate)) * up);
                }
            }
            Activation::GeluTanh => {
                for ((out, gate), up) in pairs {
                    out.write(gelu::<S>(*gate) * up);
                }
            }
        }
    }
}

/// GELU by its approximation with tanh, written with the logistic function: `(1 + tanh(x)) / 2` is
/// `1 / (1 + e^(-2 x))`.
#[inline(always)]
fn gelu<S: Simd>(x: f32) -> f32 {
    // sqrt(2 / pi), twice.
    const TWICE: f32 = 1.595_769;
    x / (1.0 + exp::<S>(-TWICE * (x + 0.044_715 * x * x * x)))
}

struct Bounded<'a> {
    x: &'a mut [f32],
    scale: f32,
    cap: Option<f32>,
}

impl Task for Bounded<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let scale = self.scale;
        match self.cap {
            None => {
                for x in self.x {
                    *x *= scale;
                }
            }
            Some(cap) => {
                for x in self.x {
                    *x = cap * tanh::<S>(*x * scale / cap);
                }
            }
        }
    }
}
