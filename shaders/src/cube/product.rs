//! Matrix multiplications of many tokens: by the kernel that was chosen for the device and the
//! sizes, or by cubek's default kernel.
//!
//! Contract: [`product`] multiplies `x` `[tokens, in]` by the transpose of `weight` `[out, in]`,
//! for any sizes. Both are contiguous and have the same float type, which is also the type of the
//! result; sums are in f32. A kernel that does not support the sizes says so before it launches
//! anything. If a launched kernel fails on the device, the error shows when a result is read.

mod split;

use std::any::TypeId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;
use cubecl::device::{Device, DeviceId};
use cubecl::prelude::*;
use cubek::matmul::components::global::read::async_partial_cyclic::AsyncPartialCyclicLoading;
use cubek::matmul::components::stage::ColMajorTilingOrder;
use cubek::matmul::components::tile::TileMatmulKind;
use cubek::matmul::definition::{
    MatmulElems, MatmulGlobalElems, MatmulSetupError, TilingBlueprint,
};
use cubek::matmul::launch::launch_tiling;
use cubek::matmul::routines::double_buffering::{
    CyclicDoubleBufferingAlgorithm, DoubleBufferingArgs,
};
use cubek::matmul::routines::double_unit::DoubleUnitAlgorithm;
use cubek::matmul::routines::ordered_double_buffering::{
    OrderedDoubleBufferingAlgorithm, OrderedSelectionArgs,
};
use cubek::matmul::routines::simple::{SimpleAlgorithm, SimpleArgs, SimpleTmaAlgorithm};
use cubek::matmul::routines::simple_unit::{SimpleUnitAlgorithm, SimpleUnitSelectionArgs};
use cubek::matmul::routines::specialized::{SpecializedAlgorithm, SpecializedStrategy};
use cubek::matmul::routines::{BlueprintStrategy, Routine};
use cubek::std::InputBinding;

use super::{dims, empty_like};
use crate::products::Chosen;
use crate::tune::Products;
use crate::{ProductChoice, ProductKernel};
#[cfg(test)]
pub use split::TILE_TOKENS;

/// A runtime, one of its devices, and the type to compute in.
type Place = (TypeId, DeviceId, DType);

/// Columns of two buffers together. All kernels except the default one need a multiple of this.
const COLUMNS: usize = 64;

/// The kernels chosen so far. There are few devices, so searching a list is faster than hashing.
static CHOSEN: RwLock<Vec<(Place, Chosen)>> = RwLock::new(Vec::new());

fn place<R: CubeRuntime>(device: &R::CubeDevice, dtype: DType) -> Place {
    (TypeId::of::<R>(), device.to_id(), dtype)
}

/// Makes `products` on `device` use the kernels of `choice` from now on.
pub fn choose<R: CubeRuntime>(choice: ProductChoice, products: &Products, device: &R::CubeDevice) {
    let place = place::<R>(device, products.dtype);
    let mut chosen = CHOSEN.write().unwrap_or_else(PoisonError::into_inner);
    chosen.retain(|(other, _)| *other != place);
    chosen.push((place, Chosen::new(choice, products)));
}

/// The kernel that was chosen for these sizes, or the default one.
fn chosen<R: CubeRuntime>(x: &CubeTensor<R>, weight: &CubeTensor<R>) -> ProductKernel {
    let place = place::<R>(&x.device, x.dtype);
    let chosen = CHOSEN.read().unwrap_or_else(PoisonError::into_inner);
    let ([tokens, input], [output, _]) = (dims(x), dims(weight));
    let chosen = chosen.iter().find(|(other, _)| *other == place);
    chosen.map_or(ProductKernel::Usual, |(_, chosen)| {
        chosen.kernel(tokens, [input, output])
    })
}

/// [`Kernels::project`](crate::Kernels::project) without a bias, in the fastest order.
pub fn product<R: CubeRuntime>(x: CubeTensor<R>, weight: CubeTensor<R>) -> CubeTensor<R> {
    let ([_, input], [_, width]) = (dims(&x), dims(&weight));
    assert_eq!(
        input, width,
        "linear: x has {input} columns, weight {width}"
    );
    match chosen(&x, &weight) {
        ProductKernel::Usual => usual(x, weight),
        kernel => by(kernel, x.clone(), weight.clone()).unwrap_or_else(|| usual(x, weight)),
    }
}

/// cubek's default kernel: one buffer, and cooperative matrices where there are any. f32 is
/// multiplied without them, because CUDA's cooperative matrices round f32 to TF32, and a user who
/// asks for f32 wants its 24 bits.
fn usual<R: CubeRuntime>(x: CubeTensor<R>, weight: CubeTensor<R>) -> CubeTensor<R> {
    let in_units =
        |x, weight| tiled::<R, SimpleUnitAlgorithm>(SimpleUnitSelectionArgs::default(), x, weight);
    let product = match x.dtype {
        DType::F32 => in_units(x, weight),
        _ => match simple(TileMatmulKind::Cmma, false, x.clone(), weight.clone()) {
            Err(MatmulSetupError::Unavailable(_)) => in_units(x, weight),
            other => other,
        },
    };
    product.expect("cubek has a kernel for every contiguous pair of matrices")
}

