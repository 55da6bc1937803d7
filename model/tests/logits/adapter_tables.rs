//! Adapters with whole tables: an embedding or an output projection in place of the base model's.

use hearth_forward::AdaptedMatrix::{Embedding, LmHead};
use hearth_model::device::Api;
use hearth_model::dtype::Dtype;
use hearth_model::lora::{self, LoraError};
use hearth_model::weights::Quantization;

use super::adapters::{RANK, Row, agrees_in_parts, forward, golden, path, read, some_table};
use super::golden::{
    CPU, assert_close, feed, feed_adapted, load_with_adapters, load_with_tables, wgpu_devices,
};

/// As `save_embedding_layers` does it whenever an embedding is a target.
#[test]
fn a_table_that_is_the_base_models_needs_no_room() {
    let golden = golden("tables");
    let with_base = read(&path("tables-with-base"), &golden);
    assert!(!with_base.has_tables());
    assert_eq!(with_base.digest, read(&path("tables"), &golden).digest);
}

#[test]
fn the_tables_of_an_adapter_are_those_that_peft_replaces() {
    for (name, want) in [
        ("saved-tables", &[Embedding, LmHead][..]),
        ("saved-head-tied", &[LmHead]),
        ("saved-embedding-tied", &[Embedding]),
        ("saved-tied-ensured", &[Embedding, LmHead]),
        ("changed-tables-tied", &[Embedding, LmHead]),
        ("changed-tables-dora", &[Embedding, LmHead]),
    ] {
        let adapter = read(&path(name), &golden(name));
        let found: Vec<_> = adapter.tables.iter().map(|table| table.matrix).collect();
        assert_eq!(found, want, "{name}");
    }
}

#[test]
fn tables_in_parts_agree_with_peft() {
    // 256 rows of 48 numbers in f32 are 49152 bytes.
    let largest = Some(40_000);
    for name in ["saved-tables", "changed-tables-dora"] {
        agrees_in_parts(CPU, name, &path(name), largest);
    }
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        agrees_in_parts(device, "saved-tables", &path("saved-tables"), largest);
    }
}

/// In bf16 on a CPU, tables are packed as the base model's matrices; over quantized matrices they are not
/// quantized.
#[test]
fn tables_are_close_to_peft_in_bf16_and_over_quantized_matrices() {
    let golden = golden("saved-head-tied");
    let adapter = read(&path("saved-head-tied"), &golden);
    for (dtype, quantization, most) in [
        (Dtype::Bf16, None, 0.03),
        (Dtype::F32, Some(Quantization::Int8), 0.1),
    ] {
        let slots = [1, 1];
        let mut decoder = load_with_tables(&golden, CPU, dtype, quantization, slots, None);
        decoder.load_adapter(1, &adapter).expect("it is loaded");
        let logits = feed_adapted(decoder.as_mut(), &golden.prompt, 0, 1);
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
        let pairs = logits.iter().zip(&golden.prefill);
        let errors = square(&mut pairs.map(|(got, want)| got - want));
        let error = (errors / square(&mut golden.prefill.iter().copied())).sqrt();
        assert!(error < most, "{dtype} {quantization:?}: off by {error}");
    }
}

