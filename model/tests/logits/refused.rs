//! Batches that would index out of the model.

use hearth_model::runner::{Batch, SequenceSpan};

use super::golden::{CPU, SLOTS, goldens, load};

#[test]
fn a_batch_that_would_index_out_of_the_model_is_refused() {
    let golden = &goldens()[0];
    let mut decoder = load(golden, CPU);
    let span = SequenceSpan {
        first_token: 0,
        tokens: 1,
        context: 1,
        first_slot: 0,
    };
    let good = Batch {
        tokens: &[1],
        carried: &[],
        positions: &[0],
        write_slots: &[0],
        sequences: &[span],
        slot_table: &[0],
        logit_rows: &[0],
        hidden_rows: &[],
        choice_rows: &[],
    };
    let outputs = decoder.forward(&good, &mut Vec::new).expect("a good batch");
    assert_eq!(outputs.logits.len(), golden.vocab);
    let bad = [
        (
            Batch {
                tokens: &[golden.vocab as u32],
                ..good
            },
            "token",
        ),
        (
            Batch {
                positions: &[SLOTS as u32],
                ..good
            },
            "position",
        ),
        (
            Batch {
                write_slots: &[SLOTS as u32],
                ..good
            },
            "slot",
        ),
        (
            Batch {
                slot_table: &[SLOTS as u32],
                ..good
            },
            "slot",
        ),
        (
            Batch {
                logit_rows: &[1],
                ..good
            },
            "logit row",
        ),
        (
            Batch {
                hidden_rows: &[1],
                choice_rows: &[],
                ..good
            },
            "hidden row",
        ),
        (
            Batch {
                slot_table: &[],
                ..good
            },
            "slots",
        ),
        (
            Batch {
                positions: &[],
                ..good
            },
            "positions",
        ),
        (
            Batch {
                positions: &[5],
                ..good
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
