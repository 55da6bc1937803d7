//! Random sampling parameters and logits, and a reference in f64 that says which tokens a kernel
//! may return for them.

use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use hearth_forward::{LogitEdit, SampleParams};

use super::Random;

/// Random parameters: each step of sampling is sometimes on and sometimes off.
pub(crate) fn random_params(vocab: usize, random: &mut Random) -> SampleParams {
    let draw = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
    let share = |random: &mut Random| (random.within(1, 999) as f32) / 1000.0;
    let mask = random.one_in(3).then(|| mask(vocab, random));
    let edits = match random.below(3) {
        0 => edits(vocab, random),
        _ => Vec::new(),
    };
    let most = [3, 50, vocab + 1][random.below(3)];
    SampleParams {
        temperature: [0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0][random.below(7)],
        top_k: random.one_in(2).then(|| random.within(1, most) as u32),
        top_p: if random.one_in(2) { share(random) } else { 1.0 },
        min_p: match random.below(6) {
            0 => 1.0,
            1 | 2 => share(random) * share(random),
            _ => 0.0,
        },
        draw,
        mask,
        edits,
    }
}

/// A mask that allows one token, a few, or most of them. It sometimes lacks its last words.
fn mask(vocab: usize, random: &mut Random) -> Arc<[u32]> {
    let mut words = match random.below(3) {
        0 => vec![u32::MAX; vocab.div_ceil(32)],
        _ => vec![0; vocab.div_ceil(32)],
    };
    let flips = if random.one_in(3) {
        1
    } else {
        random.within(1, 40)
    };
    for _ in 0..flips {
        let token = random.below(vocab);
        words[token / 32] ^= 1 << (token % 32);
    }
    if random.one_in(4) {
        words.truncate(random.within(1, words.len()));
    }
    words.into()
}

/// Edits in no particular order of tokens. Some tokens lie beyond the vocabulary.
fn edits(vocab: usize, random: &mut Random) -> Vec<LogitEdit> {
    let count = random.within(1, 20.min(vocab));
    let number = |random: &mut Random| random.within(0, 64) as f32 / 16.0 - 2.0;
    let tokens = random.distinct(count, vocab + 2);
    let edit = |token| LogitEdit {
        token,
        bias: match random.below(4) {
            0 => f32::NEG_INFINITY,
            1 => number(random) * 4.0,
            _ => 0.0,
        },
        factor: if random.one_in(2) { 1.25 } else { 1.0 },
        amount: if random.one_in(2) {
            number(random)
        } else {
            0.0
        },
    };
    tokens.into_iter().map(edit).collect()
}

/// Logits that are exactly representable in `dtype`. They are normally distributed, or take few
/// distinct values so that there are many ties. Some may be NaN or infinite, and occasionally all
/// of them are NaN or minus infinity, so that no token can be sampled.
pub fn logits(vocab: usize, dtype: DType, random: &mut Random) -> Vec<f32> {
    let mut logits: Vec<f32> = match random.below(3) {
        0 => {
            let distinct = [3, 40, 400][random.below(3)];
            (0..vocab)
                .map(|_| (random.within(0, distinct) as f32 - distinct as f32 / 2.0) / 16.0)
                .collect()
        }
        _ => {
            let scale = [0.5, 2.0, 6.0][random.below(3)];
            random.normal(vocab).iter().map(|x| x * scale).collect()
        }
    };
    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
    if random.one_in(3) {
        for _ in 0..random.within(1, 9) {
            // Infinity leaves few tokens to draw from, so it is rare.
            let which = if random.one_in(8) { 2 } else { random.below(2) };
            logits[random.below(vocab)] = odd[which];
        }
    }
    if random.one_in(12) {
        logits.fill(odd[random.below(2)]);
    }
    let data = TensorData::new(logits, [vocab]).convert_dtype(dtype);
    data.convert::<f32>().into_vec().expect("converted to f32")
}

/// A token that the steps so far have kept.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: usize,
    logit: f32,
    weight: f64,
    /// How far the weight may be off where it is computed in f32.
    slack: f64,
    /// True if rounding in f32 decides whether the steps keep this token.
    unsure: bool,
}

/// The largest relative error of a sum that is computed in f32.
const ROUNDING: f64 = 1e-6;

