//! How the token of one row of logits is chosen, as it goes to the device.

use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;

use crate::indices;

/// What is done to the logit of one token before anything is chosen: `bias` is added; the sum
/// is divided by `factor` if it is positive and multiplied by it if not; then `amount` is
/// subtracted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edit {
    pub token: u32,
    pub bias: f32,
    pub factor: f32,
    pub amount: f32,
}

/// How the token of one row is chosen, the steps in this order: only tokens of `mask`, `edits`,
/// temperature, min-p, top-k, top-p over the share of what those two left, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// 0 takes the likeliest token, and the rest but mask and edits says nothing.
    pub temperature: f32,
    /// `None` for all.
    pub top_k: Option<u32>,
    /// In (0, 1].
    pub top_p: f32,
    pub min_p: f32,
    /// In [0, 1): where in the weights that are left, in the order of ids, the token lies.
    pub draw: f64,
    /// Bit `t % 32` of word `t / 32`: whether token `t` may be chosen; beyond its end none.
    pub mask: Option<Arc<[u32]>>,
    /// At most one for each token; those beyond the vocabulary say nothing.
    pub edits: Vec<Edit>,
}

impl Choice {
    /// The likeliest token.
    pub const LIKELIEST: Self = Self {
        temperature: 0.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        draw: 0.0,
        mask: None,
        edits: Vec::new(),
    };
}

/// Words of a row at the beginning of a plan: temperature, k, p, min-p, draw, where its mask
/// and its edits begin, and how many of those there are. Fractions are of 2^32; 0 for k and p
/// cuts nothing; a mask at 0 is none, as the rows are there.
pub(crate) const ROW_WORDS: usize = 8;
/// Words of an edit: token, bias, factor, amount. A row's are in the order of tokens.
pub(crate) const EDIT_WORDS: usize = 4;

/// Copies `choices` to `device`, in one tensor: it is one copy a step.
pub fn plan<B: Backend>(choices: &[Choice], vocab: usize, device: &B::Device) -> IntTensor<B> {
    indices::<B>(&pack(choices, vocab), device)
}

fn pack(choices: &[Choice], vocab: usize) -> Vec<u32> {
    let mut words = vec![0; choices.len() * ROW_WORDS];
    let mut edits = Vec::new();
    for (row, choice) in choices.iter().enumerate() {
        edits.clear();
        let known = choice.edits.iter().copied();
        edits.extend(known.filter(|edit| (edit.token as usize) < vocab));
        edits.sort_unstable_by_key(|edit| edit.token);
        let edits_at = words.len();
        for edit in &edits {
            let [bias, factor, amount] = [edit.bias, edit.factor, edit.amount].map(f32::to_bits);
            words.extend([edit.token, bias, factor, amount]);
        }
        let mask_at = match &choice.mask {
            Some(mask) => {
                let at = words.len();
                let needed = vocab.div_ceil(32);
                words.extend_from_slice(&mask[..needed.min(mask.len())]);
                words.resize(at + needed, 0);
                at
            }
            None => 0,
        };
        let greedy = choice.temperature == 0.0;
        let top_k = choice.top_k.filter(|k| !greedy && (*k as usize) < vocab);
        let top_p = match choice.top_p {
            // The least share still keeps the first token.
            top_p if top_p < 1.0 && !greedy => fraction(f64::from(top_p)).max(1),
            _ => 0,
        };
        // The weights of the likeliest are 1 and of the others 0 there: the first is it.
        let draw = if greedy { 0 } else { fraction(choice.draw) };
        words[row * ROW_WORDS..][..ROW_WORDS].copy_from_slice(&[
            choice.temperature.to_bits(),
            top_k.unwrap_or(0),
            top_p,
            choice.min_p.to_bits(),
            draw,
            mask_at as u32,
            edits_at as u32,
            edits.len() as u32,
        ]);
    }
    words
}

/// `x`, in [0, 1), in 2^32 parts.
fn fraction(x: f64) -> u32 {
    (x * 4_294_967_296.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_the_rows_first_then_edits_in_order_and_whole_masks() {
        let edit = |token| Edit {
            token,
            bias: 1.0,
            factor: 2.0,
            amount: 0.0,
        };
        let choices = [
            Choice::LIKELIEST,
            Choice {
                temperature: 1.0,
                top_k: Some(40),
                top_p: 0.5,
                draw: 0.25,
                mask: Some(Arc::new([7])),
                edits: vec![edit(40), edit(3), edit(39)],
                ..Choice::LIKELIEST
            },
        ];
        let words = pack(&choices, 40);
        assert_eq!(words[..ROW_WORDS], [0, 0, 0, 0, 0, 0, 16, 0]);
        let one = 1f32.to_bits();
        // k is no less than the vocabulary, and one edit is of a token that there is not.
        assert_eq!(words[8..16], [one, 0, 1 << 31, 0, 1 << 30, 24, 16, 2]);
        let two = 2f32.to_bits();
        assert_eq!(words[16..], [3, one, two, 0, 39, one, two, 0, 7, 0]);
    }
}
