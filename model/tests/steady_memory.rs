//! The memory that a GPU's pool reserves does not grow while batches of all shapes are computed.
//!
//! `HEARTH_STEADY_STEPS` sets the number of batches.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use hearth_forward::{ForwardBatch, SampleParams, SampleRequest, SequenceSpan};
use hearth_model::checkpoint::{Checkpoint, LoadFormat};
use hearth_model::device::{self, Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::{Decoder, LoadOptions};

const SLOTS: usize = 6 * LONGEST;
const LONGEST: usize = 128;
const DEFAULT_STEPS: usize = 400;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn within(&mut self, low: usize, high: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        low + ((z ^ (z >> 31)) % (high - low + 1) as u64) as usize
    }
}

/// One forward pass of a few sequences that decode, the first of which may be a prompt instead.
fn step(decoder: &mut dyn Decoder, random: &mut Random) {
    let mut batch = ForwardBatch::default();
    let mut rows = Vec::new();
    for sequence in 0..random.within(1, 6) {
        let context = random.within(1, LONGEST);
        let new = match sequence == 0 && random.within(0, 1) == 0 {
            true => random.within(1, context.min(40)),
            false => 1,
        };
        let first = (sequence * LONGEST) as u32;
        batch.sequences.push(SequenceSpan {
            tokens: new as u32,
            context: context as u32,
            first_slot: batch.slot_table.len() as u32,
        });
        batch.slot_table.extend(first..first + context as u32);
        for position in context - new..context {
            batch.tokens.push(random.within(0, 250) as u32);
            batch.positions.push(position as u32);
            batch.write_slots.push(first + position as u32);
        }
        rows.push(batch.tokens.len() as u32 - 1);
    }
    // Some rows leave the device as logits, and for others only a token does, masked or not.
    let split = random.within(0, rows.len() - 1);
    let mut request = || {
        let mask = random.within(0, 1) == 0;
        let mask = mask.then(|| Arc::from([0x00ff_00ff; 8]));
        SampleRequest::Token(SampleParams {
            mask,
            ..SampleParams::GREEDY
        })
    };
    batch.sample_rows = rows.split_off(split);
    batch.logit_rows = rows;
    let mut requests = || batch.sample_rows.iter().map(|_| request()).collect();
    let output = decoder
        .forward(&batch, &mut requests)
        .expect("a forward pass");
    assert_eq!(output.sampled.len(), batch.sample_rows.len());
}

fn stays_the_same(api: Api) {
    let spec = DeviceSpec::Named { api, index: None };
    if device::choose(&spec, &device::list()).is_err() {
        assert!(
            std::env::var_os("HEARTH_REQUIRE_VULKAN").is_none(),
            "HEARTH_REQUIRE_VULKAN is set, but there is no {spec}"
        );
        return eprintln!("skipped: no {spec} on this machine");
    }
    let steps = match std::env::var("HEARTH_STEADY_STEPS") {
        Ok(given) => given.parse().expect("HEARTH_STEADY_STEPS is a number"),
        Err(_) => DEFAULT_STEPS,
    };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/llama-llama3-tied");
    let golden = golden.to_str().expect("a path in UTF-8");
    let checkpoint = Checkpoint::open(golden, LoadFormat::Safetensors).expect("it opens");
    let options = LoadOptions {
        device: spec,
        dtype: Some(Dtype::F32),
        kv_tokens: Some(SLOTS),
        max_model_len: Some(LONGEST),
        ..LoadOptions::default()
    };
    let mut decoder = hearth_model::load(&checkpoint, &options).expect("it loads");
    let seed = RandomState::new().hash_one(0);
    eprintln!("seed {seed}");
    let mut random = Random(seed);
    // In the first half the pool grows to the size that the largest batches need.
    let mut before = 0;
    for done in 1..=steps {
        step(decoder.as_mut(), &mut random);
        let reserved = || decoder.reserved_bytes().expect("a GPU has a pool");
        if done == steps / 2 {
            before = reserved();
        }
        if done.is_multiple_of((steps / 20).max(1)) {
            eprintln!("{spec}: {} bytes after {done} steps", reserved());
        }
    }
    let after = decoder.reserved_bytes().expect("a GPU has a pool");
    // A combination of sizes that did not occur in the first half may add a page.
    assert!(
        after <= before + before / 4,
        "{spec}: the pool grew from {before} to {after}"
    );
}

#[test]
fn the_pool_of_vulkan_does_not_grow() {
    stays_the_same(Api::Vulkan);
}

#[test]
fn the_pool_of_webgpu_does_not_grow() {
    stays_the_same(Api::WebGpu);
}
