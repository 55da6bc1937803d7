//! The values of a case: inputs on the device, the call, and what it should give.

pub mod packed;

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, TensorData};

use super::choices::{logits, right_choices};
use super::{Case, Precision, Random, reference};
use crate::ragged::indices;
use crate::{Choice, HeadLayout, Kernels, QkNorm, RaggedIndex, RopeTable, Span, Summation};

const EPS: f32 = 1e-3;

pub enum Output<B: Kernels> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
}

/// Bytes that have to be moved, and floating-point operations, at least.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    pub bytes: u64,
    pub flops: u64,
}

/// What an output should be.
pub enum Wanted {
    /// NaN where nothing may be written.
    Values(Vec<f64>),
    /// For each element what is right, which is one thing but where rounding decides.
    OneOf(Vec<Vec<i32>>),
}

impl Wanted {
    /// The values that are wanted where these were `got`.
    pub fn beside(&self, got: &[f32]) -> Vec<f64> {
        match self {
            Self::Values(values) => values.clone(),
            Self::OneOf(rows) => {
                let got = got.iter().copied().chain(std::iter::repeat(f32::NAN));
                let nearest = |(right, got): (&Vec<i32>, f32)| {
                    let right = || right.iter().map(|right| f64::from(*right));
                    let same = right().find(|right| *right == f64::from(got));
                    same.or(right().next()).unwrap_or(f64::NAN)
                };
                rows.iter().zip(got).map(nearest).collect()
            }
        }
    }

    /// Of that error, as much as may be: a thing that is not the right one is wrong.
    pub fn tolerance(&self, tolerance: f64) -> f64 {
        match self {
            Self::Values(_) => tolerance,
            Self::OneOf(_) => 0.0,
        }
    }
}

type Named = (&'static str, Wanted);

pub struct Prepared<B: Kernels> {
    pub launch: Box<dyn FnMut() -> Vec<Output<B>>>,
    /// By name, in the order of the outputs.
    pub want: Box<dyn Fn() -> Vec<Named>>,
    pub work: Work,
}

pub fn float<B: Kernels>(
    values: &[f32],
    shape: &[usize],
    dtype: DType,
    device: &B::Device,
) -> FloatTensor<B> {
    let data = TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype);
    B::float_from_data(data, device)
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Values and tensors of one case.
struct Maker<'a, B: Kernels> {
    precision: Precision,
    random: &'a mut Random,
    device: &'a B::Device,
}

impl<B: Kernels> Maker<'_, B> {
    fn stored(&mut self, shape: &[usize]) -> (Vec<f32>, FloatTensor<B>) {
        self.make(shape, self.precision.stored)
    }

    fn activations(&mut self, shape: &[usize]) -> (Vec<f32>, FloatTensor<B>) {
        self.make(shape, self.precision.activations)
    }

    fn make(&mut self, shape: &[usize], dtype: DType) -> (Vec<f32>, FloatTensor<B>) {
        let values = self.random.normal_as(dtype, shape.iter().product());
        let tensor = float::<B>(&values, shape, dtype, self.device);
        (values, tensor)
    }
}