/// The tokens that a correct kernel may return. This is one token, or several where a boundary is
/// so close that rounding in f32 decides, or `[-1]` if no token can be sampled.
pub fn acceptable_tokens(logits: &[f32], params: &SampleParams) -> Vec<i32> {
    let mut ranking = candidates(logits, params);
    let Some(best) = ranking.first().copied() else {
        return vec![-1];
    };
    if params.temperature == 0.0 {
        return vec![best.token as i32];
    }
    ranking.truncate(params.top_k.map_or(usize::MAX, |k| k as usize));
    for candidate in &mut ranking {
        let x =
            (f64::from(candidate.logit) - f64::from(best.logit)) / f64::from(params.temperature);
        candidate.weight = if x < -87.0 { 0.0 } else { x.exp() };
        // The steps before the exponential round in proportion to its argument.
        candidate.slack = candidate.weight * (1.0 - x) * 3e-7;
        if x == 0.0 {
            candidate.slack = 0.0;
        }
    }
    let min_p = f64::from(params.min_p);
    ranking
        .retain(|candidate| candidate.weight > 0.0 && candidate.weight + candidate.slack >= min_p);
    for candidate in &mut ranking {
        candidate.unsure = candidate.weight - candidate.slack < min_p;
    }
    cut_to_share(&mut ranking, f64::from(params.top_p));
    drawn(ranking, params.draw)
}

/// The tokens that remain after the mask and the edits: the largest logit first, and ties by token
/// id.
fn candidates(logits: &[f32], params: &SampleParams) -> Vec<Candidate> {
    let allowed = |token: usize| {
        params.mask.as_ref().is_none_or(|mask| {
            mask.get(token / 32)
                .is_some_and(|word| word & (1 << (token % 32)) != 0)
        })
    };
    let edited = |token: usize, logit: f32| {
        let edit = params
            .edits
            .iter()
            .find(|edit| edit.token as usize == token);
        edit.map_or(logit, |edit| {
            let sum = logit + edit.bias;
            let scaled = match sum > 0.0 {
                true => sum / edit.factor,
                false => sum * edit.factor,
            };
            scaled - edit.amount
        })
    };
    let mut all: Vec<Candidate> = logits
        .iter()
        .enumerate()
        .filter(|(token, _)| allowed(*token))
        .map(|(token, logit)| Candidate {
            token,
            // Negative zero ranks as zero does.
            logit: edited(token, *logit).min(f32::MAX) + 0.0,
            weight: 0.0,
            slack: 0.0,
            unsure: false,
        })
        .filter(|candidate| !edited(candidate.token, logits[candidate.token]).is_nan())
        .filter(|candidate| candidate.logit > f32::NEG_INFINITY)
        .collect();
    all.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
    all
}

/// Top-p: keeps the shortest head of `ranking` that holds a share of `top_p` of the weights, and
/// marks the candidates for which rounding decides.
fn cut_to_share(ranking: &mut Vec<Candidate>, top_p: f64) {
    if top_p >= 1.0 {
        return;
    }
    let sure: f64 = ranking.iter().filter(|c| !c.unsure).map(|c| c.weight).sum();
    let all: f64 = ranking.iter().map(|c| c.weight).sum();
    let slack = ranking.iter().map(|c| c.slack).sum::<f64>() + all * ROUNDING;
    let (least, most) = (top_p * sure - slack, top_p * all + slack);
    // Candidates with equal logits stay in order of token id. Candidates with close logits may swap
    // places: where their f32 weights come out equal, the kernel ranks them by token id, too.
    let groups: Vec<&[Candidate]> = ranking.chunk_by(|a, b| a.logit == b.logit).collect();
    let weight = |group: &[Candidate]| group[0].weight * group.len() as f64;
    let near = |a: &[Candidate], b: &[Candidate]| {
        (a[0].weight - b[0].weight).abs() <= a[0].slack + b[0].slack
    };
    let mut before = 0.0;
    let mut judged: Vec<Option<bool>> = Vec::with_capacity(ranking.len());
    for (at, group) in groups.iter().enumerate() {
        let sum_while_near = |others: &mut dyn Iterator<Item = &&[Candidate]>| {
            let near = others.take_while(|other| near(group, other));
            near.map(|other| weight(other)).sum::<f64>()
        };
        let near_before = sum_while_near(&mut groups[..at].iter().rev());
        let near_after = sum_while_near(&mut groups[at + 1..].iter());
        for candidate in *group {
            let (earliest, latest) = (before - near_before, before + near_after);
            judged.push(if latest == 0.0 || latest < least {
                Some(true)
            } else if earliest >= most {
                Some(false)
            } else {
                None
            });
            before += candidate.weight;
        }
    }
    let mut judged = judged.into_iter();
    ranking.retain_mut(|candidate| {
        let kept = judged.next().flatten();
        candidate.unsure |= kept.is_none();
        kept != Some(false)
    });
}