#[test]
fn a_slot_with_tables_is_overwritten_whole_and_a_wrong_table_leaves_the_base_model() {
    let golden = golden("saved-head-tied");
    let head = read(&path("saved-head-tied"), &golden);
    let embedding = read(&path("saved-embedding-tied"), &golden);
    let plain = read(&path("list"), &golden);
    let mut decoder = load_with_tables(&golden, CPU, Dtype::F32, None, [2, 1], None);
    let decoder = decoder.as_mut();
    let base = feed(decoder, &golden.prompt, 0);
    let mut without = load_with_adapters(&golden, CPU, Dtype::F32, None, 1);
    without.load_adapter(1, &plain).expect("it is loaded");
    let of_plain = feed_adapted(without.as_mut(), &golden.prompt, 0, 1);
    for before in [&head, &embedding, &plain] {
        decoder.load_adapter(1, before).expect("it is loaded");
        decoder.load_adapter(1, &head).expect("it is loaded");
        let logits = feed_adapted(decoder, &golden.prompt, 0, 1);
        assert_close("after another adapter", &logits, &golden.prefill);
        decoder.load_adapter(1, &plain).expect("it is loaded");
        assert!(feed_adapted(decoder, &golden.prompt, 0, 1) == of_plain);
    }
    let mut wrong = head.clone();
    wrong.tables[0].bytes = std::sync::Arc::new(vec![0; 12]);
    for wrong in [&wrong, &head] {
        // The second slot has no room.
        let slot = if wrong == &head { 2 } else { 1 };
        decoder.load_adapter(slot, &plain).expect("it is loaded");
        assert!(decoder.load_adapter(slot, wrong).is_err());
        assert!(feed_adapted(decoder, &golden.prompt, 0, slot) == base);
    }
    assert!(without.load_adapter(1, &head).is_err());
}

/// Batches with and without rows of the base model, and with one adapter alone.
#[test]
fn rows_of_adapters_with_tables_have_the_bits_that_they_have_alone() {
    let golden = golden("saved-tables");
    let mut decoder = load_with_tables(&golden, CPU, Dtype::F32, None, [3, 2], None);
    let decoder = decoder.as_mut();
    let mut adapter = read(&path("saved-tables"), &golden);
    decoder.load_adapter(1, &adapter).expect("it is loaded");
    let logits = feed_adapted(decoder, &golden.prompt, 0, 1);
    assert_close("the first", &logits, &golden.prefill);
    adapter.tables = vec![some_table(LmHead, &golden, 7)];
    decoder.load_adapter(2, &adapter).expect("it is loaded");
    adapter.tables.clear();
    decoder.load_adapter(3, &adapter).expect("it is loaded");
    let row = |adapter: u32, first: u32| Row {
        tokens: &golden.prompt[..5],
        adapter,
        chunk: 5,
        first,
    };
    let alone = [0, 1, 2, 3].map(|adapter| forward(decoder, &[row(adapter, 0)]).remove(0));
    for batch in [
        &[1, 2][..],
        &[2, 1, 2, 1],
        &[1, 1],
        &[0, 1, 2, 3],
        &[3, 2],
        &[2, 0, 0, 2, 1],
    ] {
        let rows: Vec<_> = (0..)
            .zip(batch)
            .map(|(n, adapter)| row(*adapter, 5 * n))
            .collect();
        let together = forward(decoder, &rows);
        for (got, adapter) in together.iter().zip(batch) {
            let want = &alone[*adapter as usize];
            assert!(got == want, "adapter {adapter} in {batch:?}");
        }
    }
}

#[test]
fn tables_are_neither_scaled_nor_added_up() {
    let golden = golden("saved-head-tied");
    let adapter = read(&path("saved-head-tied"), &golden);
    let plain = read(&path("list"), &golden);
    let alone = lora::combined(&[(&adapter, 1.0), (&plain, 0.0)], RANK).expect("one adapter");
    assert!(alone == adapter);
    for parts in [
        &[(&adapter, 0.5)][..],
        &[(&adapter, 1.0), (&plain, 1.0)],
        &[(&adapter, 1.0), (&adapter, 1.0)],
    ] {
        let error = lora::combined(parts, RANK).unwrap_err();
        assert!(matches!(error, LoraError::TablesInSum), "{error}");
        assert!(error.to_string().contains("modules_to_save"), "{error}");
    }
    let error = lora::check_tables(&adapter, 0).unwrap_err().to_string();
    assert!(error.contains("49152 bytes"), "{error}");
    assert!(lora::check_tables(&adapter, 1).is_ok() && lora::check_tables(&plain, 0).is_ok());
}
