use super::*;

#[test]
fn words_hold_scales_and_elements_in_their_order() {
    // 40 columns: one full block and one that is padded with zeros.
    for (format, bits) in [(BlockFormat::Q8_0, 8), (BlockFormat::Q4_0, 4)] {
        let mut matrix = BlockMatrix::zeros(&[(format, 2)], 40);
        let block = |seed: u8| -> Vec<u8> {
            (0..format.bytes() as u8)
                .map(|i| i.wrapping_mul(37) ^ seed)
                .collect()
        };
        let row = |_| Some([block(3), block(200)].concat().into());
        assert_eq!(matrix.set_rows(1..2, row), Ok(()));
        let packed = matrix.into_bytes();
        let view = View::of(&packed);
        let words = words(view, bits);
        let (scales, elements) = words_of_row(40, bits);
        assert_eq!(scales, 1);
        assert_eq!(words.len(), ALIGNMENT + 2 * elements);
        assert_eq!(words.len() * size_of::<u32>(), bytes(format, 2, 40));
        let second = block(200);
        let scale = u16::from_le_bytes([second[0], second[1]]);
        assert_eq!(words[1] >> 16, u32::from(scale));
        let mut want = vec![0.0; 40];
        view.row(1, &mut want);
        let offset = (1 << (bits - 1)) as f32;
        for (column, want) in want.iter().enumerate() {
            let per_word = 32 / bits;
            let word = words[ALIGNMENT + elements + column / per_word];
            let element = word >> (column % per_word * bits) & ((1 << bits) - 1);
            let scale = half::f16::from_bits((words[1] >> (column / 32 * 16)) as u16).to_f32();
            let got = (element as f32 - offset) * scale;
            assert_eq!(got, *want, "{format:?} {column}");
        }
    }
}

#[test]
fn a_product_in_parts_of_the_rows_is_the_whole_product() {
    let (instance, adapters) = crate::device::adapters();
    let vulkan = |adapter: &wgpu::Adapter| adapter.get_info().backend == wgpu::Backend::Vulkan;
    let Some(adapter) = adapters.into_iter().find(vulkan) else {
        assert!(std::env::var_os("HEARTH_REQUIRE_VULKAN").is_none());
        return;
    };
    let language = crate::device::ShaderLanguage::SpirV;
    let device = crate::device::open(instance, adapter, language).expect("the adapter opens");
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
    let weight = upload::<burn_wgpu::WgpuRuntime>(matrix, DType::F32, &device);
    let packed = Packed::of(&weight).expect("in blocks");
    let x = packed.dequantised(0, 40, None);
    let read = |tensor: CubeTensor<burn_wgpu::WgpuRuntime>| -> Vec<f32> {
        let data = tensor.client.read_one(tensor.handle.clone()).expect("read");
        bytemuck::cast_slice(&data).to_vec()
    };
    let whole = read(packed.copied_products(x.clone(), rows).remove(0));
    let parts = packed.copied_products(x, 32);
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
