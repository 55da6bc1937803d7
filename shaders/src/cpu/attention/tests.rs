//! Tests of attention: what an output must not depend on, and how tokens and heads are shared out.

mod exact;

use std::panic::catch_unwind;

use half::bf16;
use rayon::ThreadPoolBuilder;

use super::softmax::weight;
use super::*;
use crate::cpu::noise::noise;

/// The numbers, each as `to` returns it.
fn converted<A: Copy, B>(numbers: &[A], to: impl Fn(A) -> B) -> Vec<B> {
    numbers.iter().map(|x| to(*x)).collect()
}

/// Runs `test` with one thread, so that tasks have many tokens whatever CPU this is.
fn with_one_thread(test: impl FnOnce() + Send) {
    let pool = ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a thread can be started").install(test);
}

/// A pool in 8 bits. Each head has another scale.
fn pool_of_int8(layout: HeadLayout, slots: usize, seed: u32) -> Vec<i8> {
    let heads = noise(slots * layout.kv_heads * layout.head_dim, seed);
    let scales = noise(slots * layout.kv_heads, seed + 50);
    let heads = heads.chunks_exact(layout.head_dim).zip(scales);
    heads
        .flat_map(|(head, scale)| {
            let scale = (3e-3 + 2e-3 * scale).to_le_bytes().map(u8::cast_signed);
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
        let [keys, values] = floats
            .each_ref()
            .map(|pool| converted(pool, bf16::from_f32));
        compare_alone_and_together(layout, [&keys, &values], usize::MAX);
        compare_alone_and_together(layout, [&floats[0], &floats[1]], 70);
        let [keys, values] = [3, 4].map(|seed| pool_of_int8(layout, 150, seed));
        compare_alone_and_together(layout, [&keys, &values], usize::MAX);
    }
}

#[test]
fn no_token_sees_those_after_it() {
    with_one_thread(|| {
        let layout = HeadLayout {
            heads: 6,
            kv_heads: 2,
            head_dim: 40,
        };
        let floats = [2, 3].map(|seed| noise(150 * 80, seed));
        let halves = floats
            .each_ref()
            .map(|pool| converted(pool, bf16::from_f32));
        let bytes = [2, 3].map(|seed| pool_of_int8(layout, 150, seed));
        for last in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            compare_with_other_last_tokens(layout, &floats, |slot| slot.fill(last));
            compare_with_other_last_tokens(layout, &halves, |slot| {
                slot.fill(bf16::from_f32(last));
            });
        }
        // The format has no other scale that is not finite.
        compare_with_other_last_tokens(layout, &bytes, |slot| {
            for head in slot.chunks_exact_mut(i8::SCALE + layout.head_dim) {
                let scale = f32::NAN.to_le_bytes().map(u8::cast_signed);
                head[..i8::SCALE].copy_from_slice(&scale);
            }
        });
    });
}

/// Computes a prompt of 150 tokens over the pools, and again after `spoil` has written numbers that are not
/// finite to the last token's slot of both. Only the last token's output may change.
fn compare_with_other_last_tokens<E: Pooled>(
    layout: HeadLayout,
    pools: &[Vec<E>; 2],
    spoil: impl Fn(&mut [E]),
) {
    let (slots, positions): (Vec<i32>, Vec<i32>) = (0..150).map(|i| (i, i)).unzip();
    let table = SlotTable {
        positions: &positions,
        start: &[0; 150],
        slots: &slots,
        window: usize::MAX,
    };
    let width = layout.heads * layout.head_dim;
    let q = noise(150 * width, 1);
    let sinks = noise(layout.heads, 4);
    let mut spoilt = pools.clone();
    for pool in &mut spoilt {
        let slot = pool.len() / 150;
        spoil(&mut pool[149 * slot..]);
    }
    for (cap, sinks) in [(None, None), (Some(0.7), Some(&sinks[..]))] {
        let weighing = Weighing {
            scale: 1.0,
            cap,
            sinks,
        };
        for level in Level::list() {
            let compute = |[keys, values]: &[Vec<E>; 2]| {
                let mut out = vec![f32::NAN; q.len()];
                // SAFETY: the list contains levels that this CPU has.
                unsafe {
                    paged_at(
                        level,
                        &q,
                        [keys, values],
                        layout,
                        &weighing,
                        &table,
                        &mut out,
                    );
                };
                out
            };
            let without = compute(pools);
            let with = compute(&spoilt);
            let (before, last) = with.split_at(149 * width);
            let without = converted(&without[..149 * width], f32::to_bits);
            assert!(converted(before, f32::to_bits) == without, "{level:?}");
            assert!(last.iter().all(|out| !out.is_finite()), "{level:?}");
        }
    }
}

#[test]
fn a_slot_outside_the_pools_is_not_read() {
    let layout = HeadLayout {
        heads: 1,
        kv_heads: 1,
        head_dim: 16,
    };
    let weighing = Weighing {
        scale: 1.0,
        cap: None,
        sinks: None,
    };
    // Two slots.
    let pool = noise(32, 1);
    let attend = |slot| {
        let table = SlotTable {
            positions: &[1],
            start: &[0],
            slots: &[0, slot],
            window: usize::MAX,
        };
        let mut out = [0.0; 16];
        paged(
            &pool[..16],
            &pool,
            &pool,
            layout,
            &weighing,
            &table,
            &mut out,
        );
    };
    attend(1);
    for slot in [2, 3, i32::MAX, -1, i32::MIN] {
        let panic = catch_unwind(|| attend(slot)).expect_err("the slot is outside");
        let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(message.contains("within the pools"), "{slot}: {message}");
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
