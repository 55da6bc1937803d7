//! Whether a row has the same bits whatever it is computed with: the rows of a case together,
//! alone, in other batches, in other orders and, of a sequence, in other chunks.

use burn::tensor::ops::FloatTensor;

use super::prepare::packed::blocks;
use super::prepare::{Output, float};
use super::{Case, Precision, Random, poison, read};
use crate::ragged::indices;
use crate::{Choice, HeadLayout, Kernels, QkNorm, RaggedIndex, RopeTable, Span, Summation};

const EPS: f32 = 1e-3;
/// Positions that a rotation has.
const POSITIONS: usize = 64;

/// A value that depends on what its row was computed with.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{case:?} in {precision:?}: {what}[{row}, {column}] is {apart:e} in a batch of {rows} rows and \
     {together:e} in one of all"
)]
pub struct Differs {
    pub case: Case,
    pub precision: Precision,
    pub what: &'static str,
    pub row: usize,
    pub column: usize,
    /// Of the batch where it was not what it is in that of all rows.
    pub rows: usize,
    pub apart: f32,
    pub together: f32,
}

/// `[rows, width]` by name, for the rows that were asked for, in that order.
type Rows = Vec<(&'static str, Vec<f32>)>;
type Compute<'a> = Box<dyn FnMut(&[usize], &mut Random) -> Rows + 'a>;

/// Computes the rows of `case` together and in a few other batches.
///
/// # Errors
/// The first value with other bits.
pub fn same_bits<B: Kernels>(
    case: &Case,
    precision: Precision,
    random: &mut Random,
    device: &B::Device,
) -> Result<(), Box<Differs>> {
    let make = Maker::<B> { precision, device };
    let (count, mut compute) = make.rows(case, random);
    let all: Vec<usize> = (0..count).collect();
    let together = compute(&all, random);
    for batch in batches(count, random) {
        for (_, rows) in &together {
            poison::<B>(
                rows.len() / count * batch.len(),
                precision.activations,
                device,
            );
        }
        for ((what, apart), (_, together)) in compute(&batch, random).iter().zip(&together) {
            let width = together.len() / count;
            for (apart, row) in apart.chunks_exact(width).zip(&batch) {
                let together = &together[row * width..][..width];
                let differs =
                    |column: &usize| apart[*column].to_bits() != together[*column].to_bits();
                if let Some(column) = (0..width).find(differs) {
                    return Err(Box::new(Differs {
                        case: case.clone(),
                        precision,
                        what,
                        row: *row,
                        column,
                        rows: batch.len(),
                        apart: apart[column],
                        together: together[column],
                    }));
                }
            }
        }
    }
    Ok(())
}

/// One row alone, some neighbours, some in no order, and all in no order.
fn batches(count: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let mut shuffled = |count: usize, of: usize| -> Vec<usize> {
        let rows = random.distinct(count, of);
        rows.into_iter().map(|row| row as usize).collect()
    };
    let all = shuffled(count, count);
    let one = all[..1].to_vec();
    let some = all[..count.div_ceil(2)].to_vec();
    let (first, last) = (all[0].min(all[count - 1]), all[0].max(all[count - 1]));
    vec![one, (first..=last).collect(), some, all]
}

struct Maker<'a, B: Kernels> {
    precision: Precision,
    device: &'a B::Device,
}

impl<'a, B: Kernels> Maker<'a, B> {
    fn stored(&self, values: &[f32], shape: &[usize]) -> FloatTensor<B> {
        float::<B>(values, shape, self.precision.stored, self.device)
    }

    fn activations(&self, values: &[f32], shape: &[usize]) -> FloatTensor<B> {
        float::<B>(values, shape, self.precision.activations, self.device)
    }

    /// The `rows` of `values` `[rows, width]`.
    fn pick(&self, values: &[f32], width: usize, rows: &[usize]) -> FloatTensor<B> {
        let picked: Vec<f32> = rows
            .iter()
            .flat_map(|row| &values[row * width..][..width])
            .copied()
            .collect();
        self.activations(&picked, &[rows.len(), width])
    }