/// The tokens among `left` on which the draw may fall.
fn drawn(mut left: Vec<Candidate>, draw: f64) -> Vec<i32> {
    left.sort_by_key(|candidate| candidate.token);
    let sure: f64 = left.iter().filter(|c| !c.unsure).map(|c| c.weight).sum();
    let all: f64 = left.iter().map(|c| c.weight).sum();
    let slack = left.iter().map(|c| c.slack).sum::<f64>() + all * ROUNDING;
    let (least, most) = (draw * sure - slack, draw * all + slack);
    let (mut before_least, mut before_most) = (0.0, 0.0);
    let mut right = Vec::new();
    for candidate in left {
        let after_most = before_most + candidate.weight;
        if before_least <= most && after_most > least && candidate.weight > 0.0 {
            right.push(candidate.token as i32);
        }
        before_most = after_most;
        if !candidate.unsure {
            before_least += candidate.weight;
        }
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(draw: f64) -> SampleParams {
        SampleParams {
            temperature: 1.0,
            draw,
            ..SampleParams::GREEDY
        }
    }

    #[test]
    fn each_step_removes_the_tokens_it_should() {
        let logits = [0.0, 2.0, 1.0, 2.0, f32::NAN, f32::NEG_INFINITY];
        let right = |params| acceptable_tokens(&logits, &params);
        assert_eq!(right(plain(0.999)), [3]);
        assert_eq!(right(SampleParams::GREEDY), [1]);
        assert_eq!(right(plain(0.0)), [0]);
        let top_k = |k, params| SampleParams {
            top_k: Some(k),
            ..params
        };
        assert_eq!(right(top_k(2, plain(0.0))), [1]);
        assert_eq!(right(top_k(1, plain(0.999))), [1]);
        // The two most likely tokens have a probability of e^2 / (2 e^2 + e + 1) = 0.4 each.
        let top_p = |top_p| SampleParams {
            top_p,
            ..plain(0.999)
        };
        assert_eq!(right(top_p(0.39)), [1]);
        assert_eq!(right(top_p(0.41)), [3]);
        assert_eq!(
            right(SampleParams {
                min_p: 0.2,
                ..plain(0.0)
            }),
            [1]
        );
        let masked = |words: &[u32]| SampleParams {
            mask: Some(words.into()),
            ..plain(0.999)
        };
        assert_eq!(right(masked(&[0b101])), [2]);
        assert_eq!(right(masked(&[])), [-1]);
        assert_eq!(right(masked(&[0b110000])), [-1]);
        let edit = |token, bias, factor, amount| LogitEdit {
            token,
            bias,
            factor,
            amount,
        };
        let edits = vec![edit(1, f32::NEG_INFINITY, 1.0, 0.0), edit(3, 0.0, 2.0, 0.5)];
        assert_eq!(
            right(SampleParams {
                edits,
                ..SampleParams::GREEDY
            }),
            [2]
        );
    }

    #[test]
    fn a_draw_on_a_boundary_has_two_acceptable_tokens() {
        let right = |draw| acceptable_tokens(&[0.0; 4], &plain(draw));
        assert_eq!(right(0.5), [1, 2]);
        assert_eq!(right(0.51), [2]);
    }

    #[test]
    fn almost_every_row_has_exactly_one_acceptable_token() {
        let mut random = Random::seeded(4);
        let many = (0..2000).filter(|_| {
            let vocab = random.within(1, 300);
            let params = random_params(vocab, &mut random);
            let row = logits(vocab, DType::F32, &mut random);
            acceptable_tokens(&row, &params).len() != 1
        });
        assert!(many.count() < 20);
    }
}
