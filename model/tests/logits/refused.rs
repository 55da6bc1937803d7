//! Batches that would index out of the model.

use hearth_forward::{ForwardBatch, SequenceSpan};

use super::golden::{CPU, SLOTS, goldens, load};

#[test]
fn a_batch_that_would_index_out_of_the_model_is_refused() {
    let golden = &goldens()[0];
    let mut decoder = load(golden, CPU);
    let good = || ForwardBatch {
        tokens: vec![1],
        positions: vec![0],
        write_slots: vec![0],
        sequences: vec![SequenceSpan {
            tokens: 1,
            context: 1,
            first_slot: 0,
        }],
        slot_table: vec![0],
        logit_rows: vec![0],
        ..ForwardBatch::default()
    };
    let output = decoder.forward(&good(), &mut Vec::new);
    assert_eq!(output.expect("a good batch").logits.len(), golden.vocab);
    let bad = [
        (
            ForwardBatch {
                tokens: vec![golden.vocab as u32],
                ..good()
            },
            "token",
        ),
        (
            ForwardBatch {
                positions: vec![SLOTS as u32],
                ..good()
            },
            "position",
        ),
        (
            ForwardBatch {
                write_slots: vec![SLOTS as u32],
                ..good()
            },
            "slot",
        ),
        (
            ForwardBatch {
                slot_table: vec![SLOTS as u32],
                ..good()
            },
            "slot",
        ),
        (
            ForwardBatch {
                logit_rows: vec![1],
                ..good()
            },
            "logit row",
        ),
        (
            ForwardBatch {
                hidden_rows: vec![1],
                ..good()
            },
            "hidden row",
        ),
        (
            ForwardBatch {
                slot_table: vec![],
                ..good()
            },
            "slots",
        ),
        (
            ForwardBatch {
                positions: vec![],
                ..good()
            },
            "positions",
        ),
        (
            ForwardBatch {
                positions: vec![5],
                ..good()
            },
            "position in its sequence",
        ),
    ];
    for (batch, word) in bad {
        let error = decoder
            .forward(&batch, &mut Vec::new)
            .expect_err("a bad batch")
            .to_string();
        assert!(error.contains(word), "{error}");
    }
}
