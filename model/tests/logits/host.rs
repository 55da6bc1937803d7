//! Keys and values in the host's memory.

use hearth_forward::{CopyDirection, KvCopy};
use hearth_model::Decoder;
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;

use super::golden::{
    CPU, Golden, HOST_SLOTS, SLOTS, feed, goldens, gpu_goldens, load, load_as, slot, wgpu_devices,
};

fn kv_comes_back_from_the_host_with_the_same_bits(
    device: DeviceSpec,
    dtype: Dtype,
    goldens: Vec<Golden>,
) {
    for golden in goldens {
        let mut decoder = load_as(&golden, device, dtype);
        comes_back(decoder.as_mut(), &golden, &format!("{device} {dtype}"));
    }
}

/// A prompt's keys and values come back from the host after their slots have held something else.
pub fn comes_back(decoder: &mut dyn Decoder, golden: &Golden, name: &str) {
    let length = golden.prompt.len();
    feed(decoder, &golden.prompt, 0);
    let next = golden.decode_tokens[0];
    let expected = feed(decoder, &[next], length);
    let slots: Vec<u32> = (0..length).map(slot).collect();
    let host: Vec<u32> = (0..length).map(|i| (i * 3 % HOST_SLOTS) as u32).collect();
    let copy = |direction| KvCopy {
        direction,
        device: slots.clone(),
        host: host.clone(),
    };
    decoder
        .copy_kv(&copy(CopyDirection::ToHost))
        .expect("a copy to the host");
    let other: Vec<u32> = golden.prompt.iter().map(|token| token ^ 1).collect();
    feed(decoder, &other, 0);
    assert_ne!(feed(decoder, &[next], length), expected);
    decoder
        .copy_kv(&copy(CopyDirection::ToDevice))
        .expect("a copy from the host");
    assert_eq!(feed(decoder, &[next], length), expected, "{name}");
}

#[test]
fn keys_and_values_survive_on_the_host_on_the_cpu() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        kv_comes_back_from_the_host_with_the_same_bits(CPU, dtype, goldens());
    }
}

#[test]
fn keys_and_values_survive_on_the_host_beside_vulkan() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        kv_comes_back_from_the_host_with_the_same_bits(device, Dtype::F32, gpu_goldens());
        kv_comes_back_from_the_host_with_the_same_bits(device, Dtype::F16, gpu_goldens());
    }
}

#[test]
fn slots_that_are_not_there_are_not_copied() {
    let golden = &goldens()[0];
    let mut decoder = load(golden, CPU);
    for (device, host) in [
        (vec![SLOTS as u32], vec![0]),
        (vec![0], vec![HOST_SLOTS as u32]),
        (vec![0, 1], vec![0]),
    ] {
        for direction in [CopyDirection::ToHost, CopyDirection::ToDevice] {
            let copy = KvCopy {
                direction,
                device: device.clone(),
                host: host.clone(),
            };
            decoder
                .copy_kv(&copy)
                .expect_err("a slot that is not there");
        }
    }
}
