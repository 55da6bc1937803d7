//! Rows with positions: rotation, and attention over a sequence.

use burn::tensor::DType;
use hearth_forward::SequenceSpan;

use super::super::prepare::{EPS, Output, Pool, float};
use super::super::{NormWeight, PoolKind, Random, read};
use super::{Compute, Maker};
use crate::{AttentionOptions, HeadLayout, Kernels, QkNorm, RaggedIndex, RopeTable, Summation};

/// The number of positions of a rotation table.
const POSITIONS: usize = 64;

impl<'a, B: Kernels> Maker<'a, B> {
    pub(super) fn rotated(
        self,
        tokens: usize,
        layout: HeadLayout,
        (rotary_dim, qk_norm): (usize, Option<NormWeight>),
        pool: PoolKind,
        random: &mut Random,
    ) -> Compute<'a> {
        let half = rotary_dim / 2;
        let kv_width = layout.kv_heads * layout.head_dim;
        let qkv = random.normal(tokens * layout.qkv_width());
        let positions: Vec<u32> = (0..tokens)
            .map(|_| random.below(POSITIONS) as u32)
            .collect();
        let mut angles = || {
            let values = random.normal(POSITIONS * half.max(1));
            float::<B>(&values, &[POSITIONS, half.max(1)], DType::F32, self.device)
        };
        let rope = RopeTable::<B> {
            cos: angles(),
            sin: angles(),
            rotary_dim,
        };
        let norm = qk_norm.map(|weight| QkNorm::<B> {
            q: self.norm(weight, layout.head_dim, random),
            k: self.norm(weight, layout.head_dim, random),
            eps: EPS,
        });
        Box::new(move |rows, random| {
            let slots = random.distinct(rows.len(), rows.len());
            let at: Vec<u32> = rows.iter().map(|row| positions[*row]).collect();
            let index = self.index(&at, &slots, &[], &[], layout, Summation::Fixed);
            let nothing = vec![f32::NAN; rows.len() * kv_width];
            let shape = [rows.len(), layout.kv_heads, layout.head_dim];
            let format = pool.format(self.precision.stored);
            let pool = || Pool::<B>::of(&nothing, shape, format, self.device);
            let (mut k, mut v) = (pool(), pool());
            let qkv = self.pick(&qkv, layout.qkv_width(), rows);
            let (norm, pools) = (norm.as_ref(), (&mut k.tensor, &mut v.tensor));
            let q = B::rope_and_store(qkv, layout, norm, &rope, &index, pools.0, pools.1);
            let in_order = |pool: Pool<B>| {
                let pool = pool.into_values();
                let row = |slot: &u32| pool[*slot as usize * kv_width..][..kv_width].to_vec();
                slots.iter().flat_map(row).collect()
            };
            let (k, v) = (in_order(k), in_order(v));
            vec![("q", read::<B>(Output::Float(q))), ("k", k), ("v", v)]
        })
    }

    pub(super) fn attended(
        self,
        sequences: Vec<(usize, usize)>,
        layout: HeadLayout,
        options: AttentionOptions<B>,
        summation: Summation,
        kind: PoolKind,
        random: &mut Random,
    ) -> Compute<'a> {
        let kv_width = layout.kv_heads * layout.head_dim;
        let q_width = layout.heads * layout.head_dim;
        // The sequence and position of each row, and where each sequence's KV begins.
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
            // Every batch uses other slots, because the result must not depend on where KV lies.
            let slots = random.distinct(used, used + 2);
            let pool = |values: &[f32]| {
                let mut pool = vec![f32::NAN; (used + 2) * kv_width];
                for (row, slot) in values.chunks_exact(kv_width).zip(&slots) {
                    pool[*slot as usize * kv_width..][..kv_width].copy_from_slice(row);
                }
                let shape = [used + 2, layout.kv_heads, layout.head_dim];
                Pool::<B>::of(
                    &pool,
                    shape,
                    kind.format(self.precision.stored),
                    self.device,
                )
                .tensor
            };
            let (k, v) = (pool(&k), pool(&v));
            // Rows that follow each other in a sequence form a chunk.
            let mut spans: Vec<(usize, SequenceSpan)> = Vec::new();
            let mut table = Vec::new();
            let at: Vec<(usize, usize)> = rows.iter().map(|row| places[*row]).collect();
            for &(sequence, position) in &at {
                match spans.last_mut() {
                    Some((last, span))
                        if *last == sequence && span.context as usize == position =>
                    {
                        span.context += 1;
                        span.tokens += 1;
                    }
                    _ => {
                        let span = SequenceSpan {
                            context: position as u32 + 1,
                            tokens: 1,
                            first_slot: table.len() as u32,
                        };
                        spans.push((sequence, span));
                        let all = sequences[sequence].0;
                        table.extend_from_slice(&slots[begins[sequence]..][..all]);
                    }
                }
            }
            let positions: Vec<u32> = at.iter().map(|(_, position)| *position as u32).collect();
            let spans: Vec<SequenceSpan> = spans.into_iter().map(|(_, span)| span).collect();
            let index = self.index(&positions, &[0], &spans, &table, layout, summation);
            let q = self.pick(&q, q_width, rows);
            let mixed = B::paged_attention(q, layout, &index, &options, &k, &v);
            vec![("mixed", read::<B>(Output::Float(mixed)))]
        })
    }

    fn index(
        &self,
        positions: &[u32],
        write_slots: &[u32],
        spans: &[SequenceSpan],
        table: &[u32],
        layout: HeadLayout,
        summation: Summation,
    ) -> RaggedIndex<B> {
        // `rope_and_store` reads no slot table, so a batch without spans gets one sequence and one
        // slot.
        let alone = [SequenceSpan {
            context: positions.len() as u32,
            tokens: positions.len() as u32,
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