    /// How many rows `case` has, and what computes some of them.
    fn rows(self, case: &Case, random: &mut Random) -> (usize, Compute<'a>) {
        match case.clone() {
            Case::Linear {
                tokens,
                input,
                output,
                bias,
                summation,
            } => {
                let x = random.normal(tokens * input);
                let w = self.stored(&random.normal(output * input), &[output, input]);
                let bias = bias.then(|| self.activations(&random.normal(output), &[output]));
                let compute = move |rows: &[usize], _: &mut Random| {
                    let x = self.pick(&x, input, rows);
                    let y = B::project(x, w.clone(), bias.clone(), summation);
                    vec![("y", read::<B>(Output::Float(y)))]
                };
                (tokens, Box::new(compute))
            }
            Case::Embed {
                tokens,
                vocab,
                hidden,
            } => {
                let table = self.stored(&random.normal(vocab * hidden), &[vocab, hidden]);
                let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab) as u32).collect();
                let compute = move |rows: &[usize], _: &mut Random| {
                    let ids: Vec<u32> = rows.iter().map(|row| ids[*row]).collect();
                    let ids = indices::<B>(&ids, self.device);
                    let embedded = B::embed(table.clone(), ids);
                    vec![("rows", read::<B>(Output::Float(embedded)))]
                };
                (tokens, Box::new(compute))
            }
            Case::PackedLinear {
                format,
                tokens,
                input,
                output,
                bias,
                summation,
            } => {
                let x = random.normal(tokens * input);
                let (_, matrix) = blocks(format, output, input, random);
                let w = B::packed(matrix, self.precision.activations, self.device);
                let bias = bias.then(|| self.activations(&random.normal(output), &[output]));
                let compute = move |rows: &[usize], _: &mut Random| {
                    let x = self.pick(&x, input, rows);
                    let y = B::project(x, w.clone(), bias.clone(), summation);
                    vec![("y", read::<B>(Output::Float(y)))]
                };
                (tokens, Box::new(compute))
            }
            Case::PackedEmbed {
                format,
                tokens,
                vocab,
                hidden,
            } => {
                let (_, matrix) = blocks(format, vocab, hidden, random);
                let table = B::packed(matrix, self.precision.activations, self.device);
                let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab) as u32).collect();
                let compute = move |rows: &[usize], _: &mut Random| {
                    let ids: Vec<u32> = rows.iter().map(|row| ids[*row]).collect();
                    let ids = indices::<B>(&ids, self.device);
                    let embedded = B::embed(table.clone(), ids);
                    vec![("rows", read::<B>(Output::Float(embedded)))]
                };
                (tokens, Box::new(compute))
            }
            Case::RmsNorm { tokens, hidden } => {
                let x = random.normal(tokens * hidden);
                let weight = self.activations(&random.normal(hidden), &[hidden]);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let normed = B::rms_norm(self.pick(&x, hidden, rows), weight.clone(), EPS);
                    vec![("normed", read::<B>(Output::Float(normed)))]
                };
                (tokens, Box::new(compute))
            }
            Case::AddRmsNorm { tokens, hidden } => {
                let (x, delta) = (
                    random.normal(tokens * hidden),
                    random.normal(tokens * hidden),
                );
                let weight = self.activations(&random.normal(hidden), &[hidden]);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let (x, delta) = (self.pick(&x, hidden, rows), self.pick(&delta, hidden, rows));
                    let (sum, normed) = B::add_rms_norm(x, delta, weight.clone(), EPS);
                    let (sum, normed) = (Output::Float(sum), Output::Float(normed));
                    vec![("sum", read::<B>(sum)), ("normed", read::<B>(normed))]
                };
                (tokens, Box::new(compute))
            }
            Case::SiluMul { tokens, inner } => {
                let gate_up = random.normal(tokens * 2 * inner);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let gated = B::silu_mul(self.pick(&gate_up, 2 * inner, rows));
                    vec![("gated", read::<B>(Output::Float(gated)))]
                };
                (tokens, Box::new(compute))
            }
            Case::RopeAndStore {
                tokens,
                layout,
                rotary_dim,
                qk_norm,
            } => (
                tokens,
                self.rotated(tokens, layout, rotary_dim, qk_norm, random),
            ),
            Case::Attention {
                sequences,
                layout,
                window,
                summation,
            } => {
                let tokens = sequences.iter().map(|(_, new)| new).sum();
                (
                    tokens,
                    self.attended(sequences, layout, window, summation, random),
                )
            }
            Case::Choose { rows, vocab } => {
                let choices: Vec<Choice> =
                    (0..rows).map(|_| Choice::random(vocab, random)).collect();
                let logits = random.normal(rows * vocab);
                let compute = move |rows: &[usize], _: &mut Random| {
                    let choices: Vec<Choice> =
                        rows.iter().map(|row| choices[*row].clone()).collect();
                    let plan = crate::plan::<B>(&choices, vocab, self.device);
                    let tokens = B::choose(self.pick(&logits, vocab, rows), plan);
                    vec![("token", read::<B>(Output::Int(tokens)))]
                };
                (rows, Box::new(compute))
            }
        }
    }

    fn rotated(
        self,
        tokens: usize,
        layout: HeadLayout,
        rotary_dim: usize,
        qk_norm: bool,
        random: &mut Random,
    ) -> Compute<'a> {
        let half = rotary_dim / 2;
        let kv_width = layout.kv_heads * layout.head_dim;
        let qkv = random.normal(tokens * layout.qkv_width());
        let positions: Vec<u32> = (0..tokens)
            .map(|_| random.below(POSITIONS) as u32)
            .collect();
        let mut angles = || {
            let values = random.normal(POSITIONS * half);
            float::<B>(
                &values,
                &[POSITIONS, half],
                burn::tensor::DType::F32,
                self.device,
            )
        };
        let rope = RopeTable::<B> {
            cos: angles(),
            sin: angles(),
            rotary_dim,
        };
        let mut weights = || self.activations(&random.normal(layout.head_dim), &[layout.head_dim]);
        let norm = qk_norm.then(|| QkNorm::<B> {
            q: weights(),
            k: weights(),
            eps: EPS,
        });
        Box::new(move |rows, random| {
            let slots = random.distinct(rows.len(), rows.len());
            let at: Vec<u32> = rows.iter().map(|row| positions[*row]).collect();
            let index = self.index(&at, &slots, &[], &[], layout, Summation::Fixed);
            let nothing = vec![f32::NAN; rows.len() * kv_width];
            let shape = [rows.len(), layout.kv_heads, layout.head_dim];
            let (mut k, mut v) = (self.stored(&nothing, &shape), self.stored(&nothing, &shape));
            let qkv = self.pick(&qkv, layout.qkv_width(), rows);
            let q = B::rope_and_store(qkv, layout, norm.as_ref(), &rope, &index, &mut k, &mut v);
            let in_order = |pool: FloatTensor<B>| {
                let pool = read::<B>(Output::Float(pool));
                let row = |slot: &u32| pool[*slot as usize * kv_width..][..kv_width].to_vec();
                slots.iter().flat_map(row).collect()
            };
            let (k, v) = (in_order(k), in_order(v));
            vec![("q", read::<B>(Output::Float(q))), ("k", k), ("v", v)]
        })
    }

    fn attended(
        self,
        sequences: Vec<(usize, usize)>,
        layout: HeadLayout,
        window: Option<u32>,
        summation: Summation,
        random: &mut Random,
    ) -> Compute<'a> {
        let kv_width = layout.kv_heads * layout.head_dim;
        let q_width = layout.heads * layout.head_dim;
        // The sequence and position of each row, and where the sequence's KV begins.
        let (mut places, mut begins, mut used) = (Vec::new(), Vec::new(), 0);
        for (sequence, &(context, new)) in sequences.iter().enumerate() {
            places.extend((context - new..context).map(|position| (sequence, position)));
            begins.push(used);
            used += context;
        }
        let q = random.normal(places.len() * q_width);
        let (k, v) = (
            random.normal(used * kv_width),
            random.normal(used * kv_width),
        );
        Box::new(move |rows, random| {
            // Every batch has its own slots: where KV lies is not to matter.
            let slots = random.distinct(used, used + 2);
            let pool = |values: &[f32]| {
                let mut pool = vec![f32::NAN; (used + 2) * kv_width];
                for (row, slot) in values.chunks_exact(kv_width).zip(&slots) {
                    pool[*slot as usize * kv_width..][..kv_width].copy_from_slice(row);
                }
                self.stored(&pool, &[used + 2, layout.kv_heads, layout.head_dim])
            };
            let (k, v) = (pool(&k), pool(&v));
            // Rows that follow each other in a sequence are a chunk.
            let mut spans: Vec<(usize, Span)> = Vec::new();
            let mut table = Vec::new();
            let at: Vec<(usize, usize)> = rows.iter().map(|row| places[*row]).collect();
            for &(sequence, position) in &at {
                match spans.last_mut() {
                    Some((last, span)) if *last == sequence && span.context == position => {
                        span.context += 1;
                        span.tokens += 1;
                    }
                    _ => {
                        let span = Span {
                            context: position + 1,
                            tokens: 1,
                            first_slot: table.len(),
                        };
                        spans.push((sequence, span));
                        let all = sequences[sequence].0;
                        table.extend_from_slice(&slots[begins[sequence]..][..all]);
                    }
                }
            }
            let positions: Vec<u32> = at.iter().map(|(_, position)| *position as u32).collect();
            let spans: Vec<Span> = spans.into_iter().map(|(_, span)| span).collect();
            let index = self.index(&positions, &[0], &spans, &table, layout, summation);
            let q = self.pick(&q, q_width, rows);
            let mixed = B::paged_attention(q, layout, &index, window, &k, &v);
            vec![("mixed", read::<B>(Output::Float(mixed)))]
        })
    }

    fn index(
        &self,
        positions: &[u32],
        write_slots: &[u32],
        spans: &[Span],
        table: &[u32],
        layout: HeadLayout,
        summation: Summation,
    ) -> RaggedIndex<B> {
        // A batch that stores and attends to nothing has one sequence and no slots.
        let alone = [Span {
            context: positions.len(),
            tokens: positions.len(),
            first_slot: 0,
        }];
        let spans = if spans.is_empty() { &alone } else { spans };
        let table = if table.is_empty() { &[0] } else { table };
        let device = self.device;
        RaggedIndex::upload(
            positions,
            write_slots,
            spans,
            table,
            layout,
            summation,
            device,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_rows_that_there_are_once_each() {
        let mut random = Random::seeded(3);
        for count in [1, 2, 7, 40] {
            for batch in batches(count, &mut random) {
                let mut seen = batch.clone();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), batch.len());
                assert!(!seen.is_empty() && seen.iter().all(|row| *row < count));
            }
        }
    }
}
