//! Attention compared with f64: all kinds of pools, caps, sinks and windows, at every level.

use half::{bf16, f16};

use super::super::*;
use super::{converted, pool_of_int8, with_one_thread};
use crate::cpu::noise::noise;

/// Attention in f64 of the token `token`, `[heads, head_dim]`, over keys and values `[slots, kv_heads, head_dim]`.
fn exact(
    [q, keys, values]: [&[f32]; 3],
    layout: HeadLayout,
    weighing: &Weighing<'_>,
    table: &SlotTable<'_>,
    token: usize,
) -> Vec<f64> {
    let HeadLayout {
        heads,
        kv_heads,
        head_dim: dim,
    } = layout;
    let mut out = Vec::new();
    for head in 0..heads {
        let q = &q[(token * heads + head) * dim..][..dim];
        let row = |slot: &i32| (*slot as usize * kv_heads + head * kv_heads / heads) * dim;
        let score = |slot: &i32| {
            let products = q.iter().zip(&keys[row(slot)..][..dim]);
            let sum: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = sum * f64::from(weighing.scale);
            weighing
                .cap
                .map(f64::from)
                .map_or(score, |cap| cap * (score / cap).tanh())
        };
        let at = table.positions[token] as usize;
        let attended = (0..=at).filter(|position| at - position < table.window);
        let start = table.start[token] as usize;
        let slots: Vec<i32> = attended
            .map(|position| table.slots[start + position])
            .collect();
        let scores: Vec<f64> = slots.iter().map(score).collect();
        let sink = weighing
            .sinks
            .map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let largest = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total = weights.iter().sum::<f64>() + (sink - largest).exp();
        out.extend((0..dim).map(|i| {
            let values = slots.iter().map(|slot| f64::from(values[row(slot) + i]));
            let products = values.zip(&weights).map(|(value, weight)| value * weight);
            products.sum::<f64>() / total
        }));
    }
    out
}

const SLOTS: usize = 300;
const SPREAD: HeadLayout = HeadLayout {
    heads: 10,
    kv_heads: 2,
    // With 8 and 16 lanes, vectors of two kinds and single elements.
    head_dim: 60,
};

/// Compares attention over pools of [`SLOTS`] slots with [`exact`], at every level. `widened` has the pools'
/// elements times their scales. Queries are multiplied by `sharp`: with 300, scores differ by some hundreds.
fn compare_with_f64<E: Pooled>(
    pools: [&[E]; 2],
    widened: &[Vec<f32>; 2],
    weighing: &Weighing<'_>,
    window: usize,
    sharp: f32,
) {
    // The slots of another sequence come first.
    let order = (0..SLOTS as i32).map(|slot| slot * 7 % SLOTS as i32);
    let slots: Vec<i32> = [-1; 5].into_iter().chain(order).collect();
    for (seed, tokens) in (3..).zip([1, 2, 9, 40]) {
        let positions: Vec<i32> = (SLOTS - tokens..SLOTS).map(|at| at as i32).collect();
        let table = SlotTable {
            positions: &positions,
            start: &vec![5; tokens],
            slots: &slots,
            window,
        };
        let mut q = noise(tokens * SPREAD.heads * SPREAD.head_dim, seed);
        q.iter_mut().for_each(|q| *q *= sharp);
        let exact: Vec<f64> = (0..tokens)
            .flat_map(|token| {
                let numbers = [&q[..], &widened[0], &widened[1]];
                exact(numbers, SPREAD, weighing, &table, token)
            })
            .collect();
        for level in Level::list() {
            let mut out = vec![f32::NAN; q.len()];
            // SAFETY: the list contains levels that this CPU has.
            unsafe { paged_at(level, &q, pools, SPREAD, weighing, &table, &mut out) };
            for (got, want) in out.iter().zip(&exact) {
                let off = (f64::from(*got) - want).abs();
                // Scores are rounded in f32, and weights change as much as scores do.
                assert!(
                    off <= 1e-6 + 2e-6 * f64::from(sharp),
                    "{level:?}, {tokens} tokens, scores times {sharp}: {got}, not {want}"
                );
            }
        }
    }
}

/// Scores that are only scaled.
fn plain() -> Weighing<'static> {
    Weighing {
        scale: 1.0 / (SPREAD.head_dim as f32).sqrt(),
        cap: None,
        sinks: None,
    }
}

/// Keys and values for [`compare_with_f64`].
fn keys_and_values() -> [Vec<f32>; 2] {
    [1, 2].map(|seed| noise(SLOTS * SPREAD.kv_heads * SPREAD.head_dim, seed))
}

#[test]
fn it_agrees_with_f64_however_far_apart_the_scores_are() {
    with_one_thread(|| {
        let floats = keys_and_values();
        for sharp in [1.0, 20.0, 300.0] {
            let pools = [&floats[0][..], &floats[1]];
            compare_with_f64(pools, &floats, &plain(), usize::MAX, sharp);
        }
    });
}

#[test]
fn caps_sinks_and_windows_agree_with_f64() {
    with_one_thread(|| {
        let floats = keys_and_values();
        let pools = [&floats[0][..], &floats[1]];
        // The weight of a sink is small, nearly all, or none.
        let sinks = [
            0.3,
            -2.0,
            1.0,
            5.0,
            -90.0,
            0.0,
            12.0,
            -1.0,
            f32::NEG_INFINITY,
            2.0,
        ];
        for cap in [None, Some(0.8), Some(50.0)] {
            for sinks in [None, Some(&sinks[..])] {
                for window in [1, 63, 64, 65, 270, usize::MAX] {
                    let weighing = Weighing {
                        cap,
                        sinks,
                        ..plain()
                    };
                    compare_with_f64(pools, &floats, &weighing, window, 20.0);
                }
            }
        }
    });
}

#[test]
fn halves_and_8_bits_agree_with_f64() {
    with_one_thread(|| {
        let floats = keys_and_values();
        let sinks = noise(SPREAD.heads, 10);
        let capped = Weighing {
            cap: Some(3.0),
            sinks: Some(&sinks),
            ..plain()
        };
        for weighing in [plain(), capped] {
            let halves = floats
                .each_ref()
                .map(|pool| converted(pool, bf16::from_f32));
            compare_with_f64(
                [&halves[0], &halves[1]],
                &halves.each_ref().map(|pool| converted(pool, bf16::to_f32)),
                &weighing,
                usize::MAX,
                5.0,
            );
            let halves = floats.each_ref().map(|pool| converted(pool, f16::from_f32));
            compare_with_f64(
                [&halves[0], &halves[1]],
                &halves.each_ref().map(|pool| converted(pool, f16::to_f32)),
                &weighing,
                100,
                5.0,
            );
            let bytes = [13, 14].map(|seed| pool_of_int8(SPREAD, SLOTS, seed));
            let widened = bytes.each_ref().map(|pool| {
                let heads = pool.chunks_exact(i8::SCALE + SPREAD.head_dim);
                let widen = |head: &[i8]| {
                    let (front, head) = head.split_at(i8::SCALE);
                    let scale = f32::from_le_bytes([0, 1, 2, 3].map(|i| front[i].cast_unsigned()));
                    head.iter()
                        .map(|x| f32::from(*x) * scale)
                        .collect::<Vec<_>>()
                };
                heads.flat_map(widen).collect()
            });
            compare_with_f64([&bytes[0], &bytes[1]], &widened, &weighing, usize::MAX, 5.0);
        }
    });
}
