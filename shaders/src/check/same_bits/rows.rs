//! Functions that compute some of the rows of a case.

use super::super::prepare::{
    CAP, EPS, ExpertRows, LOGIT_SCALE, Output, RESIDUAL_SCALE, RandomExperts, RandomStack,
    random_slots,
};
use super::super::sampling::random_params;
use super::super::{Case, Random, read};
use super::{Compute, Maker};
use hearth_forward::SampleParams;

use crate::indices;
use crate::{Activation, AdapterIndex, AttentionOptions, BlockFormat, Kernels, QkNorm, Summation};

impl<'a, B: Kernels> Maker<'a, B> {
    /// The number of rows of `case`, and a function that computes some of them.
    pub(super) fn rows(self, case: &Case, random: &mut Random) -> (usize, Compute<'a>) {
        match case.clone() {
            Case::Linear {
                tokens,
                input,
                output,
                bias,
                gated,
                summation,
            } => {
                let (size, with) = ([tokens, input, output], (bias, gated));
                (tokens, self.projected(None, size, with, summation, random))
            }
            Case::PackedLinear {
                format,
                tokens,
                input,
                output,
                bias,
                gated,
                summation,
            } => {
                let (size, with) = ([tokens, input, output], (bias, gated));
                (
                    tokens,
                    self.projected(Some(format), size, with, summation, random),
                )
            }
            Case::Embed {
                tokens,
                vocab,
                hidden,
            } => (tokens, self.embedded(None, [tokens, vocab, hidden], random)),
            Case::PackedEmbed {
                format,
                tokens,
                vocab,
                hidden,
            } => (
                tokens,
                self.embedded(Some(format), [tokens, vocab, hidden], random),
            ),
            Case::LowRank {
                tokens,
                input,
                slices,
                rank,
            } => {
                let output: usize = slices.iter().sum();
                let (x, y) = (
                    random.normal(tokens * input),
                    random.normal(tokens * output),
                );
                let (precision, device) = (self.precision, self.device);
                let changes =
                    RandomStack::<B>::make(input, slices, rank, precision, random, device);
                let slots = random_slots(tokens, random);
                let w = self.matrix(None, output, input, random);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let slots: Vec<u32> = rows.iter().map(|row| slots[*row]).collect();
                    let (x, mut y) = (self.pick(&x, input, rows), self.pick(&y, output, rows));
                    let sum = Summation::Fixed;
                    let projected;
                    match AdapterIndex::<B>::upload(&slots, self.device) {
                        None => projected = B::project(x, w.clone(), None, sum),
                        Some(index) => {
                            let (x, stack) = (|| x.clone(), &changes.stack);
                            y = B::expand(y, B::shrink(x(), stack, &index), stack, &index);
                            projected =
                                B::project_changed(x(), w.clone(), None, sum, stack, &index);
                        }
                    }
                    let (y, projected) = (Output::Float(y), Output::Float(projected));
                    vec![("y", read::<B>(y)), ("projected", read::<B>(projected))]
                };
                (tokens, Box::new(compute))
            }
            Case::ChooseExperts {
                tokens,
                experts,
                routing,
            } => {
                let logits = random.normal(tokens * experts);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let chosen = B::choose_experts(self.pick(&logits, experts, rows), routing);
                    let (ids, weights) = (Output::Int(chosen.ids), Output::Float(chosen.weights));
                    vec![("ids", read::<B>(ids)), ("weights", read::<B>(weights))]
                };
                (tokens, Box::new(compute))
            }
            Case::MixExperts { tokens, sizes } => {
                let (precision, device) = (self.precision, self.device);
                let experts = RandomExperts::<B>::make(sizes, precision, random, device);
                let given = ExpertRows::make(tokens, sizes, precision, random);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let x = self.pick(&given.x, sizes.hidden, rows);
                    let chosen = given.chosen::<B>(rows, self.device);
                    let mixed = B::mix_experts(x, &chosen, &experts.stack);
                    vec![("mixed", read::<B>(Output::Float(mixed)))]
                };
                (tokens, Box::new(compute))
            }
            Case::RmsNorm {
                tokens,
                hidden,
                weight,
            } => {
                let x = random.normal(tokens * hidden);
                let weight = self.norm(weight, hidden, random);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let normed = B::rms_norm(self.pick(&x, hidden, rows), weight.clone(), EPS);
                    vec![("normed", read::<B>(Output::Float(normed)))]
                };
                (tokens, Box::new(compute))
            }
            Case::AddRmsNorm {
                tokens,
                hidden,
                weight,
            } => {
                let (x, delta) = (
                    random.normal(tokens * hidden),
                    random.normal(tokens * hidden),
                );
                let weight = self.norm(weight, hidden, random);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let (x, delta) = (self.pick(&x, hidden, rows), self.pick(&delta, hidden, rows));
                    let weight = weight.clone();
                    let (sum, normed) = B::add_rms_norm(x, delta, RESIDUAL_SCALE, weight, EPS);
                    let (sum, normed) = (Output::Float(sum), Output::Float(normed));
                    vec![("sum", read::<B>(sum)), ("normed", read::<B>(normed))]
                };
                (tokens, Box::new(compute))
            }
            Case::NormProjections {
                tokens,
                layout,
                weight,
            } => {
                let width = layout.qkv_width();
                let qkv = random.normal(tokens * width);
                let norm = QkNorm::<B> {
                    q: self.norm(weight, layout.heads * layout.head_dim, random),
                    k: self.norm(weight, layout.kv_heads * layout.head_dim, random),
                    eps: EPS,
                };
                let compute = move |rows: &[usize], _: &mut Random| {
                    let normed = B::norm_projections(self.pick(&qkv, width, rows), layout, &norm);
                    vec![("qkv", read::<B>(Output::Float(normed)))]
                };
                (tokens, Box::new(compute))
            }
            Case::ScaleAndCap {
                rows,
                vocab,
                capped,
            } => {
                let x = random.normal(rows * vocab);
                let cap = capped.then_some(CAP);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let scaled = B::scale_and_cap(self.pick(&x, vocab, rows), LOGIT_SCALE, cap);
                    vec![("scaled", read::<B>(Output::Float(scaled)))]
                };
                (rows, Box::new(compute))
            }
            Case::Gate {
                tokens,
                inner,
                activation,
            } => {
                let gate_up = random.normal(tokens * 2 * inner);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let gated = B::gate(self.pick(&gate_up, 2 * inner, rows), activation);
                    vec![("gated", read::<B>(Output::Float(gated)))]
                };
                (tokens, Box::new(compute))
            }
            Case::RopeAndStore {
                tokens,
                layout,
                rotary_dim,
                qk_norm,
                pool,
            } => (
                tokens,
                self.rotated(tokens, layout, (rotary_dim, qk_norm), pool, random),
            ),
            Case::Attention {
                sequences,
                layout,
                window,
                capped,
                sinks,
                summation,
                pool,
            } => {
                let tokens = sequences.iter().map(|(_, new)| new).sum();
                let options = AttentionOptions {
                    window,
                    cap: capped.then_some(CAP),
                    sinks: sinks
                        .then(|| self.activations(&random.normal(layout.heads), &[layout.heads])),
                    ..AttentionOptions::plain(layout.head_dim)
                };
                (
                    tokens,
                    self.attended(sequences, layout, options, summation, pool, random),
                )
            }
            Case::Sample { rows, vocab } => {
                let params: Vec<SampleParams> =
                    (0..rows).map(|_| random_params(vocab, random)).collect();
                let logits = random.normal(rows * vocab);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let params: Vec<SampleParams> =
                        rows.iter().map(|row| params[*row].clone()).collect();
                    let plan = crate::sample_plan::<B>(&params, vocab, self.device);
                    let tokens = B::sample(self.pick(&logits, vocab, rows), plan);
                    vec![("token", read::<B>(Output::Int(tokens)))]
                };
                (rows, Box::new(compute))
            }
        }
    }

    fn projected(
        self,
        format: Option<BlockFormat>,
        [tokens, input, output]: [usize; 3],
        (with_bias, gated): (bool, Option<Activation>),
        summation: Summation,
        random: &mut Random,
    ) -> Compute<'a> {
        let output = if gated.is_some() { 2 * output } else { output };
        let x = random.normal(tokens * input);
        let w = self.matrix(format, output, input, random);
        let bias = with_bias.then(|| self.activations(&random.normal(output), &[output]));
        Box::new(move |rows, _| {
            let (x, w, bias) = (self.pick(&x, input, rows), w.clone(), bias.clone());
            let y = match gated {
                Some(activation) => B::project_gated(x, w, bias, activation, summation),
                None => B::project(x, w, bias, summation),
            };
            vec![("y", read::<B>(Output::Float(y)))]
        })
    }

    fn embedded(
        self,
        format: Option<BlockFormat>,
        [tokens, vocab, hidden]: [usize; 3],
        random: &mut Random,
    ) -> Compute<'a> {
        let table = self.matrix(format, vocab, hidden, random);
        let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab) as u32).collect();
        Box::new(move |rows, _| {
            let ids: Vec<u32> = rows.iter().map(|row| ids[*row]).collect();
            let ids = indices::<B>(&ids, self.device);
            let embedded = B::embed(table.clone(), ids);
            vec![("rows", read::<B>(Output::Float(embedded)))]
        })
    }
}
