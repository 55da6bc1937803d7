//! Checks the memory of KV pools word by word: heads that are rounded to 8 bits, and copies of slots.

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData};
use hearth_forward::SequenceSpan;
use hearth_shaders::check::Random;
use hearth_shaders::{
    AttentionOptions, HeadLayout, Kernels, KvFormat, RaggedIndex, RopeTable, Summation, indices,
};

use super::{fresh_random, half_precisions};

/// The word in all memory that is not written.
const UNTOUCHED: u32 = 0xdead_beef;

/// The words of a head in 8 bits: the definition, element by element and in f64 where f32 rounds.
fn rounded(head: &[f32]) -> Vec<u32> {
    if head.iter().any(|x| !x.is_finite()) {
        return [vec![f32::NAN.to_bits()], vec![0; head.len() / 4]].concat();
    }
    let largest = head.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    if largest < 1e-30 {
        return vec![0; 1 + head.len() / 4];
    }
    let inverse = 127.0f32 / largest;
    let mut words = vec![(largest / 127.0).to_bits()];
    for four in head.chunks(4) {
        let mut word = 0;
        for (place, x) in four.iter().enumerate() {
            let integer = f64::from(x * inverse).round_ties_even();
            assert!((-127.0..=127.0).contains(&integer));
            word |= u32::from(integer as i8 as u8) << (8 * place);
        }
        words.push(word);
    }
    words
}

/// True if a GPU may store `got` for `want`: it may round a division by a little, and a product together
/// with the sum after it, which moves a number that is near a tie to the next integer.
fn is_near(got: u32, want: u32, is_scale: bool) -> bool {
    if got == want || want == UNTOUCHED {
        return got == want;
    }
    if is_scale {
        return got.abs_diff(want) <= 4;
    }
    let bytes = got.to_le_bytes().into_iter().zip(want.to_le_bytes());
    bytes
        .map(|(got, want)| (got as i8).abs_diff(want as i8))
        .all(|difference| difference <= 1)
}

/// Heads whose rounding is special.
fn special(head_dim: usize, random: &mut Random) -> Vec<Vec<f32>> {
    let with = |first: f32, others: Vec<f32>| [vec![first], others[1..].to_vec()].concat();
    let normal = random.normal(head_dim);
    let scaled = |by: f32| normal.iter().map(|x| x * by).collect::<Vec<f32>>();
    // Between two integers, where a tie goes to the even one.
    let ties = (0..head_dim).map(|i| (i % 120) as f32 - 60.5).collect();
    vec![
        vec![0.0; head_dim],
        with(-127.0, ties),
        with(f32::NAN, normal.clone()),
        with(f32::NEG_INFINITY, normal.clone()),
        with(f32::MAX, scaled(1e38)),
        scaled(1e-25),
        scaled(1e-32),
        with(-1.0, vec![0.0; head_dim]),
    ]
}

fn upload<B: Kernels>(words: &[u32], rows: usize, device: &B::Device) -> IntTensor<B> {
    let words = Tensor::<B, 1, Int>::from_primitive(indices::<B>(words, device));
    words.reshape([rows as i32, -1]).into_primitive()
}

fn all(slots: usize) -> Vec<u32> {
    (0..slots as u32).collect()
}

/// A pool whose memory is `words`.
fn pool<B: Kernels>(
    words: &[u32],
    shape: [usize; 3],
    dtype: DType,
    device: &B::Device,
) -> FloatTensor<B> {
    let mut pool = B::empty_pool(device, shape, dtype);
    match B::in_memory(&mut pool) {
        Some(memory) => {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            memory.copy_from_slice(&bytes.collect::<Vec<u8>>());
        }
        None => {
            let slots = indices::<B>(&all(shape[0]), device);
            B::write_slots(&mut pool, slots, upload::<B>(words, shape[0], device));
        }
    }
    pool
}

/// The words of `slots`.
fn words_of<B: Kernels>(pool: &FloatTensor<B>, slots: &[u32], device: &B::Device) -> Vec<u32> {
    let rows = B::read_slots(pool, indices::<B>(slots, device));
    let rows = Tensor::<B, 2, Int>::from_primitive(rows).into_data();
    let words = rows.as_bytes().as_chunks::<4>().0.iter();
    words.map(|word| u32::from_le_bytes(*word)).collect()
}

