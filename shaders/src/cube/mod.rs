//! The operations in CubeCL: one source for CUDA, Vulkan (SPIR-V), Metal and WGSL.
//!
//! In CubeCL's words, a cube is a workgroup (CUDA: thread block), a unit is one of its threads, and
//! a plane is a subgroup (CUDA: warp).
//!
//! All float tensors of a call have the same type (f32, f16 or bf16), except that the weights of
//! norms may be f32, and KV pools may have 8-bit integers; arithmetic is in f32. Kernels use shared memory and barriers but no subgroup
//! operations, so that they behave the same on every adapter. The exceptions are kernels with
//! cooperative matrices, which run only on devices that have them. Nothing is tuned while the
//! server runs, because tuning stalls slow devices for seconds. Only the kernel for matrix
//! multiplications of many tokens may be tuned at the start ([`product`], `tune.rs`).

mod attention;
mod blocks;
mod elementwise;
mod experts;
mod fetch;
mod linear;
mod low_rank;
mod norm;
mod product;
mod reduce;
mod rope;
mod sample;
mod slots;

use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};

use crate::tune::Products;
use crate::{
    Activation, AdapterIndex, AttentionOptions, BlockFormat, BlockMatrix, ChosenExperts, Experts,
    Fetched, Hardware, HeadLayout, Kernels, LowRankStack, ProductChoice, ProductKernel, QkNorm,
    RaggedIndex, RopeTable, Routing, Summation,
};
pub use attention::AttentionTiles;
#[cfg(test)]
pub(crate) use blocks::MAX_GROUPED_TOKENS;
pub use blocks::MOST_COPIED;
pub(crate) use linear::MAX_FEW_TOKENS;
#[cfg(test)]
pub(crate) use product::TILE_TOKENS;