/// Makes random values for `case` and puts them on `device`.
pub fn prepare<B: Kernels>(
    case: &Case,
    precision: Precision,
    random: &mut Random,
    device: &B::Device,
) -> Prepared<B> {
    let maker = Maker::<B> {
        precision,
        random,
        device,
    };
    match case.clone() {
        Case::Linear {
            tokens,
            input,
            output,
            bias,
            summation,
        } => linear(maker, [tokens, input, output], bias, summation),
        Case::Embed {
            tokens,
            vocab,
            hidden,
        } => embed(maker, [tokens, vocab, hidden]),
        Case::PackedLinear {
            format,
            tokens,
            input,
            output,
            bias,
            summation,
        } => packed::linear(maker, format, [tokens, input, output], bias, summation),
        Case::PackedEmbed {
            format,
            tokens,
            vocab,
            hidden,
        } => packed::embed(maker, format, [tokens, vocab, hidden]),
        Case::RmsNorm { tokens, hidden } => rms_norm(maker, [tokens, hidden]),
        Case::AddRmsNorm { tokens, hidden } => add_rms_norm(maker, [tokens, hidden]),
        Case::SiluMul { tokens, inner } => silu_mul(maker, [tokens, inner]),
        Case::RopeAndStore {
            tokens,
            layout,
            rotary_dim,
            qk_norm,
        } => rope_and_store(maker, tokens, layout, rotary_dim, qk_norm),
        Case::Attention {
            sequences,
            layout,
            window,
            summation,
        } => attention(maker, &sequences, layout, window, summation),
        Case::Choose { rows, vocab } => choose(maker, [rows, vocab]),
    }
}

fn linear<B: Kernels>(
    mut make: Maker<B>,
    [tokens, input, output]: [usize; 3],
    with_bias: bool,
    summation: Summation,
) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, input]);
    let (w, w_on) = make.stored(&[output, input]);
    let (bias, bias_on) = make.activations(&[output]);
    let bias = with_bias.then_some(bias);
    let bias_on = with_bias.then_some(bias_on);
    let (stored, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let (x, bias) = (x_on.clone(), bias_on.clone());
            let y = B::project(x, w_on.clone(), bias, summation);
            vec![Output::Float(y)]
        }),
        want: Box::new(move || {
            let y = reference::linear(&x, &w, bias.as_deref(), input);
            vec![("y", Wanted::Values(y))]
        }),
        work: Work {
            bytes: (input * output) as u64 * stored
                + (tokens * (input + output)) as u64 * activation,
            flops: 2 * (tokens * input * output) as u64,
        },
    }
}

fn embed<B: Kernels>(mut make: Maker<B>, [tokens, vocab, hidden]: [usize; 3]) -> Prepared<B> {
    let (table, table_on) = make.stored(&[vocab, hidden]);
    let ids: Vec<u32> = (0..tokens)
        .map(|_| make.random.below(vocab) as u32)
        .collect();
    let ids_on = indices::<B>(&ids, make.device);
    let (stored, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Float(B::embed(table_on.clone(), ids_on.clone()))]),
        want: Box::new(move || {
            let rows = ids
                .iter()
                .flat_map(|id| &table[*id as usize * hidden..][..hidden]);
            vec![(
                "rows",
                Wanted::Values(rows.map(|x| f64::from(*x)).collect()),
            )]
        }),
        work: Work {
            bytes: (tokens * hidden) as u64 * (stored + activation),
            flops: 0,
        },
    }
}

fn rms_norm<B: Kernels>(mut make: Maker<B>, [tokens, hidden]: [usize; 2]) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, hidden]);
    let (weight, weight_on) = make.activations(&[hidden]);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let normed = B::rms_norm(x_on.clone(), weight_on.clone(), EPS);
            vec![Output::Float(normed)]
        }),
        want: Box::new(move || {
            let normed = reference::rms_norm(&x, &weight, f64::from(EPS));
            vec![("normed", Wanted::Values(normed))]
        }),
        work: Work {
            bytes: 2 * (tokens * hidden) as u64 * activation,
            flops: 0,
        },
    }
}

fn add_rms_norm<B: Kernels>(mut make: Maker<B>, [tokens, hidden]: [usize; 2]) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, hidden]);
    let (delta, delta_on) = make.activations(&[tokens, hidden]);
    let (weight, weight_on) = make.activations(&[hidden]);
    let dtype = make.precision.activations;
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let (sum, normed) =
                B::add_rms_norm(x_on.clone(), delta_on.clone(), weight_on.clone(), EPS);
            vec![Output::Float(sum), Output::Float(normed)]
        }),
        want: Box::new(move || {
            // The norm reads the sum as it is stored.
            let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
            let count = sum.len();
            let sum: Vec<f32> = TensorData::new(sum, [count])
                .convert_dtype(dtype)
                .convert::<f32>()
                .into_vec()
                .expect("converted to f32");
            let normed = reference::rms_norm(&sum, &weight, f64::from(EPS));
            vec![
                ("sum", Wanted::Values(exact(&sum))),
                ("normed", Wanted::Values(normed)),
            ]
        }),
        work: Work {
            bytes: 4 * (tokens * hidden) as u64 * activation,
            flops: 0,
        },
    }
}

