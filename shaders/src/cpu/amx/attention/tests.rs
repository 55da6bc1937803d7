//! Tests attention on the tiles against f64, and every token against itself alone.

use super::*;
use crate::cpu::aligned::Aligned;
use crate::cpu::noise::noise;
use crate::cpu::simd::Stored;

/// Sequences in a pool. All slots that no sequence has are NaN.
struct Case {
    layout: HeadLayout,
    window: usize,
    q: Vec<f32>,
    k: Aligned<bf16>,
    v: Aligned<bf16>,
    positions: Vec<i32>,
    start: Vec<i32>,
    slots: Vec<i32>,
}

/// Pseudo-random values in -2..2.
fn wide_noise(count: usize, seed: u32) -> Vec<f32> {
    let values = noise(count, seed).into_iter();
    values.map(|value| 2.0 * value).collect()
}

impl Case {
    /// `sequences`: the context of each, and the number of its last tokens to compute. The slots
    /// are scattered.
    fn new(shape: [usize; 3], window: usize, sequences: &[(usize, usize)], seed: u32) -> Self {
        Self::with_slots(shape, window, sequences, seed, false)
    }

    /// As `new`; if `follow`, the slots are consecutive.
    fn with_slots(
        [heads, kv_heads, head_dim]: [usize; 3],
        window: usize,
        sequences: &[(usize, usize)],
        seed: u32,
        follow: bool,
    ) -> Self {
        let layout = HeadLayout {
            heads,
            kv_heads,
            head_dim,
        };
        let used: usize = sequences.iter().map(|(context, _)| context).sum();
        let row = kv_heads * head_dim;
        let slot = |i: usize| match follow {
            true => i,
            false => 2 * ((i * 7919) % used),
        };
        let pool = |seed| -> Aligned<bf16> {
            // Half of the slots belong to no sequence.
            let mut pool = Aligned::zeroed(2 * used * row);
            pool.fill(bf16::NAN);
            for (i, values) in wide_noise(used * row, seed).chunks_exact(row).enumerate() {
                let slot = pool[slot(i) * row..][..row].iter_mut();
                slot.zip(values).for_each(|(to, x)| *to = bf16::narrow(*x));
            }
            pool
        };
        let (mut positions, mut start) = (vec![], vec![]);
        let mut first = 0;
        for &(context, tokens) in sequences {
            positions.extend((context - tokens..context).map(|position| position as i32));
            start.extend(std::iter::repeat_n(first, tokens));
            first += context as i32;
        }
        let slots = (0..used).map(|i| slot(i) as i32);
        assert!(!used.is_multiple_of(7919));
        Self {
            layout,
            window,
            q: wide_noise(positions.len() * heads * head_dim, seed),
            k: pool(seed + 1),
            v: pool(seed + 2),
            positions,
            start,
            slots: slots.collect(),
        }
    }

    /// Computes attention of some of the tokens.
    fn run(&self, tokens: Range<usize>) -> Vec<f32> {
        let width = self.layout.heads * self.layout.head_dim;
        let table = SlotTable {
            positions: &self.positions[tokens.clone()],
            start: &self.start[tokens.clone()],
            slots: &self.slots,
            window: self.window,
        };
        let mut out = vec![f32::NAN; tokens.len() * width];
        let q = &self.q[tokens.start * width..tokens.end * width];
        let to = Output::of(&mut out, width);
        let scale = 1.0 / (self.layout.head_dim as f32).sqrt();
        paged(q, &self.k, &self.v, self.layout, scale, &table, to);
        out
    }

