//! The plan: the sampling parameters of every row, packed for the device.

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use hearth_forward::SampleParams;

use crate::indices;

/// Words of one row's header. The headers of all rows come first in a plan. A header holds, in
/// this order: temperature, k, p, min-p and draw; the offsets in the plan of the row's mask and
/// edits; and the number of edits.
///
/// Temperature and min-p are the bits of an f32; p and the draw are fixed-point fractions in units
/// of 2^-32. A k or p of 0 disables top-k or top-p. A mask offset of 0 means that there is no mask:
/// offset 0 is the first row's header.
pub(crate) const ROW_WORDS: usize = 8;
/// Words of one edit: token, bias, factor, amount. The edits of a row are sorted by token.
pub(crate) const EDIT_WORDS: usize = 4;

/// Packs `params`, one for each row of logits over `vocab` tokens, and copies them to `device` as
/// one tensor, so that a step makes a single copy. The result is what
/// [`Kernels::sample`](crate::Kernels::sample) reads: `[words]`, i32.
pub fn sample_plan<B: Backend>(
    params: &[SampleParams],
    vocab: usize,
    device: &B::Device,
) -> IntTensor<B> {
    indices::<B>(&pack(params, vocab), device)
}

fn pack(params: &[SampleParams], vocab: usize) -> Vec<u32> {
    let mut words = vec![0; params.len() * ROW_WORDS];
    let mut edits = Vec::new();
    for (row, params) in params.iter().enumerate() {
        edits.clear();
        let known = params.edits.iter().copied();
        edits.extend(known.filter(|edit| (edit.token as usize) < vocab));
        edits.sort_unstable_by_key(|edit| edit.token);
        let edits_at = words.len();
        for edit in &edits {
            let [bias, factor, amount] = [edit.bias, edit.factor, edit.amount].map(f32::to_bits);
            words.extend([edit.token, bias, factor, amount]);
        }
        let mask_at = match &params.mask {
            Some(mask) => {
                let at = words.len();
                let needed = vocab.div_ceil(32);
                words.extend_from_slice(&mask[..needed.min(mask.len())]);
                words.resize(at + needed, 0);
                at
            }
            None => 0,
        };
        let greedy = params.temperature == 0.0;
        let top_k = params.top_k.filter(|k| !greedy && (*k as usize) < vocab);
        let top_p = match params.top_p {
            // 0 would disable top-p; the smallest fraction still keeps the first token.
            top_p if top_p < 1.0 && !greedy => fraction(f64::from(top_p)).max(1),
            _ => 0,
        };
        // At temperature 0 the kernel gives the largest logits a weight of 1 and all others 0, so
        // a draw of 0 takes the first of the largest.
        let draw = if greedy { 0 } else { fraction(params.draw) };
        words[row * ROW_WORDS..][..ROW_WORDS].copy_from_slice(&[
            params.temperature.to_bits(),
            top_k.unwrap_or(0),
            top_p,
            params.min_p.to_bits(),
            draw,
            mask_at as u32,
            edits_at as u32,
            edits.len() as u32,
        ]);
    }
    words
}

/// `x`, in [0, 1), as a fixed-point fraction in units of 2^-32.
fn fraction(x: f64) -> u32 {
    (x * 4_294_967_296.0) as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hearth_forward::LogitEdit;

    use super::*;

    #[test]
    fn a_plan_has_the_headers_first_then_sorted_edits_and_whole_masks() {
        let edit = |token| LogitEdit {
            token,
            bias: 1.0,
            factor: 2.0,
            amount: 0.0,
        };
        let params = [
            SampleParams::GREEDY,
            SampleParams {
                temperature: 1.0,
                top_k: Some(40),
                top_p: 0.5,
                draw: 0.25,
                mask: Some(Arc::new([7])),
                edits: vec![edit(40), edit(3), edit(39)],
                ..SampleParams::GREEDY
            },
        ];
        let words = pack(&params, 40);
        assert_eq!(words[..ROW_WORDS], [0, 0, 0, 0, 0, 0, 16, 0]);
        let one = 1f32.to_bits();
        // A k of at least the vocabulary size cuts nothing, and the edit of token 40, which the
        // vocabulary lacks, is dropped.
        assert_eq!(words[8..16], [one, 0, 1 << 31, 0, 1 << 30, 24, 16, 2]);
        let two = 2f32.to_bits();
        assert_eq!(words[16..], [3, one, two, 0, 39, one, two, 0, 7, 0]);
    }
}