fn silu_mul<B: Kernels>(mut make: Maker<B>, [tokens, inner]: [usize; 2]) -> Prepared<B> {
    let (gate_up, gate_up_on) = make.activations(&[tokens, 2 * inner]);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Float(B::silu_mul(gate_up_on.clone()))]),
        want: Box::new(move || {
            let gated = reference::silu_mul(&gate_up, inner);
            vec![("gated", Wanted::Values(gated))]
        }),
        work: Work {
            bytes: 3 * (tokens * inner) as u64 * activation,
            flops: 0,
        },
    }
}

fn rope_and_store<B: Kernels>(
    mut make: Maker<B>,
    tokens: usize,
    layout: HeadLayout,
    rotary_dim: usize,
    qk_norm: bool,
) -> Prepared<B> {
    let (table_rows, half) = (100, rotary_dim / 2);
    // Slots that nobody writes lie between those that somebody does.
    let slots = tokens + tokens / 2 + 3;
    let kv_width = layout.kv_heads * layout.head_dim;
    let (qkv, qkv_on) = make.activations(&[tokens, layout.qkv_width()]);
    let (cos, cos_on) = make.make(&[table_rows, half], DType::F32);
    let (sin, sin_on) = make.make(&[table_rows, half], DType::F32);
    let (q_norm, q_norm_on) = make.activations(&[layout.head_dim]);
    let (k_norm, k_norm_on) = make.activations(&[layout.head_dim]);
    let random = &mut *make.random;
    let positions: Vec<u32> = (0..tokens)
        .map(|_| random.below(table_rows) as u32)
        .collect();
    let write_slots = random.distinct(tokens, slots);
    let span = Span {
        context: table_rows,
        tokens,
        first_slot: 0,
    };
    let table: Vec<u32> = vec![0; table_rows];
    let index = RaggedIndex::<B>::upload(
        &positions,
        &write_slots,
        &[span],
        &table,
        layout,
        Summation::Fastest,
        make.device,
    );
    let poison = vec![f32::NAN; slots * kv_width];
    let shape = [slots, layout.kv_heads, layout.head_dim];
    let mut pools =
        [(); 2].map(|()| float::<B>(&poison, &shape, make.precision.stored, make.device));
    let rope = RopeTable::<B> {
        cos: cos_on,
        sin: sin_on,
        rotary_dim,
    };
    let norm_on = qk_norm.then_some(QkNorm::<B> {
        q: q_norm_on,
        k: k_norm_on,
        eps: EPS,
    });
    let (stored, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let [k_pool, v_pool] = &mut pools;
            let q = B::rope_and_store(
                qkv_on.clone(),
                layout,
                norm_on.as_ref(),
                &rope,
                &index,
                k_pool,
                v_pool,
            );
            vec![
                Output::Float(q),
                Output::Float(k_pool.clone()),
                Output::Float(v_pool.clone()),
            ]
        }),
        want: Box::new(move || {
            let eps = f64::from(EPS);
            let norms = qk_norm.then_some((q_norm.as_slice(), k_norm.as_slice(), eps));
            let rotated = reference::rope(&qkv, layout, norms, &cos, &sin, half, &positions);
            let scatter = |rows: &[f64]| {
                let mut pool = vec![f64::NAN; slots * kv_width];
                for (row, slot) in rows.chunks(kv_width).zip(&write_slots) {
                    pool[*slot as usize * kv_width..][..kv_width].copy_from_slice(row);
                }
                pool
            };
            let (k, v) = (scatter(&rotated.k), scatter(&rotated.v));
            vec![
                ("q", Wanted::Values(rotated.q)),
                ("k pool", Wanted::Values(k)),
                ("v pool", Wanted::Values(v)),
            ]
        }),
        work: Work {
            bytes: (tokens * layout.qkv_width()) as u64 * activation
                + (tokens * layout.heads * layout.head_dim) as u64 * activation
                + 2 * (tokens * kv_width) as u64 * stored,
            flops: 0,
        },
    }
}

