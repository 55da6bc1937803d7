//! Plain reference implementations in f64, written for clarity alone. Shapes are those of
//! [`Kernels`](crate::Kernels).

mod experts;

pub use experts::{ExpertValues, choose_experts, mix_experts};

use crate::kv_format::SMALLEST;
use crate::{Activation, HeadLayout};

pub fn linear(x: &[f32], weight: &[f32], bias: Option<&[f32]>, input: usize) -> Vec<f64> {
    x.chunks(input)
        .flat_map(|x| {
            weight
                .chunks(input)
                .enumerate()
                .map(move |(row, w)| dot(x, w) + bias.map_or(0.0, |bias| f64::from(bias[row])))
        })
        .collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

pub fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f64> {
    x.chunks(weight.len())
        .flat_map(|x| {
            let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
            x.iter()
                .zip(weight)
                .map(move |(x, w)| f64::from(*x) * scale * f64::from(*w))
        })
        .collect()
}

/// Queries normalised over all their heads, and keys over all of theirs.
pub fn norm_projections(
    qkv: &[f32],
    layout: HeadLayout,
    weights: [&[f32]; 2],
    eps: f64,
) -> Vec<f64> {
    let mut out = vec![];
    for row in qkv.chunks(layout.qkv_width()) {
        let mut rest = row;
        for weight in weights {
            let part;
            (part, rest) = rest.split_at(weight.len());
            out.extend(rms_norm(part, weight, eps));
        }
        out.extend(rest.iter().map(|x| f64::from(*x)));
    }
    out
}

/// `cap * tanh(x / cap)`
pub fn bounded(x: f64, cap: Option<f32>) -> f64 {
    cap.map(f64::from).map_or(x, |cap| cap * (x / cap).tanh())
}

fn activated(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// The gates and the values that they multiply: `[rows, 2 * inner]` holds `inner` of each in a row.
fn pairs(gate_up: &[f64], inner: usize) -> impl Iterator<Item = (f64, f64)> {
    gate_up.chunks(2 * inner).flat_map(move |row| {
        let (gate, up) = row.split_at(inner);
        gate.iter().copied().zip(up.iter().copied())
    })
}

pub fn gate(gate_up: &[f64], inner: usize, activation: Activation) -> Vec<f64> {
    pairs(gate_up, inner)
        .map(|(gate, up)| activated(gate, activation) * up)
        .collect()
}

/// A bound of the change of each value of [`gate`] when `gate_up` is changed by a fraction of
/// itself or of its root mean square, relative to that fraction: each factor's size times the other
/// factor.
pub fn gate_sizes(gate_up: &[f64], inner: usize, activation: Activation) -> Vec<f64> {
    let typical = root_mean_square(gate_up);
    pairs(gate_up, inner)
        .map(|(gate, up)| {
            let activated = activated(gate, activation).abs();
            activated * up.abs().max(typical) + gate.abs().max(typical) * up.abs()
        })
        .collect()
}

/// The root mean square of the values that are not NaN.
pub fn root_mean_square(values: &[f64]) -> f64 {
    let known = || values.iter().filter(|value| !value.is_nan());
    let squares: f64 = known().map(|value| value * value).sum();
    (squares / known().count().max(1) as f64).sqrt()
}

pub struct Rotated {
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
}

pub fn rope(
    qkv: &[f32],
    layout: HeadLayout,
    norms: Option<(&[f32], &[f32], f64)>,
    cos: &[f32],
    sin: &[f32],
    half: usize,
    positions: &[u32],
) -> Rotated {
    let mut out = Rotated {
        q: vec![],
        k: vec![],
        v: vec![],
    };
    for (row, position) in qkv.chunks(layout.qkv_width()).zip(positions) {
        for (index, head) in row.chunks(layout.head_dim).enumerate() {
            let is_value = index >= layout.heads + layout.kv_heads;
            let mut head: Vec<f64> = match norms {
                Some((q, k, eps)) if !is_value => {
                    rms_norm(head, if index < layout.heads { q } else { k }, eps)
                }
                _ => head.iter().map(|x| f64::from(*x)).collect(),
            };
            if !is_value {
                let before = head.clone();
                for i in 0..half {
                    let at = *position as usize * half + i;
                    let (cos, sin) = (f64::from(cos[at]), f64::from(sin[at]));
                    head[i] = before[i] * cos - before[i + half] * sin;
                    head[i + half] = before[i + half] * cos + before[i] * sin;
                }
            }
            match index {
                _ if is_value => out.v.extend(head),
                _ if index < layout.heads => out.q.extend(head),
                _ => out.k.extend(head),
            }
        }
    }
    out
}

/// A head in 8 bits: the bits of its scale and the words of its integers, and the values that these
/// stand for.
pub fn to_int8(head: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let finite = head.iter().all(|x| x.is_finite());
    let largest = head.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = match (finite, largest >= SMALLEST) {
        (false, _) => f32::NAN,
        (true, false) => 0.0,
        (true, true) => largest / 127.0,
    };
    let integer = |x: &f32| match scale > 0.0 {
        true => (x * (127.0 / largest)).round_ties_even() as i8,
        false => 0,
    };
    let bytes: Vec<u8> = head.iter().map(|x| integer(x).cast_unsigned()).collect();
    let words = bytes.as_chunks::<4>().0.iter().copied();
    let words: Vec<u32> = std::iter::once(scale.to_bits())
        .chain(words.map(u32::from_le_bytes))
        .collect();
    let values = from_int8(&words);
    (words, values)
}

/// The values of a head in 8 bits.
pub fn from_int8(words: &[u32]) -> Vec<f32> {
    let scale = f32::from_bits(words[0]);
    let bytes = words[1..].iter().flat_map(|word| word.to_le_bytes());
    bytes
        .map(|byte| scale * f32::from(byte.cast_signed()))
        .collect()
}

/// How attention weighs scores; see [`AttentionOptions`](crate::AttentionOptions).
pub struct Weighing<'a> {
    pub window: Option<u32>,
    pub scale: f32,
    pub cap: Option<f32>,
    /// `[heads]`
    pub sinks: Option<&'a [f32]>,
}

#[allow(clippy::too_many_arguments)]
pub fn attention(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    layout: HeadLayout,
    positions: &[u32],
    start: &[u32],
    table: &[u32],
    weighing: &Weighing<'_>,
) -> Vec<f64> {
    let dim = layout.head_dim;
    let row = |pool: &[f32], slot: u32, kv_head: usize| {
        pool[(slot as usize * layout.kv_heads + kv_head) * dim..][..dim].to_vec()
    };
    let mut out = vec![];
    for (index, query) in q.chunks(dim).enumerate() {
        let (token, head) = (index / layout.heads, index % layout.heads);
        let kv_head = head / (layout.heads / layout.kv_heads);
        let end = positions[token] as usize + 1;
        let first = weighing
            .window
            .map_or(0, |window| end.saturating_sub(window as usize));
        let slots = &table[start[token] as usize..][first..end];
        let scores: Vec<f64> = slots
            .iter()
            .map(|slot| dot(query, &row(k, *slot, kv_head)) * f64::from(weighing.scale))
            .map(|score| bounded(score, weighing.cap))
            .collect();
        let sink = weighing.sinks.map(|sinks| f64::from(sinks[head]));
        let max = scores.iter().copied().chain(sink);
        let max = max.fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let of_sink = sink.map_or(0.0, |sink| (sink - max).exp());
        let total = weights.iter().sum::<f64>() + of_sink;
        let mut mixed = vec![0.0; dim];
        for (slot, weight) in slots.iter().zip(&weights) {
            for (mixed, value) in mixed.iter_mut().zip(row(v, *slot, kv_head)) {
                *mixed += weight / total * f64::from(value);
            }
        }
        out.extend(mixed);
    }
    out
}