    fn reference(&self, token: usize, head: usize) -> Vec<f64> {
        let HeadLayout {
            heads,
            kv_heads,
            head_dim: dim,
        } = self.layout;
        let q = &self.q[(token * heads + head) * dim..][..dim];
        let at = |pool: &[bf16], slot: i32| -> Vec<f64> {
            let at = (slot as usize * kv_heads + head / (heads / kv_heads)) * dim;
            pool[at..at + dim].iter().map(|x| x.to_f64()).collect()
        };
        let end = self.positions[token] as usize + 1;
        let seen = end.saturating_sub(self.window)..end;
        let slots = &self.slots[self.start[token] as usize..][seen];
        let scores = slots.iter().map(|slot| {
            let products = at(&self.k, *slot).into_iter().zip(q);
            products.map(|(k, q)| k * f64::from(*q)).sum::<f64>() / (dim as f64).sqrt()
        });
        let scores: Vec<f64> = scores.collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut mixed = vec![0.0; dim];
        for (slot, weight) in slots.iter().zip(weights) {
            for (mixed, v) in mixed.iter_mut().zip(at(&self.v, *slot)) {
                *mixed += weight / sum * v;
            }
        }
        mixed
    }
}

#[test]
fn powers_are_right_or_zero_and_never_subnormal() {
    if !is_x86_feature_detected!("avx512f") {
        return;
    }
    let power = |x: f32| {
        let mut lanes = [f32::NAN; SIDE];
        // SAFETY: the CPU has the instructions, and the array has 16 elements.
        unsafe {
            let all = vectors::power(std::arch::x86_64::_mm512_set1_ps(x));
            std::arch::x86_64::_mm512_storeu_ps(lanes.as_mut_ptr(), all);
        }
        lanes[7]
    };
    for step in 0..86_500 {
        let x = -0.001 * step as f32;
        let (got, want) = (f64::from(power(x)), f64::from(x).exp2());
        assert!(
            (got / want - 1.0).abs() < 3e-7,
            "2^{x} is {got}, not {want}"
        );
    }
    for far in [-86.6, -120.0, -130.0, -149.0, -1e30, f32::NEG_INFINITY] {
        assert_eq!(power(far), 0.0, "2^{far}");
    }
    assert!(power(f32::NAN).is_nan());
}

/// Heads, KV heads and their size; the window; the sequences.
type Shape<'a> = ([usize; 3], usize, &'a [(usize, usize)]);

const SHAPES: [Shape; 14] = [
    ([9, 3, 64], usize::MAX, &[(100, 100)]),
    (
        [9, 3, 64],
        usize::MAX,
        &[(1, 1), (64, 1), (65, 1), (200, 3)],
    ),
    ([4, 1, 32], usize::MAX, &[(70, 33), (5, 5), (129, 2)]),
    ([8, 2, 128], usize::MAX, &[(130, 70)]),
    ([2, 2, 96], usize::MAX, &[(150, 80)]),
    ([6, 2, 256], usize::MAX, &[(40, 40)]),
    ([71, 1, 64], usize::MAX, &[(67, 4)]),
    ([9, 3, 64], 10, &[(100, 100), (7, 7)]),
    ([4, 2, 64], 64, &[(200, 140)]),
    ([4, 4, 32], 1, &[(70, 70)]),
    // Contexts of several chunks.
    ([9, 3, 64], usize::MAX, &[(700, 40), (257, 1), (513, 2)]),
    ([3, 1, 64], 200, &[(600, 330)]),
    ([8, 1, 128], usize::MAX, &[(1030, 1)]),
    ([2, 2, 32], 256, &[(520, 10), (300, 3)]),
];