impl<R, F, I, BT> Kernels for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    fn packs(formats: &[BlockFormat]) -> bool {
        blocks::packs(formats)
    }

    fn packed(matrix: BlockMatrix, activations: DType, device: &R::Device) -> CubeTensor<R> {
        blocks::upload(matrix, activations, device)
    }

    fn packed_bytes(format: BlockFormat, rows: usize, columns: usize) -> usize {
        blocks::bytes(format, rows, columns)
    }

    fn empty_pool(device: &R::Device, shape: [usize; 3], dtype: DType) -> CubeTensor<R> {
        let client = R::client(device);
        empty_device_contiguous_dtype(client, device.clone(), Shape::from(shape), dtype)
    }

    fn read_slots(pool: &CubeTensor<R>, slots: CubeTensor<R>) -> CubeTensor<R> {
        assert_contiguous([pool]);
        slots::read(pool, into_contiguous(slots))
    }

    fn write_slots(pool: &mut CubeTensor<R>, slots: CubeTensor<R>, words: CubeTensor<R>) {
        assert_contiguous([pool]);
        slots::write(pool, into_contiguous(slots), into_contiguous(words));
    }

    fn hardware(device: &R::Device) -> Option<Hardware> {
        let client = R::client(device);
        let hardware = &client.properties().hardware;
        Some(Hardware {
            shared_memory: hardware.max_shared_memory_size,
            max_units: hardware.max_units_per_cube,
            subgroups: (hardware.plane_size_min, hardware.plane_size_max),
            processors: hardware.num_streaming_multiprocessors,
        })
    }

    fn reserved_bytes(device: &R::Device) -> Option<u64> {
        let usage = R::client(device).memory_usage().ok()?;
        Some(usage.bytes_reserved)
    }

    fn project(
        x: CubeTensor<R>,
        weight: CubeTensor<R>,
        bias: Option<CubeTensor<R>>,
        summation: Summation,
    ) -> CubeTensor<R> {
        let (x, bias) = (into_contiguous(x), bias.map(into_contiguous));
        match blocks::Packed::of(&weight) {
            Some(packed) => packed.linear(x, bias, summation, |parts| Self::float_cat(parts, 1)),
            None => linear::linear(x, into_contiguous(weight), bias, summation),
        }
    }

    fn project_gated(
        x: CubeTensor<R>,
        weight: CubeTensor<R>,
        bias: Option<CubeTensor<R>>,
        activation: Activation,
        summation: Summation,
    ) -> CubeTensor<R> {
        let [tokens, _] = dims(&x);
        let packed = blocks::Packed::of(&weight);
        let few = match packed {
            Some(_) => blocks::MAX_GROUPED_TOKENS,
            None => linear::MAX_FEW_TOKENS,
        };
        if !linear::are_few(tokens, few, summation) {
            return Self::gate(Self::project(x, weight, bias, summation), activation);
        }
        let gated = linear::Epilogue::Gated(activation);
        let (x, bias) = (into_contiguous(x), bias.map(into_contiguous));
        match packed {
            Some(packed) => match packed.gated(x.clone(), bias.clone(), summation, activation) {
                Some(gated) => gated,
                None => Self::gate(Self::project(x, weight, bias, summation), activation),
            },
            None => linear::few_tokens(x, into_contiguous(weight), bias, summation, gated),
        }
    }

    fn product_by(
        kernel: ProductKernel,
        x: CubeTensor<R>,
        weight: CubeTensor<R>,
    ) -> Option<CubeTensor<R>> {
        product::by(kernel, into_contiguous(x), into_contiguous(weight))
    }

    fn choose_products(choice: ProductChoice, products: &Products, device: &R::Device) {
        product::choose::<R>(choice, products, device);
    }

    fn shrink(
        x: CubeTensor<R>,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> CubeTensor<R> {
        let slots = into_contiguous(index.slots.clone());
        low_rank::shrink(into_contiguous(x), on_device(stack), slots)
    }

    fn expand(
        y: CubeTensor<R>,
        h: CubeTensor<R>,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> CubeTensor<R> {
        let (y, h) = (into_contiguous(y), into_contiguous(h));
        let slots = into_contiguous(index.slots.clone());
        low_rank::expand(y, h, on_device(stack), slots)
    }

    fn choose_experts(logits: CubeTensor<R>, routing: Routing) -> ChosenExperts<Self> {
        let (ids, weights) = experts::choose(into_contiguous(logits), routing);
        ChosenExperts { ids, weights }
    }

    fn mix_experts(
        x: CubeTensor<R>,
        chosen: &ChosenExperts<Self>,
        stack: &Experts<Self>,
    ) -> CubeTensor<R> {
        let matrix = |matrix: &CubeTensor<R>| match blocks::Packed::of(matrix) {
            Some(_) => matrix.clone(),
            None => into_contiguous(matrix.clone()),
        };
        let bias = |bias: &Option<CubeTensor<R>>| bias.clone().map(into_contiguous);
        let on_device = experts::Stack {
            gate_up: matrix(&stack.gate_up),
            gate_up_bias: bias(&stack.gate_up_bias),
            down: matrix(&stack.down),
            down_bias: bias(&stack.down_bias),
            hidden: stack.hidden,
            width: stack.width,
            activation: stack.activation,
        };
        let ids = into_contiguous(chosen.ids.clone());
        let weights = into_contiguous(chosen.weights.clone());
        experts::mix(into_contiguous(x), ids, weights, on_device)
    }

    fn embed(table: CubeTensor<R>, ids: CubeTensor<R>) -> CubeTensor<R> {
        let ids = into_contiguous(ids);
        match blocks::Packed::of(&table) {
            Some(packed) => packed.embed(ids),
            None => elementwise::embed(into_contiguous(table), ids),
        }
    }

    fn rms_norm(x: CubeTensor<R>, weight: CubeTensor<R>, eps: f32) -> CubeTensor<R> {
        norm::rms_norm(into_contiguous(x), into_contiguous(weight), eps)
    }

    fn add_rms_norm(
        x: CubeTensor<R>,
        delta: CubeTensor<R>,
        scale: f32,
        weight: CubeTensor<R>,
        eps: f32,
    ) -> (CubeTensor<R>, CubeTensor<R>) {
        let (x, delta) = (into_contiguous(x), into_contiguous(delta));
        norm::add_rms_norm(x, delta, scale, into_contiguous(weight), eps)
    }

    fn gate(gate_up: CubeTensor<R>, activation: Activation) -> CubeTensor<R> {
        elementwise::gate(into_contiguous(gate_up), activation)
    }

    fn scale_and_cap(x: CubeTensor<R>, scale: f32, cap: Option<f32>) -> CubeTensor<R> {
        elementwise::scale_and_cap(into_contiguous(x), scale, cap)
    }

    fn norm_projections(
        qkv: CubeTensor<R>,
        layout: HeadLayout,
        norm: &QkNorm<Self>,
    ) -> CubeTensor<R> {
        let weights = [&norm.q, &norm.k].map(|weight| into_contiguous(weight.clone()));
        norm::norm_projections(into_contiguous(qkv), layout, weights, norm.eps)
    }

    fn rope_and_store(
        qkv: CubeTensor<R>,
        layout: HeadLayout,
        norm: Option<&QkNorm<Self>>,
        rope: &RopeTable<Self>,
        index: &RaggedIndex<Self>,
        k_pool: &mut CubeTensor<R>,
        v_pool: &mut CubeTensor<R>,
    ) -> CubeTensor<R> {
        let rotation = rope::Rotation {
            cos: into_contiguous(rope.cos.clone()),
            sin: into_contiguous(rope.sin.clone()),
            half: rope.rotary_dim / 2,
            norms: norm.map(|norm| (norm.q.clone(), norm.k.clone(), norm.eps)),
        };
        let positions = index.positions.clone();
        let slots = index.write_slots.clone();
        assert_contiguous([k_pool, v_pool]);
        rope::rope_and_store(
            into_contiguous(qkv),
            layout,
            rotation,
            positions,
            slots,
            k_pool,
            v_pool,
        )
    }

    fn paged_attention(
        q: CubeTensor<R>,
        layout: HeadLayout,
        index: &RaggedIndex<Self>,
        options: &AttentionOptions<Self>,
        k_pool: &CubeTensor<R>,
        v_pool: &CubeTensor<R>,
    ) -> CubeTensor<R> {
        let table = attention::SlotTable {
            positions: index.positions.clone(),
            start: index.table_start.clone(),
            slots: index.slot_table.clone(),
            blocks: index.blocks.clone(),
            block_count: index.block_count,
            block_tokens: index.block_tokens,
            tiling: index.tiling,
            longest: index.longest,
            window: options.window.unwrap_or(0),
            summation: index.summation,
        };
        assert_contiguous([k_pool, v_pool]);
        attention::paged(
            into_contiguous(q),
            layout,
            table,
            attention::Weighing {
                scale: options.scale,
                cap: options.cap,
                sinks: options.sinks.clone().map(into_contiguous),
            },
            k_pool.clone(),
            v_pool.clone(),
        )
    }

    fn attention_tiles(
        layout: HeadLayout,
        dtype: DType,
        device: &R::Device,
    ) -> Option<AttentionTiles> {
        AttentionTiles::of(&R::client(device), layout, dtype)
    }

    fn flush(device: &R::Device) {
        // A device error is reported when a result is read.
        let _ = R::client(device).flush();
    }

    fn samples_on_device() -> bool {
        true
    }

    fn sample(logits: CubeTensor<R>, plan: CubeTensor<R>) -> CubeTensor<R> {
        sample::sample(into_contiguous(logits), into_contiguous(plan))
    }

    fn fetch(ids: CubeTensor<R>) -> Fetched {
        fetch::fetch(into_contiguous(ids))
    }
}

fn on_device<R, F, I, BT>(stack: &LowRankStack<CubeBackend<R, F, I, BT>>) -> low_rank::Stack<R>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    low_rank::Stack {
        a: into_contiguous(stack.a.clone()),
        b: into_contiguous(stack.b.clone()),
        bias: into_contiguous(stack.bias.clone()),
        scale: into_contiguous(stack.scale.clone()),
        ranks: into_contiguous(stack.ranks.clone()),
        slices: stack.slices.clone(),
        rank: stack.rank,
    }
}

