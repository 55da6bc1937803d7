//! The operations on the CPU. Activations are f32. Weights and KV pools are f32, bf16 or f16, and KV
//! pools may be 8-bit integers; all are widened in registers. Activations are rounded, too, in three
//! cases: products with bf16 weights on CPUs that multiply bf16, attention over bf16 pools on matrix
//! tiles (AMX), and products with weights in blocks.

mod aligned;
#[cfg(target_arch = "x86_64")]
mod amx;
mod arena;
mod attention;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod blocks;
mod caches;
mod elementwise;
mod experts;
mod huge_pages;
mod limit;
mod linear;
mod low_rank;
#[cfg(test)]
mod noise;
mod output;
mod poison;
mod pools;
mod rope;
mod simd;
mod tensors;
pub mod times;

use std::borrow::Cow;
use std::ops::Range;

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, TensorData};
use burn_flex::{Flex, FlexDevice, FlexTensor};

use crate::{
    Activation, AdapterIndex, AttentionOptions, ChosenExperts, Experts, Hardware, HeadLayout,
    Kernels, KvFormat, LowRankStack, QkNorm, RaggedIndex, RopeTable, Routing, Summation,
};
pub use arena::LineBytes;
pub use blocks::{BLOCK, BlockFormat, BlockMatrix, GROUP_ROWS};
pub(crate) use blocks::{Layout, PartScales, Scales, View};
pub use limit::check_limit;
use output::{Addend, Output};
use simd::Stored;
use tensors::{BLOCKS, bytes_of, dims, elements, matrix_dims, tensor, widened, with_stored};
use times::Operation;

impl Kernels for Flex {
    fn packs(formats: &[BlockFormat]) -> bool {
        match formats {
            #[cfg(target_arch = "x86_64")]
            [BlockFormat::Bf16, others @ ..] => {
                bf16::available() && others.iter().all(|other| *other == BlockFormat::Bf16)
            }
            formats => !formats.contains(&BlockFormat::Bf16),
        }
    }

    // `_activations` is ignored, because activations on the CPU are always f32.
    fn packed(matrix: BlockMatrix, _activations: DType, _device: &FlexDevice) -> FlexTensor {
        let bytes = matrix.into_bytes();
        let shape = Shape::from([1, bytes.len()]);
        FlexTensor::from_data(TensorData::from_bytes(bytes, shape, BLOCKS))
    }

    fn packed_bytes(format: BlockFormat, rows: usize, columns: usize) -> usize {
        BlockMatrix::bytes(&[(format, rows)], columns)
    }

    fn rounds_activations() -> bool {
        true
    }

    fn empty_pool(_device: &FlexDevice, shape: [usize; 3], dtype: DType) -> FlexTensor {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let data = LineBytes::zeroed(bytes).into_bytes();
        FlexTensor::from_data(TensorData::from_bytes(data, Shape::from(shape), dtype))
    }

    fn in_memory(pool: &mut FlexTensor) -> Option<&mut [u8]> {
        Some(match pool.dtype() {
            DType::F32 => bytemuck::cast_slice_mut(pool.storage_mut::<f32>()),
            DType::BF16 => bytemuck::cast_slice_mut(pool.storage_mut::<half::bf16>()),
            DType::F16 => bytemuck::cast_slice_mut(pool.storage_mut::<half::f16>()),
            DType::U32 => bytemuck::cast_slice_mut(pool.storage_mut::<u32>()),
            other => panic!("the CPU kernels take f32, bf16 and f16, not {other:?}"),
        })
    }

    fn hardware(_device: &FlexDevice) -> Option<Hardware> {
        None
    }

    fn reserved_bytes(_device: &FlexDevice) -> Option<u64> {
        None
    }

    // `_summation` is ignored, because every order of summation on the CPU is fixed.
    fn project(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Option<FlexTensor>,
        _summation: Summation,
    ) -> FlexTensor {
        product(x, weight, bias, None)
    }

