//! Tests of attention: against f64, and how tokens and heads are shared out.

use super::*;
use crate::cpu::noise::noise;

/// Attention in f64 of the token `token`, `[heads, head_dim]`, over keys and values `[slots, kv_heads, head_dim]`.
fn exact(
    [q, keys, values]: [&[f32]; 3],
    layout: HeadLayout,
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
            sum / (dim as f64).sqrt()
        };
        let slots = table.visible(token);
        let scores: Vec<f64> = slots.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..dim).map(|i| {
            let values = slots.iter().map(|slot| f64::from(values[row(slot) + i]));
            let products = values.zip(&weights).map(|(value, weight)| value * weight);
            products.sum::<f64>() / total
        }));
    }
    out
}

#[test]
fn it_agrees_with_f64_however_far_apart_the_scores_are() {
    let layout = HeadLayout {
        heads: 10,
        kv_heads: 2,
        head_dim: 36,
    };
    let (slots, width) = (300, layout.kv_heads * layout.head_dim);
    let (keys, values) = (noise(slots * width, 1), noise(slots * width, 2));
    let order: Vec<i32> = (0..slots as i32).map(|slot| slot * 7 % 300).collect();
    for (seed, tokens) in (3..).zip([1, 2, 9, 40]) {
        let positions: Vec<i32> = (slots - tokens..slots).map(|at| at as i32).collect();
        let table = SlotTable {
            positions: &positions,
            start: &vec![0; tokens],
            slots: &order,
            window: usize::MAX,
        };
        // With the last one, scores differ by some hundreds.
        for sharp in [1.0, 20.0, 300.0] {
            let mut q = noise(tokens * layout.heads * layout.head_dim, seed);
            q.iter_mut().for_each(|q| *q *= sharp);
            let weighing = Weighing {
                scale: 1.0 / (layout.head_dim as f32).sqrt(),
                cap: None,
                sinks: None,
            };
            let mut out = vec![f32::NAN; q.len()];
            paged(&q, &keys, &values, layout, &weighing, &table, &mut out);
            for (token, out) in out.chunks_exact(layout.heads * layout.head_dim).enumerate() {
                let exact = exact([&q, &keys, &values], layout, &table, token);
                for (got, want) in out.iter().zip(exact) {
                    let off = (f64::from(*got) - want).abs();
                    // Scores are rounded in f32, and weights change as much as scores do.
                    assert!(
                        off <= 1e-6 + 2e-6 * f64::from(sharp),
                        "{tokens} tokens, scores times {sharp}: {got}, not {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn tokens_share_a_task_where_they_follow_each_other_and_see_the_same_first_position() {
    let table = |positions, start, window| SlotTable {
        positions,
        start,
        slots: &[],
        window,
    };
    // A prompt of five tokens, one of two that begins elsewhere, and a decoding token.
    let (positions, start) = (&[0, 1, 2, 3, 4, 5, 6, 7], &[0, 0, 0, 0, 0, 9, 9, 40]);
    let runs = table(positions, start, 100).runs(3);
    assert_eq!(runs, [0..3, 3..5, 5..7, 7..8]);
    // The window has left the first position behind from token 3 on.
    let runs = table(&positions[..5], &start[..5], 3).runs(8);
    assert_eq!(runs, [0..3, 3..4, 4..5]);
    // A position is left out.
    assert_eq!(table(&[3, 5], &[0, 0], 100).runs(8), [0..1, 1..2]);
}

#[test]
fn no_weight_is_so_small_that_its_product_with_a_value_is_subnormal() {
    let weights = (0..=10_000).map(|step| weight(-0.02 * step as f32));
    let positive: Vec<f32> = weights.filter(|weight| *weight != 0.0).collect();
    assert_eq!(positive.len(), 3001);
    assert!(positive.iter().all(|weight| (weight * 1e-10).is_normal()));
    assert!(weight(f32::NAN).is_nan());
}

#[test]
fn tasks_have_many_heads_where_that_leaves_no_thread_idle() {
    // One token of Llama-3.2-1B: half of the heads for each of two threads.
    let together = |tokens: usize, kv_heads, threads| {
        super::together((100, 100 * tokens), tokens, kv_heads, threads)
    };
    assert_eq!(together(1, 8, 2), 4);
    assert_eq!(together(3, 8, 2), 4);
    assert_eq!(together(4, 8, 2), 8);
    assert_eq!(together(512, 8, 2), 8);
    assert_eq!(together(1, 8, 16), 1);
    assert_eq!(together(4, 8, 16), 2);
    // An odd number of heads for an even number of threads.
    assert_eq!(together(1, 3, 2), 1);
    assert_eq!(together(16, 3, 2), 3);
    // One thread does not get all of the only long sequence.
    assert_eq!(super::together((8000, 8010), 2, 8, 2), 4);
    assert_eq!(super::together((32_000, 33_500), 16, 8, 16), 1);
}
