//! Tests of attention: against f64, and how tokens and heads are shared out.

use half::bf16;
use rayon::ThreadPoolBuilder;

use super::softmax::weight;
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
    with_one_thread(compare_with_f64);
}

fn compare_with_f64() {
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
            let exact: Vec<f64> = (0..tokens)
                .flat_map(|token| exact([&q, &keys, &values], layout, &table, token))
                .collect();
            for level in Level::list() {
                let mut out = vec![f32::NAN; q.len()];
                // SAFETY: the list contains levels that this CPU has.
                unsafe {
                    paged_at(
                        level,
                        &q,
                        [&keys, &values],
                        layout,
                        &weighing,
                        &table,
                        &mut out,
                    )
                };
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
}

/// Runs `test` with one thread, so that tasks have many tokens whatever CPU this is.
fn with_one_thread(test: impl FnOnce() + Send) {
    let pool = ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a thread can be started").install(test);
}

/// A pool of 150 slots in 8 bits.
fn pool_of_int8(layout: HeadLayout, seed: u32) -> Vec<i8> {
    let heads = noise(150 * layout.kv_heads * layout.head_dim, seed);
    let heads = heads.chunks_exact(layout.head_dim).zip(1..);
    heads
        .flat_map(|(head, number)| {
            let scale = (1e-5 * number as f32).to_le_bytes().map(u8::cast_signed);
            scale
                .into_iter()
                .chain(head.iter().map(|x| (x * 100.0) as i8))
        })
        .collect()
}

/// Computes a prompt of 150 tokens at once, and then each token alone, at every level, and compares
/// bits.
fn compare_alone_and_together<E: Pooled>(layout: HeadLayout, pools: [&[E]; 2], window: usize) {
    let order: Vec<i32> = (0..150).map(|slot| slot * 7 % 150).collect();
    let positions: Vec<i32> = (0..150).collect();
    let width = layout.heads * layout.head_dim;
    let q = noise(150 * width, 9);
    let sinks = noise(layout.heads, 10);
    for (cap, sinks) in [(None, None), (Some(0.7), Some(&sinks[..]))] {
        let weighing = Weighing {
            scale: 1.3,
            cap,
            sinks,
        };
        for level in Level::list() {
            let compute = |tokens: Range<usize>| {
                let table = SlotTable {
                    positions: &positions[tokens.clone()],
                    start: &vec![0; tokens.len()],
                    slots: &order,
                    window,
                };
                let q = &q[tokens.start * width..tokens.end * width];
                let mut out = vec![f32::NAN; q.len()];
                // SAFETY: the list contains levels that this CPU has.
                unsafe { paged_at(level, q, pools, layout, &weighing, &table, &mut out) };
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let together = compute(0..150);
            for (token, together) in together.chunks_exact(width).enumerate() {
                let alone = compute(token..token + 1);
                assert_eq!(alone, together, "{level:?}, {layout:?}, token {token}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_tokens_and_heads_of_a_task() {
    with_one_thread(compare_layouts);
}

fn compare_layouts() {
    for (heads, kv_heads, head_dim) in [(8, 8, 64), (12, 4, 36), (14, 2, 80), (5, 1, 40)] {
        let layout = HeadLayout {
            heads,
            kv_heads,
            head_dim,
        };
        let floats = [1, 2].map(|seed| noise(150 * kv_heads * head_dim, seed));
        let halves = floats
            .clone()
            .map(|pool| pool.into_iter().map(bf16::from_f32).collect());
        let [keys, values]: [Vec<bf16>; 2] = halves;
        compare_alone_and_together(layout, [&keys, &values], usize::MAX);
        compare_alone_and_together(layout, [&floats[0], &floats[1]], 70);
        let [keys, values] = [3, 4].map(|seed| pool_of_int8(layout, seed));
        compare_alone_and_together(layout, [&keys, &values], usize::MAX);
    }
}

#[test]
fn no_token_sees_those_after_it() {
    with_one_thread(compare_with_other_last_tokens);
}

fn compare_with_other_last_tokens() {
    let layout = HeadLayout {
        heads: 6,
        kv_heads: 2,
        head_dim: 40,
    };
    let (slots, positions): (Vec<i32>, Vec<i32>) = (0..150).map(|i| (i, i)).unzip();
    let table = SlotTable {
        positions: &positions,
        start: &[0; 150],
        slots: &slots,
        window: usize::MAX,
    };
    let weighing = Weighing {
        scale: 1.0,
        cap: None,
        sinks: None,
    };
    let q = noise(150 * 240, 1);
    let [keys, values] = [2, 3].map(|seed| noise(150 * 80, seed));
    let mut without = vec![f32::NAN; q.len()];
    paged(&q, &keys, &values, layout, &weighing, &table, &mut without);
    for last in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let [mut keys, mut values] = [keys.clone(), values.clone()];
        keys[149 * 80..].fill(last);
        values[149 * 80..].fill(last);
        let mut with = vec![0.0; q.len()];
        paged(&q, &keys, &values, layout, &weighing, &table, &mut with);
        assert_eq!(with[..149 * 240], without[..149 * 240]);
        assert!(with[149 * 240..].iter().all(|out| !out.is_finite()));
    }
}

#[test]
#[should_panic(expected = "within the pools")]
fn a_slot_outside_the_pools_is_not_read() {
    let layout = HeadLayout {
        heads: 1,
        kv_heads: 1,
        head_dim: 16,
    };
    let table = SlotTable {
        positions: &[1],
        start: &[0],
        slots: &[0, -1],
        window: usize::MAX,
    };
    let weighing = Weighing {
        scale: 1.0,
        cap: None,
        sinks: None,
    };
    let (pool, mut out) = (noise(32, 1), [0.0; 16]);
    paged(
        &pool[..16],
        &pool,
        &pool,
        layout,
        &weighing,
        &table,
        &mut out,
    );
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
    let weights = (0..=10_000).map(|step| weight::<[f32; 8]>(-0.02 * step as f32));
    let positive: Vec<f32> = weights.filter(|weight| *weight != 0.0).collect();
    assert_eq!(positive.len(), 3001);
    assert!(positive.iter().all(|weight| (weight * 1e-10).is_normal()));
    assert!(weight::<[f32; 8]>(f32::NAN).is_nan());
}

#[test]
fn tasks_have_many_heads_where_that_leaves_no_thread_idle() {
    // One token of Llama-3.2-1B: half of the heads for each of two threads.
    let together = |runs: usize, kv_heads, threads| {
        super::together((100, 100 * runs), runs, kv_heads, threads)
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