    fn project_changed(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Option<FlexTensor>,
        _summation: Summation,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> FlexTensor {
        let x = x.to_contiguous();
        let h = Self::shrink(x.clone(), stack, index);
        if index.groups.len() > 1 {
            // A task of the product would wait for memory at the few numbers of each adapter.
            let y = product(x, weight, bias, None);
            return Self::expand(y, h, stack, index);
        }
        with_stored!(&stack.b, b => {
            let changes = changes(stack, index, elements(&h), [b, elements(&stack.bias)]);
            product(x, weight, bias, Some(&changes))
        })
    }

    fn packed_low_rank(b: Vec<f32>, output: usize) -> Vec<f32> {
        low_rank::packed(&b, output)
    }

    fn shrink(x: FlexTensor, stack: &LowRankStack<Self>, index: &AdapterIndex<Self>) -> FlexTensor {
        let x = x.to_contiguous();
        let [rows, input] = dims(&x);
        let _timer = times::time(|| (Operation::Adapters, 0, 0));
        let sizes = sizes(stack);
        let h = with_stored!(&stack.a, a => {
            low_rank::shrink(elements(&x), a, input, sizes, &index.groups)
        });
        tensor(h, [rows, sizes.inner()])
    }

    fn expand(
        y: FlexTensor,
        h: FlexTensor,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> FlexTensor {
        let (mut y, h) = (y.to_contiguous(), h.to_contiguous());
        let _timer = times::time(|| (Operation::Adapters, 0, 0));
        with_stored!(&stack.b, b => {
            let changes = changes(stack, index, elements(&h), [b, elements(&stack.bias)]);
            low_rank::expand(y.storage_mut(), &changes);
        });
        y
    }

    fn choose_experts(logits: FlexTensor, routing: Routing) -> ChosenExperts<Self> {
        let _timer = times::time(|| (Operation::Routing, 0, 0));
        let logits = logits.to_contiguous();
        let [rows, count] = dims(&logits);
        let (ids, weights) = experts::choose(elements(&logits), count, routing);
        let shape = [rows, routing.top];
        ChosenExperts {
            ids: FlexTensor::from_data(TensorData::new(ids, shape)),
            weights: tensor(weights, shape),
        }
    }

    fn mix_experts(
        x: FlexTensor,
        chosen: &ChosenExperts<Self>,
        stack: &Experts<Self>,
    ) -> FlexTensor {
        let (x, weights) = (x.to_contiguous(), chosen.weights.to_contiguous());
        let ([rows, hidden], [_, top]) = (dims(&x), dims(&weights));
        assert_eq!(hidden, stack.hidden, "experts: columns of x");
        let ([both, _], [outer, _]) = (matrix_dims(&stack.gate_up), matrix_dims(&stack.down));
        assert_eq!(
            both * hidden,
            outer * 2 * stack.width,
            "experts: rows of the two matrices"
        );
        let count = outer / hidden;
        let ids = elements::<i32>(&chosen.ids);
        let pairs = experts::Pairs::of(ids, top, count);
        let _timer = times::time(|| {
            let bytes = bytes_of(&stack.gate_up) + bytes_of(&stack.down);
            let bytes = bytes / count * pairs.groups.len();
            let flops = 6 * pairs.count() * hidden * stack.width;
            (Operation::Experts, bytes, flops)
        });
        // All steps run on a thread of the pool, so that none has to wake it.
        let mixed = rayon::scope(|_| {
            let x = pairs.gather(elements(&x), hidden);
            let inner = (2 * stack.width, hidden);
            let gate_up = of_each(
                &x,
                &stack.gate_up,
                stack.gate_up_bias.as_ref(),
                inner,
                &pairs,
            );
            let gated = experts::activate(&gate_up, stack.width, stack.activation);
            let outer = (hidden, stack.width);
            let y = of_each(&gated, &stack.down, stack.down_bias.as_ref(), outer, &pairs);
            pairs.mix(&y, elements(&weights), hidden)
        });
        tensor(mixed, [rows, hidden])
    }

    fn embed(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FlexTensor {
        let [_, hidden] = matrix_dims(&table);
        let ids: &[i32] = elements(&ids);
        let _timer = times::time(|| (Operation::Embedding, 0, 0));
        let mut out = output::zeros(ids.len() * hidden);
        if table.dtype() == BLOCKS {
            let table = blocks::View::of(elements(&table));
            for (out, id) in out.chunks_exact_mut(hidden).zip(ids) {
                table.row(*id as usize, out);
            }
            return tensor(out, [ids.len(), hidden]);
        }
        with_stored!(&table, rows => {
            for (out, id) in out.chunks_exact_mut(hidden).zip(ids) {
                let row = &rows[*id as usize * hidden..][..hidden];
                out.iter_mut().zip(row).for_each(|(out, value)| *out = value.widen());
            }
        });
        tensor(out, [ids.len(), hidden])
    }

    fn rms_norm(x: FlexTensor, weight: FlexTensor, eps: f32) -> FlexTensor {
        let _timer = times::time(|| (Operation::Norm, 0, 0));
        let x = x.to_contiguous();
        let shape = dims(&x);
        tensor(
            elementwise::rms_norm(elements(&x), &widened(weight), eps),
            shape,
        )
    }

    fn add_rms_norm(
        x: FlexTensor,
        delta: FlexTensor,
        scale: f32,
        weight: FlexTensor,
        eps: f32,
    ) -> (FlexTensor, FlexTensor) {
        let _timer = times::time(|| (Operation::Norm, 0, 0));
        let (mut x, delta) = (x.to_contiguous(), delta.to_contiguous());
        let shape = dims(&x);
        let weight = widened(weight);
        let (sum, delta) = (x.storage_mut(), elements(&delta));
        let normed = elementwise::add_rms_norm(sum, delta, scale, &weight, eps);
        (x, tensor(normed, shape))
    }

    fn gate(gate_up: FlexTensor, activation: Activation) -> FlexTensor {
        let _timer = times::time(|| (Operation::Activation, 0, 0));
        let gate_up = gate_up.to_contiguous();
        let [tokens, both] = dims(&gate_up);
        tensor(
            elementwise::gate(elements(&gate_up), both / 2, activation),
            [tokens, both / 2],
        )
    }

    fn scale_and_cap(x: FlexTensor, scale: f32, cap: Option<f32>) -> FlexTensor {
        let _timer = times::time(|| (Operation::Activation, 0, 0));
        let mut x = x.to_contiguous();
        elementwise::scale_and_cap(x.storage_mut(), scale, cap);
        x
    }

    fn norm_projections(qkv: FlexTensor, layout: HeadLayout, norm: &QkNorm<Self>) -> FlexTensor {
        let _timer = times::time(|| (Operation::Norm, 0, 0));
        let mut qkv = qkv.to_contiguous();
        let [_, width] = dims(&qkv);
        assert_eq!(width, layout.qkv_width(), "norm_projections: width of qkv");
        let weights = [widened(norm.q.clone()), widened(norm.k.clone())];
        rope::norm_projections(qkv.storage_mut(), layout, &weights, norm.eps);
        qkv
    }

    fn rope_and_store(
        qkv: FlexTensor,
        layout: HeadLayout,
        norm: Option<&QkNorm<Self>>,
        rope: &RopeTable<Self>,
        index: &RaggedIndex<Self>,
        k_pool: &mut FlexTensor,
        v_pool: &mut FlexTensor,
    ) -> FlexTensor {
        let _timer = times::time(|| (Operation::Rotation, 0, 0));
        let mut qkv = qkv.to_contiguous();
        let [tokens, width] = dims(&qkv);
        assert_eq!(width, layout.qkv_width(), "rope_and_store: width of qkv");
        let norms = norm.map(|norm| (widened(norm.q.clone()), widened(norm.k.clone()), norm.eps));
        let rotation = rope::Rotation {
            cos: elements(&rope.cos),
            sin: elements(&rope.sin),
            half: rope.rotary_dim / 2,
            norms: norms
                .as_ref()
                .map(|(q, k, eps)| (q.as_slice(), k.as_slice(), *eps)),
        };
        let rows = qkv.storage_mut::<f32>();
        let queries = rotation.apply(rows, layout, elements(&index.positions));
        let slots = elements::<i32>(&index.write_slots);
        match k_pool.dtype() {
            DType::U32 => rope::store_in_8_bits(rows, layout, slots, k_pool, v_pool),
            DType::F32 => rope::store::<f32>(rows, layout, slots, k_pool, v_pool),
            DType::BF16 => rope::store::<half::bf16>(rows, layout, slots, k_pool, v_pool),
            DType::F16 => rope::store::<half::f16>(rows, layout, slots, k_pool, v_pool),
            other => panic!("the CPU kernels take f32, bf16 and f16, not {other:?}"),
        }
        tensor(queries, [tokens, layout.heads * layout.head_dim])
    }

    fn paged_attention(
        q: FlexTensor,
        layout: HeadLayout,
        index: &RaggedIndex<Self>,
        options: &AttentionOptions<Self>,
        k_pool: &FlexTensor,
        v_pool: &FlexTensor,
    ) -> FlexTensor {
        let q = q.to_contiguous();
        let shape = dims(&q);
        let table = attention::SlotTable {
            positions: elements(&index.positions),
            start: elements(&index.table_start),
            slots: elements(&index.slot_table),
            window: options.window.map_or(usize::MAX, |window| window as usize),
        };
        let sinks = options.sinks.clone().map(widened);
        let weighing = attention::Weighing {
            scale: options.scale,
            cap: options.cap,
            sinks: sinks.as_deref(),
        };
        let _timer = times::time(|| {
            let (read, seen) = table.extent();
            let head = KvFormat::of(k_pool.dtype()).head_bytes(layout.head_dim);
            let bytes = 2 * read * layout.kv_heads * head;
            let flops = 4 * seen * layout.heads * layout.head_dim;
            (Operation::Attention, bytes, flops)
        });
        // The kernel for matrix tiles has neither caps nor sinks.
        #[cfg(target_arch = "x86_64")]
        if k_pool.dtype() == DType::BF16 && amx::attention::fits(layout) && weighing.is_plain() {
            let (q, k, v) = (elements(&q), elements(k_pool), elements(v_pool));
            let scale = options.scale;
            let attend = |out| amx::attention::paged(q, k, v, layout, scale, &table, out);
            // SAFETY: `amx::attention::paged` writes every head of every token.
            let out = unsafe { Output::filled(shape[0], shape[1], attend) };
            return tensor(out, shape);
        }
        let mut out = output::zeros(shape[0] * shape[1]);
        let q = elements(&q);
        if k_pool.dtype() == DType::U32 {
            let [k, v] = [k_pool, v_pool].map(|pool| bytemuck::cast_slice(elements::<u32>(pool)));
            attention::paged::<i8>(q, k, v, layout, &weighing, &table, &mut out);
            return tensor(out, shape);
        }
        with_stored!(k_pool, k => {
            attention::paged(q, k, elements(v_pool), layout, &weighing, &table, &mut out)
        });
        tensor(out, shape)
    }
}

fn sizes(stack: &LowRankStack<Flex>) -> low_rank::Sizes<'_> {
    low_rank::Sizes {
        ranks: &stack.host_ranks,
        slices: &stack.slices,
        rank: stack.rank,
    }
}

/// `x` `[tokens, in]` times the transpose of `weight` `[out, in]`, plus `bias` `[out]` and `addend`.
fn product(
    x: FlexTensor,
    weight: FlexTensor,
    bias: Option<FlexTensor>,
    addend: Option<&dyn Addend>,
) -> FlexTensor {
    let (x, weight) = (x.to_contiguous(), weight.to_contiguous());
    let [tokens, input] = dims(&x);
    let [output, width] = matrix_dims(&weight);
    assert_eq!(
        input, width,
        "linear: x has {input} columns, weight {width}"
    );
    let _timer = times::time(|| {
        let product = Operation::Product {
            rows: output,
            columns: input,
        };
        (product, bytes_of(&weight), 2 * tokens * output * input)
    });
    let bias = bias.map(widened);
    let (x, bias) = (elements(&x), bias.as_deref());
    // SAFETY: both products write every element of their output.
    let y = unsafe {
        Output::filled(tokens, output, |y| {
            if weight.dtype() == BLOCKS {
                let parts = blocks::View::parts(elements(&weight)).collect();
                blocks::linear(&[blocks::Job {
                    x,
                    parts,
                    bias,
                    addend,
                    y,
                }]);
            } else {
                with_stored!(&weight, weight => {
                    linear::linear(&[linear::Job { x, weight, bias, addend, y }], input);
                });
            }
        })
    };
    tensor(y, [tokens, output])
}

/// The second half of the changes of `stack`.
fn changes<'a, E: Stored>(
    stack: &'a LowRankStack<Flex>,
    index: &'a AdapterIndex<Flex>,
    h: &'a [f32],
    [b, bias]: [&'a [E]; 2],
) -> low_rank::Changes<'a, E> {
    low_rank::Changes {
        h,
        b,
        bias,
        scale: elements(&stack.scale),
        biased: &stack.biased,
        scaled: &stack.scaled,
        sizes: sizes(stack),
        groups: &index.groups,
    }
}

/// The product of each pair's row of `x` `[pairs, columns]` with its expert's rows of `stack`
/// `[experts * rows, columns]`: `[pairs, rows]`.
fn of_each(
    x: &[f32],
    stack: &FlexTensor,
    bias: Option<&FlexTensor>,
    (rows, columns): (usize, usize),
    pairs: &experts::Pairs,
) -> Vec<f32> {
    assert_eq!(
        matrix_dims(stack)[1],
        columns,
        "experts: columns of a matrix"
    );
    let bias = bias.map(|bias| match bias.dtype() {
        DType::F32 => Cow::Borrowed(elements(bias)),
        _ => Cow::Owned(widened(bias.clone())),
    });
    let bias = |expert: usize| bias.as_ref().map(|bias| &bias[expert * rows..][..rows]);
    let x = |here: &Range<usize>| &x[here.start * columns..here.end * columns];
    let groups = pairs.groups.iter();
    // SAFETY: each pair is in one group, and the product of a group writes all of its rows.
    unsafe {
        Output::filled(pairs.count(), rows, |y| {
            if stack.dtype() == BLOCKS {
                let all = blocks::View::of(elements(stack));
                let job = |(expert, here): &(usize, Range<usize>)| blocks::Job {
                    x: x(here),
                    parts: vec![all.between(expert * rows..(expert + 1) * rows)],
                    bias: bias(*expert),
                    addend: None,
                    y: y.rows(here.clone()),
                };
                blocks::linear(&groups.map(job).collect::<Vec<_>>());
                return;
            }
            with_stored!(stack, all => {
                let job = |(expert, here): &(usize, Range<usize>)| linear::Job {
                    x: x(here),
                    weight: &all[expert * rows * columns..][..rows * columns],
                    bias: bias(*expert),
                    addend: None,
                    y: y.rows(here.clone()),
                };
                linear::linear(&groups.map(job).collect::<Vec<_>>(), columns);
            });
        })
    }
}