#[test]
fn tiles_agree_with_f64_and_read_no_slot_of_other_sequences() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    for (seed, (layout, window, sequences)) in (0..).zip(SHAPES) {
        let case = Case::new(layout, window, sequences, 10 * seed);
        let dim = case.layout.head_dim;
        let out = case.run(0..case.positions.len());
        for (index, out) in out.chunks_exact(dim).enumerate() {
            let (token, head) = (index / case.layout.heads, index % case.layout.heads);
            let want = case.reference(token, head);
            for (got, want) in out.iter().zip(&want) {
                // Values are up to 2, and the two parts of queries and weights are precise to
                // 2^-17.
                let error = (f64::from(*got) - want).abs();
                assert!(
                    error < 2e-4,
                    "{layout:?} of {sequences:?} at {token}, {head}: {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn a_token_attends_with_the_same_bits_alone_and_in_any_chunk() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    for (seed, (layout, window, sequences)) in (0..).zip(SHAPES) {
        let case = Case::new(layout, window, sequences, 10 * seed + 5);
        let tokens = case.positions.len();
        let bits = |out: Vec<f32>| -> Vec<u32> { out.into_iter().map(f32::to_bits).collect() };
        let together = bits(case.run(0..tokens));
        for chunk in [1, 3, 17] {
            let pieces = (0..tokens).step_by(chunk);
            let pieces = pieces.map(|from| from..(from + chunk).min(tokens));
            let apart: Vec<u32> = pieces.flat_map(|tokens| bits(case.run(tokens))).collect();
            assert_eq!(apart, together, "{layout:?} of {sequences:?} by {chunk}");
        }
    }
}

#[test]
fn chunks_have_the_same_bits_apart_and_one_after_another() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    // With one thread, tasks are whole blocks; with many threads, they are chunks.
    let pools = [1, 64].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap()
    });
    for (seed, (layout, window, sequences)) in (0..).zip(SHAPES) {
        let mut case = Case::new(layout, window, sequences, 10 * seed);
        let tokens = 0..case.positions.len();
        for spoiled in [false, true] {
            let (slot, width) = (case.slots[0] as usize, layout[1] * layout[2]);
            if spoiled {
                case.v[slot * width] = bf16::NAN;
            }
            let [whole, apart] = pools
                .each_ref()
                .map(|pool| pool.install(|| case.run(tokens.clone())))
                .map(|out| out.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            assert!(whole == apart, "{layout:?} of {sequences:?}, {spoiled}");
        }
    }
}

#[test]
fn consecutive_slots_give_the_same_bits_as_scattered_slots() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    for (seed, (layout, window, sequences)) in (0..).zip(SHAPES) {
        let [scattered, following] = [false, true]
            .map(|follow| Case::with_slots(layout, window, sequences, 10 * seed, follow));
        let tokens = 0..scattered.positions.len();
        assert_eq!(
            following.run(tokens.clone()),
            scattered.run(tokens),
            "{layout:?} of {sequences:?}"
        );
    }
}

#[test]
fn values_that_are_not_finite_affect_only_tokens_that_attend_them() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    for (context, bad) in [(90, 70), (300, 270)] {
        check_not_finite_at(context, bad);
    }
}

/// Spoils the value at position `bad`: of 90 tokens, only those at this position and after it may
/// be affected.
fn check_not_finite_at(context: usize, bad: usize) {
    let case = || Case::new([4, 2, 64], usize::MAX, &[(context, 90)], 77);
    let (clean, before) = (case(), bad - (context - 90));
    for value in [bf16::NAN, bf16::INFINITY] {
        let mut case = case();
        let at = case.slots[bad] as usize * 2 * 64;
        case.v[at + 5] = value;
        let (out, want) = (case.run(0..90), clean.run(0..90));
        let width = 4 * 64;
        assert_eq!(out[..before * width], want[..before * width]);
        for token in before..90 {
            // The two heads of the first KV head are affected.
            for head in 0..2 {
                assert!(!out[token * width + head * 64 + 5].is_finite());
            }
            let others = 2 * 64..width;
            assert_eq!(
                out[token * width..][others.clone()],
                want[token * width..][others]
            );
        }
        case.k[at..at + 64].fill(bf16::NAN);
        let out = case.run(0..90);
        assert_eq!(out[..before * width], want[..before * width]);
        let first = &out[before * width..][..2 * 64];
        assert!(first.iter().all(|x| x.is_nan()));
    }
}