fn attention<B: Kernels>(
    mut make: Maker<B>,
    sequences: &[(usize, usize)],
    layout: HeadLayout,
    window: Option<u32>,
    summation: Summation,
) -> Prepared<B> {
    let kv_width = layout.kv_heads * layout.head_dim;
    let used: usize = sequences.iter().map(|(context, _)| context).sum();
    let slots = used + used / 8 + 2;
    let mut free = make.random.distinct(slots, slots);
    let (mut positions, mut starts, mut table) = (vec![], vec![], vec![]);
    let mut spans = Vec::new();
    for &(context, tokens) in sequences {
        let first_slot = table.len();
        positions.extend((context - tokens..context).map(|position| position as u32));
        starts.extend(std::iter::repeat_n(first_slot as u32, tokens));
        spans.push(Span {
            context,
            tokens,
            first_slot,
        });
        table.extend(free.drain(..context));
    }
    let tokens = positions.len();
    let (q, q_on) = make.activations(&[tokens, layout.heads * layout.head_dim]);
    let shape = [slots, layout.kv_heads, layout.head_dim];
    let stored_as = make.precision.stored;
    let mut pool = || {
        let mut values = make.random.normal_as(stored_as, slots * kv_width);
        // What no sequence owns must not be read.
        for slot in &free {
            values[*slot as usize * kv_width..][..kv_width].fill(f32::NAN);
        }
        let tensor = float::<B>(&values, &shape, stored_as, make.device);
        (values, tensor)
    };
    let ((k, k_on), (v, v_on)) = (pool(), pool());
    let index = RaggedIndex::<B>::upload(
        &positions,
        &[0],
        &spans,
        &table,
        layout,
        summation,
        make.device,
    );
    let seen: usize = positions
        .iter()
        .map(|position| *position as usize + 1)
        .sum();
    let (stored, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let mixed = B::paged_attention(q_on.clone(), layout, &index, window, &k_on, &v_on);
            vec![Output::Float(mixed)]
        }),
        want: Box::new(move || {
            let mixed =
                reference::attention(&q, &k, &v, layout, &positions, &starts, &table, window);
            vec![("mixed", Wanted::Values(mixed))]
        }),
        work: Work {
            bytes: 2 * (used * kv_width) as u64 * stored
                + 2 * (tokens * layout.heads * layout.head_dim) as u64 * activation,
            flops: 4 * (seen * layout.heads * layout.head_dim) as u64,
        },
    }
}

fn choose<B: Kernels>(make: Maker<B>, [rows, vocab]: [usize; 2]) -> Prepared<B> {
    let dtype = make.precision.activations;
    let (mut all, mut choices) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        choices.push(Choice::random(vocab, make.random));
        all.extend(logits(vocab, dtype, make.random));
    }
    let logits_on = float::<B>(&all, &[rows, vocab], dtype, make.device);
    let plan = crate::plan::<B>(&choices, vocab, make.device);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Int(B::choose(logits_on.clone(), plan.clone()))]),
        want: Box::new(move || {
            let rows = all.chunks_exact(vocab).zip(&choices);
            let right = rows.map(|(row, choice)| right_choices(row, choice));
            vec![("token", Wanted::OneOf(right.collect()))]
        }),
        work: Work {
            bytes: (rows * vocab) as u64 * activation,
            flops: 0,
        },
    }
}