/// The product by `kernel`; `None` where the kernel does not support the sizes, the type or the
/// device.
pub fn by<R: CubeRuntime>(
    kernel: ProductKernel,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Option<CubeTensor<R>> {
    // In one kernel with two buffers, results were wrong where two buffers do not divide the
    // columns.
    let [_, input] = dims(&x);
    if kernel != ProductKernel::Usual && !input.is_multiple_of(COLUMNS) {
        return None;
    }
    if kernel.in_matrices() && x.dtype == DType::F32 {
        return None;
    }
    if kernel == ProductKernel::SplitColumns {
        return split::product(x, weight);
    }
    // cubek panics for some sizes that it does not support, always before the launch.
    let launched = catch_unwind(AssertUnwindSafe(|| try_by(kernel, x, weight)));
    launched.ok()?.ok()
}

#[allow(clippy::result_large_err)]
fn try_by<R: CubeRuntime>(
    kernel: ProductKernel,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    use TileMatmulKind::{Cmma, Mma};
    match kernel {
        ProductKernel::Usual | ProductKernel::SplitColumns => Ok(usual(x, weight)),
        ProductKernel::Mma => simple(Mma, true, x, weight),
        ProductKernel::Double => double(Cmma, x, weight),
        ProductKernel::DoubleMma => double(Mma, x, weight),
        ProductKernel::DoubleUnits => {
            tiled::<R, DoubleUnitAlgorithm>(Default::default(), x, weight)
        }
        ProductKernel::Ordered => ordered(Cmma, 8, x, weight),
        ProductKernel::OrderedMma => ordered(Mma, 8, x, weight),
        ProductKernel::LargeMma => ordered(Mma, 16, x, weight),
        ProductKernel::CopiedMma => {
            type Copied = SpecializedAlgorithm<AsyncPartialCyclicLoading<ColMajorTilingOrder>>;
            tiled::<R, Copied>(SpecializedStrategy { tile_matmul: Mma }, x, weight)
        }
        ProductKernel::TmaMma => tma::<R, SimpleTmaAlgorithm>(
            SimpleArgs {
                tile_matmul: Mma,
                multi_rows: true,
            },
            x,
            weight,
        ),
        ProductKernel::TmaCopiedMma => {
            tma::<R, SpecializedAlgorithm>(SpecializedStrategy { tile_matmul: Mma }, x, weight)
        }
    }
}

#[allow(clippy::result_large_err)]
fn simple<R: CubeRuntime>(
    tile_matmul: TileMatmulKind,
    multi_rows: bool,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    let args = SimpleArgs {
        tile_matmul,
        multi_rows,
    };
    tiled::<R, SimpleAlgorithm>(args, x, weight)
}

#[allow(clippy::result_large_err)]
fn double<R: CubeRuntime>(
    tile_matmul: TileMatmulKind,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    let args = DoubleBufferingArgs {
        tile_matmul,
        specialized: false,
    };
    tiled::<R, CyclicDoubleBufferingAlgorithm>(args, x, weight)
}

/// Tiles of 16 times `rows` tokens, with half as many subgroups as `rows`.
#[allow(clippy::result_large_err)]
fn ordered<R: CubeRuntime>(
    tile_matmul: TileMatmulKind,
    rows: u32,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    let args = OrderedSelectionArgs {
        tile_matmul,
        // With 4, two buffers would be wider than `COLUMNS`.
        partition_k: Some(2),
        row_count: Some(rows),
        rows_per_plane: Some(2),
    };
    tiled::<R, OrderedDoubleBufferingAlgorithm>(args, x, weight)
}

#[allow(clippy::result_large_err)]
fn tiled<R: CubeRuntime, A: Routine<()>>(
    args: A::Strategy,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    launch(x, weight, |[lhs, rhs], out, client, elements| {
        let args = BlueprintStrategy::Inferred(args);
        launch_tiling::launch_ref::<R, A>(client, lhs, rhs, out, &args, elements)
    })
}

/// Copies whole tiles with TMA (`cp.async.bulk.tensor`).
#[allow(clippy::result_large_err)]
fn tma<R: CubeRuntime, A: Routine<(), Blueprint = TilingBlueprint>>(
    args: A::Strategy,
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    launch(x, weight, |[lhs, rhs], out, client, elements| {
        let args = BlueprintStrategy::Inferred(args);
        launch_tiling::launch_ref_tma::<R, A>(client, lhs, rhs, out, &args, elements)
    })
}

/// The part of a launch that all kernels share.
#[allow(clippy::result_large_err)]
fn launch<R: CubeRuntime>(
    x: CubeTensor<R>,
    mut weight: CubeTensor<R>,
    launch: impl FnOnce(
        [InputBinding<R>; 2],
        TensorBinding<R>,
        &ComputeClient<R>,
        &mut MatmulElems,
    ) -> Result<(), MatmulSetupError>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    let ([tokens, _], [output, _]) = (dims(&x), dims(&weight));
    let out = empty_like(&x, tokens, output);
    let element: StorageType = x.dtype.into();
    let mut elements = MatmulElems::from_globals(&MatmulGlobalElems {
        lhs: element,
        rhs: element,
        out: element,
    });
    weight.meta.swap(0, 1);
    let factors = [x, weight].map(|factor| InputBinding::new(factor.binding(), element));
    launch(factors, out.clone().binding(), &out.client, &mut elements)?;
    Ok(out)
}