/// Pools are updated in place: `into_contiguous` would update a copy.
fn assert_contiguous<const N: usize, R: CubeRuntime>(pools: [&CubeTensor<R>; N]) {
    for pool in pools {
        assert!(pool.is_contiguous(), "a KV pool has gaps between its rows");
    }
}

/// Elements of a type that kernels read at once from rows of `length` elements: 16 bytes, or fewer
/// where the length requires it.
fn vector(dtype: DType, length: usize) -> usize {
    vector_within(16 / dtype.size(), length)
}

/// As [`vector`], at most `most` elements.
fn vector_within(most: usize, length: usize) -> usize {
    [most, 4, 2, 1]
        .into_iter()
        .find(|n| length.is_multiple_of(*n))
        .unwrap_or(1)
}

/// Two dimensions of a grid for so many cubes. A dimension is limited to 65,535.
fn two_dimensions(cubes: usize) -> [u32; 2] {
    let across = cubes.min(32_768);
    [across as u32, cubes.div_ceil(across) as u32]
}

/// An uninitialised tensor `[rows, columns]` with the type and device of `like`.
fn empty_like<R: CubeRuntime>(like: &CubeTensor<R>, rows: usize, columns: usize) -> CubeTensor<R> {
    let shape = Shape::from([rows, columns]);
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, like.dtype)
}

fn dims<R: CubeRuntime>(tensor: &CubeTensor<R>) -> [usize; 2] {
    let shape = tensor.meta.shape();
    [shape[0], shape[1]]
}