/// All words of a pool.
fn memory<B: Kernels>(mut pool: FloatTensor<B>, slots: usize, device: &B::Device) -> Vec<u32> {
    match B::in_memory(&mut pool) {
        Some(memory) => {
            let words = memory.as_chunks::<4>().0.iter();
            words.map(|word| u32::from_le_bytes(*word)).collect()
        }
        None => words_of::<B>(&pool, &all(slots), device),
    }
}

pub fn heads_in_8_bits_are_stored_to_the_bit<B: Kernels>(device: &B::Device, backend: &str) {
    let (mut random, seed) = fresh_random();
    for (heads, kv_heads, head_dim) in [(4, 2, 64), (3, 1, 4), (2, 2, 20), (1, 1, 256)] {
        let layout = HeadLayout {
            heads,
            kv_heads,
            head_dim,
        };
        let special = special(head_dim, &mut random);
        let tokens = special.len() + 7;
        let slots = tokens + 5;
        let write_slots = random.distinct(tokens, slots);
        let width = KvFormat::Int8.head_width(head_dim);
        let mut qkv = random.normal(tokens * layout.qkv_width());
        for (token, head) in special.iter().enumerate() {
            let row = &mut qkv[token * layout.qkv_width()..][..layout.qkv_width()];
            // As one of the keys, and as one of the values.
            for at in [heads, heads + 2 * kv_heads - 1] {
                row[at * head_dim..][..head_dim].copy_from_slice(head);
            }
        }
        let nothing = vec![UNTOUCHED; slots * kv_heads * width];
        let mut want = [nothing.clone(), nothing.clone()];
        for (row, slot) in qkv.chunks(layout.qkv_width()).zip(&write_slots) {
            let stored = row[heads * head_dim..].chunks(head_dim).map(rounded);
            for (index, head) in stored.enumerate() {
                let at = (*slot as usize * kv_heads + index % kv_heads) * width;
                want[index / kv_heads][at..at + width].copy_from_slice(&head);
            }
        }
        let float = |values: Vec<f32>, shape: [usize; 2]| {
            B::float_from_data(TensorData::new(values, shape), device)
        };
        let rope = RopeTable::<B> {
            cos: float(vec![1.0], [1, 1]),
            sin: float(vec![0.0], [1, 1]),
            rotary_dim: 0,
        };
        let span = SequenceSpan {
            context: tokens as u32,
            tokens: tokens as u32,
            first_slot: 0,
        };
        let index = RaggedIndex::<B>::upload(
            &vec![0; tokens],
            &write_slots,
            &[span],
            &write_slots,
            layout,
            Summation::Fastest,
            device,
        );
        let shape = [slots, kv_heads, width];
        let pool = || pool::<B>(&nothing, shape, KvFormat::Int8.dtype(), device);
        let (mut k, mut v) = (pool(), pool());
        let qkv = float(qkv, [tokens, layout.qkv_width()]);
        B::rope_and_store(qkv, layout, None, &rope, &index, &mut k, &mut v);
        let [k, v] = [k, v].map(|pool| memory::<B>(pool, slots, device));
        for (what, got, want) in [("k", k, &want[0]), ("v", v, &want[1])] {
            let is_scale = |at: usize| at.is_multiple_of(width);
            let same = |at: usize| match backend {
                "cpu" => got[at] == want[at],
                _ => is_near(got[at], want[at], is_scale(at)),
            };
            if let Some(at) = (0..got.len()).find(|at| !same(*at)) {
                panic!(
                    "{backend}, seed {seed}, {layout:?}: word {at} of {what} is {:#x}, not {:#x}",
                    got[at], want[at]
                );
            }
        }
    }
    values_that_are_not_finite_stay_visible::<B>(device, backend);
}

