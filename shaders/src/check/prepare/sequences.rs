//! Cases of kernels that depend on positions: rotation, and attention over a sequence's KV.

use burn::tensor::DType;
use hearth_forward::SequenceSpan;

use super::{
    CAP, EPS, Expected, Maker, NormWeight, Output, Pool, PoolKind, Prepared, SCORE_SCALE, Work,
    float, reference,
};
use crate::{
    AttentionOptions, HeadLayout, Kernels, KvFormat, QkNorm, RaggedIndex, RopeTable, Summation,
};

pub(super) fn rope_and_store<B: Kernels>(
    mut make: Maker<B>,
    tokens: usize,
    layout: HeadLayout,
    rotary_dim: usize,
    qk_norm: Option<NormWeight>,
    pool: PoolKind,
) -> Prepared<B> {
    let (table_rows, half) = (100, rotary_dim / 2);
    // Leave slots between those that are written, to notice writes to the wrong slot.
    let slots = tokens + tokens / 2 + 3;
    let kv_width = layout.kv_heads * layout.head_dim;
    let (qkv, qkv_on) = make.activations(&[tokens, layout.qkv_width()]);
    // Without a rotation the tables are not read, but there are no tensors without elements.
    let (cos, cos_on) = make.make(&[table_rows, half.max(1)], DType::F32);
    let (sin, sin_on) = make.make(&[table_rows, half.max(1)], DType::F32);
    let weight = qk_norm.unwrap_or(NormWeight::Same);
    let (q_norm, q_norm_on) = make.norm(weight, layout.head_dim);
    let (k_norm, k_norm_on) = make.norm(weight, layout.head_dim);
    let random = &mut *make.random;
    let positions: Vec<u32> = (0..tokens)
        .map(|_| random.below(table_rows) as u32)
        .collect();
    let write_slots = random.distinct(tokens, slots);
    let span = SequenceSpan {
        context: table_rows as u32,
        tokens: tokens as u32,
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
    let format = pool.format(make.precision.stored);
    let mut pools = [(); 2].map(|()| Pool::<B>::of(&poison, shape, format, make.device));
    let rope = RopeTable::<B> {
        cos: cos_on,
        sin: sin_on,
        rotary_dim,
    };
    let norm_on = qk_norm.is_some().then_some(QkNorm::<B> {
        q: q_norm_on,
        k: k_norm_on,
        eps: EPS,
    });
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let [k, v] = &mut pools;
            let q = B::rope_and_store(
                qkv_on.clone(),
                layout,
                norm_on.as_ref(),
                &rope,
                &index,
                &mut k.tensor,
                &mut v.tensor,
            );
            vec![
                Output::Float(q),
                Output::Pool(k.clone()),
                Output::Pool(v.clone()),
            ]
        }),
        want: Box::new(move || {
            let eps = f64::from(EPS);
            let norms = qk_norm
                .is_some()
                .then_some((q_norm.as_slice(), k_norm.as_slice(), eps));
            let rotated = reference::rope(&qkv, layout, norms, &cos, &sin, half, &positions);
            let scatter = |rows: &[f64]| {
                let mut pool = vec![f64::NAN; slots * kv_width];
                for (row, slot) in rows.chunks(kv_width).zip(&write_slots) {
                    pool[*slot as usize * kv_width..][..kv_width].copy_from_slice(row);
                }
                pool
            };
            let expected = |values| match pool {
                PoolKind::Floats => Expected::Values(values),
                PoolKind::Int8 => Expected::Rounded {
                    values,
                    width: layout.head_dim,
                },
            };
            let (k, v) = (scatter(&rotated.k), scatter(&rotated.v));
            vec![
                ("q", Expected::Values(rotated.q)),
                ("k pool", expected(k)),
                ("v pool", expected(v)),
            ]
        }),
        work: Work {
            bytes: (tokens * layout.qkv_width()) as u64 * activation
                + (tokens * layout.heads * layout.head_dim) as u64 * activation
                + 2 * (tokens * layout.kv_heads * format.head_bytes(layout.head_dim)) as u64,
            flops: 0,
        },
    }
}

pub(super) fn attention<B: Kernels>(
    mut make: Maker<B>,
    sequences: &[(usize, usize)],
    layout: HeadLayout,
    window: Option<u32>,
    [capped, with_sinks]: [bool; 2],
    summation: Summation,
    pool: PoolKind,
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
        spans.push(SequenceSpan {
            context: context as u32,
            tokens: tokens as u32,
            first_slot: first_slot as u32,
        });
        table.extend(free.drain(..context));
    }
    let tokens = positions.len();
    let shape = [slots, layout.kv_heads, layout.head_dim];
    let (stored_as, format) = (make.precision.stored, pool.format(make.precision.stored));
    let width = layout.heads * layout.head_dim;
    let mut q = make
        .random
        .normal_as(make.precision.activations, tokens * width);
    if B::attention_tiles(layout, format.dtype(), make.device).is_some() {
        // Scores have to vary widely to exercise the rescaling that tiles do when a maximum grows.
        let sharp = [1.0, 4.0, 16.0][make.random.below(3)];
        q.iter_mut().for_each(|q| *q *= sharp);
    }
    let q_on = float::<B>(
        &q,
        &[tokens, width],
        make.precision.activations,
        make.device,
    );
    let mut pool = || {
        let mut values = make.random.normal_as(stored_as, slots * kv_width);
        // Slots that belong to no sequence must not be read.
        for slot in &free {
            values[*slot as usize * kv_width..][..kv_width].fill(f32::NAN);
        }
        let tensor = Pool::<B>::of(&values, shape, format, make.device).tensor;
        if format == KvFormat::Int8 {
            let heads = values.chunks(layout.head_dim);
            values = heads.flat_map(|head| reference::to_int8(head).1).collect();
        }
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
    // The sinks are so large that they change every row.
    let (sinks, sinks_on) = make.activations(&[layout.heads]);
    let sinks = with_sinks.then_some(sinks);
    let options = AttentionOptions::<B> {
        window,
        scale: SCORE_SCALE / (layout.head_dim as f32).sqrt(),
        cap: capped.then_some(CAP),
        sinks: with_sinks.then_some(sinks_on),
    };
    let scale = options.scale;
    let seen: usize = positions
        .iter()
        .map(|position| *position as usize + 1)
        .sum();
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let mixed = B::paged_attention(q_on.clone(), layout, &index, &options, &k_on, &v_on);
            vec![Output::Float(mixed)]
        }),
        want: Box::new(move || {
            let weighing = reference::Weighing {
                window,
                scale,
                cap: capped.then_some(CAP),
                sinks: sinks.as_deref(),
            };
            let mixed =
                reference::attention(&q, &k, &v, layout, &positions, &starts, &table, &weighing);
            vec![("mixed", Expected::Values(mixed))]
        }),
        work: Work {
            bytes: 2 * (used * layout.kv_heads * format.head_bytes(layout.head_dim)) as u64
                + 2 * (tokens * layout.heads * layout.head_dim) as u64 * activation,
            flops: 4 * (seen * layout.heads * layout.head_dim) as u64,
        },
    }
}
