//! The KV pools in 8 bits.

use hearth_model::device::{Api, DeviceSpec};

use super::golden::{CPU, Golden, goldens, gpu_goldens, load_with_int8_kv, wgpu_devices};
use super::host::comes_back;
use super::rounding::relative_error;
use super::same_bits::differs;

/// The largest root mean square of the differences from the golden, as a share of that of its logits.
/// Each key and value is off by at most 1/254 of the largest of its head. The goldens, whose weights are
/// random, are off by 0.002 to 0.024.
const BOUND: f32 = 0.05;

/// The logits are near those of floats, and the bits of a token depend on its sequence alone: a chunk
/// attends its own keys and values as they are stored, like those of the chunks before it.
fn near_and_always_the_same(device: DeviceSpec, goldens: impl Iterator<Item = Golden>) {
    for golden in goldens {
        let name = format!("{device} {}", golden.dir.display());
        let mut decoder = load_with_int8_kv(&golden, device);
        assert_eq!(decoder.report().kv_dtype, "int8");
        let error = relative_error(&golden, decoder.as_mut());
        assert!(error > 0.0 && error <= BOUND, "{name}: off by {error}");
        assert_eq!(differs(decoder.as_mut(), &golden), None, "{name}");
        comes_back(decoder.as_mut(), &golden, &name);
    }
}

#[test]
fn on_the_cpu_8_bits_are_near_floats_and_always_the_same() {
    near_and_always_the_same(CPU, goldens().into_iter());
}

#[test]
fn on_vulkan_8_bits_are_near_floats_and_always_the_same() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        near_and_always_the_same(device, gpu_goldens().into_iter().take(1));
    }
}