/// Attention to a key or a value that is not finite gives NaN, and to the slots beside it does not.
fn values_that_are_not_finite_stay_visible<B: Kernels>(device: &B::Device, backend: &str) {
    let layout = HeadLayout {
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
    };
    let ones = rounded(&[1.0; 16]);
    let lost = rounded(&[[f32::INFINITY; 8], [1.0; 8]].concat());
    let shape = [3, 1, ones.len()];
    let dtype = KvFormat::Int8.dtype();
    let whole = || pool::<B>(&[&ones[..]; 3].concat(), shape, dtype, device);
    let second_lost = || {
        let words = [&ones[..], &lost[..], &ones[..]].concat();
        pool::<B>(&words, shape, dtype, device)
    };
    let sinks = || B::float_from_data(TensorData::new(vec![0.5f32; 2], [2]), device);
    let capped = AttentionOptions {
        cap: Some(2.0),
        ..AttentionOptions::plain(16)
    };
    let sunk = AttentionOptions {
        sinks: Some(sinks()),
        ..AttentionOptions::plain(16)
    };
    let plain = AttentionOptions::plain(16);
    let pools = [(whole(), second_lost()), (second_lost(), whole())];
    let cases = pools.iter().flat_map(|pools| {
        let options = [(&plain, true), (&capped, true), (&sunk, false)];
        options.map(|(options, to_one)| (pools, options, to_one))
    });
    let slots = [(vec![0, 2], true), (vec![0, 1], false), (vec![1], false)];
    // More positions than one split has.
    let long = (0..3000).map(|at| if at == 2900 { 1 } else { 0 });
    let long = [(vec![0; 3000], true), (long.collect(), false)];
    for (((k, v), options, to_one), (slots, finite)) in
        cases.flat_map(|case| slots.iter().chain(&long).map(move |slots| (case, slots)))
    {
        let context = slots.len() as u32;
        let span = SequenceSpan {
            context,
            tokens: 1,
            first_slot: 0,
        };
        let order = Summation::Fixed;
        let last = [context - 1];
        let index = RaggedIndex::<B>::upload(&last, &[0], &[span], slots, layout, order, device);
        let q = B::float_from_data(TensorData::new(vec![0.5f32; 32], [1, 32]), device);
        let mixed = B::paged_attention(q, layout, &index, options, k, v);
        let mixed = Tensor::<B, 2>::from_primitive(burn::tensor::TensorPrimitive::Float(mixed));
        let mixed: Vec<f32> = mixed.into_data().into_vec().expect("floats");
        for x in mixed {
            let as_expected = if *finite {
                x.is_finite() && (!to_one || (x - 1.0).abs() < 1e-5)
            } else {
                x.is_nan()
            };
            assert!(
                as_expected,
                "{backend}: {x} from {context} slots, finite: {finite}"
            );
        }
    }
}

pub fn slots_are_copied_to_the_bit<B: Kernels>(device: &B::Device, backend: &str) {
    if backend == "cpu" {
        // Its pools are copied in the host's memory.
        return;
    }
    let (mut random, seed) = fresh_random();
    let floats = [&[DType::F32], half_precisions(backend)].concat();
    let formats = floats.into_iter().map(KvFormat::Floats);
    for format in formats.chain([KvFormat::Int8]) {
        let (slots, kv_heads, head_dim) = (700, 3, 20);
        let words = kv_heads * format.head_bytes(head_dim) / 4;
        let shape = [slots, kv_heads, format.head_width(head_dim)];
        let mut random_words = |count: usize| -> Vec<u32> {
            // Any bits, among them those of NaN and of subnormal numbers.
            (0..count).map(|_| random.bits() as u32).collect()
        };
        let before = random_words(slots * words);
        let rows = random_words(300 * words);
        let mut pool = pool::<B>(&before, shape, format.dtype(), device);
        let to = random.distinct(300, slots);
        B::write_slots(
            &mut pool,
            indices::<B>(&to, device),
            upload::<B>(&rows, 300, device),
        );
        let mut want = before;
        for (row, slot) in rows.chunks(words).zip(&to) {
            want[*slot as usize * words..][..words].copy_from_slice(row);
        }
        let from = random.distinct(slots, slots);
        let got = words_of::<B>(&pool, &from, device);
        let want = from
            .iter()
            .flat_map(|slot| &want[*slot as usize * words..][..words]);
        assert!(got.iter().eq(want), "{backend}, seed {seed}: {format}");
    }
}
