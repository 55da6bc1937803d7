//! Tests of matrices in blocks on a device of Vulkan.

use burn::tensor::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_wgpu::{WgpuDevice, WgpuRuntime};

use super::*;
use crate::check::Random;

type Cube = CubeBackend<WgpuRuntime, f32, i32, u32>;

/// A device of Vulkan; `None` if there is none and none is required.
fn vulkan() -> Option<WgpuDevice> {
    let (instance, adapters) = crate::device::adapters();
    let vulkan = |adapter: &wgpu::Adapter| adapter.get_info().backend == wgpu::Backend::Vulkan;
    let Some(adapter) = adapters.into_iter().find(vulkan) else {
        assert!(
            std::env::var_os("HEARTH_REQUIRE_VULKAN").is_none(),
            "HEARTH_REQUIRE_VULKAN is set, but there is no Vulkan adapter"
        );
        return None;
    };
    let language = crate::device::ShaderLanguage::SpirV;
    let device = crate::device::open(instance, adapter, language).expect("the adapter opens");
    Some(device)
}

fn on(values: &[f32], shape: Shape, device: &WgpuDevice) -> CubeTensor<WgpuRuntime> {
    let client = WgpuRuntime::client(device);
    let handle = client.create_from_slice(bytemuck::cast_slice(values));
    CubeTensor::new_contiguous(client, device.clone(), shape, handle, DType::F32)
}

fn read(tensor: CubeTensor<WgpuRuntime>) -> Vec<f32> {
    let data = tensor.client.read_one(tensor.handle.clone()).expect("read");
    bytemuck::cast_slice(&data).to_vec()
}

/// A matrix of random blocks whose parts have the given formats and rows, and the bytes of another
/// one that is the same.
fn random(parts: &[(BlockFormat, usize)], columns: usize) -> [BlockMatrix; 2] {
    let mut random = Random::seeded(7);
    let rows: Vec<Vec<u8>> = parts
        .iter()
        .flat_map(|(format, rows)| vec![*format; *rows])
        .map(|format| {
            let blocks = columns.div_ceil(format.elements());
            crate::check::random_blocks(format, blocks, &mut random)
        })
        .collect();
    [(); 2].map(|()| {
        let mut matrix = BlockMatrix::zeros(parts, columns);
        let mut first = 0;
        for (_, count) in parts {
            let set = matrix.set_rows(first..first + count, |row| {
                Some(rows[first + row].as_slice().into())
            });
            assert_eq!(set, Ok(()));
            first += count;
        }
        matrix
    })
}

#[test]
fn rows_of_every_format_have_the_values_that_the_cpu_reads() {
    let Some(device) = vulkan() else { return };
    for format in BlockFormat::integers() {
        // Where the format allows it, the last block of a row is incomplete.
        let columns = if format.elements() == 256 { 768 } else { 520 };
        let rows = 21;
        let [ours, theirs] = random(&[(format, rows)], columns);
        let weight = upload::<WgpuRuntime>(ours, DType::F32, &device);
        let packed = Packed::of(&weight).expect("in blocks");
        let got = read(packed.parts[0].dequantised(0, rows, None));
        let bytes = theirs.into_bytes();
        let view = View::of(&bytes);
        for row in 0..rows {
            let mut want = vec![0.0; columns];
            view.row(row, &mut want);
            for (column, want) in want.iter().enumerate() {
                let got = got[row * columns + column];
                // With a minimum, a device may round once or twice.
                let close = match format.layout().scales.minimums() {
                    true => (got - want).abs() <= 1e-6 * want.abs().max(1.0),
                    false => got == *want,
                };
                assert!(close, "{format:?} {row} {column}: {got} {want}");
            }
        }
    }
}

#[test]
fn a_stack_of_several_formats_gives_the_products_of_its_parts() {
    let Some(device) = vulkan() else { return };
    let parts = [
        (BlockFormat::Q4_K, 37),
        (BlockFormat::Q6_K, 20),
        (BlockFormat::Q8_0, 9),
    ];
    let (columns, rows) = (512, 66);
    let [stack, values] = random(&parts, columns);
    let bytes = values.into_bytes();
    let mut matrix = Vec::new();
    for view in View::parts(&bytes) {
        for row in 0..view.rows {
            let mut values = vec![0.0; columns];
            view.row(row, &mut values);
            matrix.push(values);
        }
    }
    let weight = upload::<WgpuRuntime>(stack, DType::F32, &device);
    assert_eq!(dims(&weight), [rows, columns]);
    for tokens in [1, 5, 40] {
        let x = Random::seeded(tokens as u64).normal(tokens * columns);
        let on_device = on(&x, Shape::from([tokens, columns]), &device);
        let biases = (tokens != 5).then(|| Random::seeded(3).normal(rows));
        let bias = biases.as_deref();
        let bias = bias.map(|bias| on(bias, Shape::from([rows]), &device));
        let packed = Packed::of(&weight).expect("in blocks");
        let gated = packed.gated(
            on_device.clone(),
            None,
            Summation::Fastest,
            Activation::Silu,
        );
        assert!(gated.is_none());
        let product = packed.linear(on_device, bias, Summation::Fastest, |products| {
            Cube::float_cat(products, 1)
        });
        let got = read(product);
        for (token, x) in x.chunks_exact(columns).enumerate() {
            for (row, values) in matrix.iter().enumerate() {
                let pairs = values.iter().zip(x);
                let product: f64 = pairs.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let want = product + biases.as_ref().map_or(0.0, |bias| f64::from(bias[row]));
                let got = f64::from(got[token * rows + row]);
                assert!(
                    (got - want).abs() <= 2e-4 * want.abs().max(1.0),
                    "{tokens} tokens, {token}, {row}: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn a_product_in_parts_of_the_rows_is_the_whole_product() {
    let Some(device) = vulkan() else { return };
    let (rows, columns) = (70, 64);
    let mut matrix = BlockMatrix::zeros(&[(BlockFormat::Q4_0, rows)], columns);
    let set = matrix.set_rows(0..rows, |row| {
        let block = |index: usize| -> Vec<u8> {
            let scale = half::f16::from_f32(0.01 * (1 + row % 7) as f32);
            let elements = (0..16).map(|i| (i * 29 + row * 13 + index * 101) as u8);
            scale.to_le_bytes().into_iter().chain(elements).collect()
        };
        Some([block(0), block(1)].concat().into())
    });
    assert_eq!(set, Ok(()));
    let weight = upload::<WgpuRuntime>(matrix, DType::F32, &device);
    let packed = Packed::of(&weight).expect("in blocks").parts.remove(0);
    let x = packed.dequantised(0, 40, None);
    let whole = read(packed.copied_products(&x, rows).remove(0));
    let parts = packed.copied_products(&x, 32);
    let widths: Vec<usize> = parts.iter().map(|part| dims(part)[1]).collect();
    assert_eq!(widths, [32, 32, 6]);
    let mut first = 0;
    for (part, width) in parts.into_iter().zip(widths) {
        for (token, got) in read(part).chunks_exact(width).take(40).enumerate() {
            let want = &whole[token * rows + first..][..width];
            for (got, want) in got.iter().zip(want) {
                assert!(
                    (got - want).abs() <= 1e-4 * want.abs().max(1.0),
                    "{got} {want}"
                );
            }
        }
        first += width;
    }
}
