//! Adapters that wgpu finds through Vulkan, Metal and Direct3D 12: each once under its own API
//! and once as `webgpu`, with kernels in WGSL.

use hearth_shaders::device::{ShaderLanguage, adapters};

use super::report::{DeviceReport, Kind};
use super::spec::Api;

/// An adapter that can be opened.
pub struct Found {
    pub report: DeviceReport,
    pub instance: wgpu::Instance,
    pub adapter: wgpu::Adapter,
    pub language: ShaderLanguage,
}

/// Every adapter. Without a driver the list is empty, and nothing panics.
pub fn list() -> Vec<Found> {
    let (instance, adapters) = adapters();
    let mut counts = [0usize; Api::ALL.len()];
    let mut found = Vec::new();
    for adapter in &adapters {
        let native = match adapter.get_info().backend {
            wgpu::Backend::Vulkan => Some((Api::Vulkan, ShaderLanguage::SpirV)),
            wgpu::Backend::Metal => Some((Api::Metal, ShaderLanguage::Wgsl)),
            wgpu::Backend::Dx12 => Some((Api::Dx12, ShaderLanguage::Wgsl)),
            _ => None,
        };
        for (api, language) in native
            .into_iter()
            .chain([(Api::WebGpu, ShaderLanguage::Wgsl)])
        {
            let count = &mut counts[api as usize];
            found.push(Found {
                report: describe(adapter, api, *count),
                instance: instance.clone(),
                adapter: adapter.clone(),
                language,
            });
            *count += 1;
        }
    }
    // The native APIs come before the same adapters with WGSL.
    found.sort_by_key(|found| found.report.api == Api::WebGpu);
    found
}

fn describe(adapter: &wgpu::Adapter, api: Api, index: usize) -> DeviceReport {
    let info = adapter.get_info();
    let (limits, features) = (adapter.limits(), adapter.features());
    DeviceReport {
        api,
        index,
        name: info.name,
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Software,
            wgpu::DeviceType::Other => Kind::Other,
        },
        driver: format!("{} {}", info.driver, info.driver_info)
            .trim()
            .to_owned(),
        memory: memory(adapter),
        max_binding: limits.max_storage_buffer_binding_size,
        subgroups: features.contains(wgpu::Features::SUBGROUP),
        f16: features.contains(wgpu::Features::SHADER_F16),
        // No kernel here computes in bf16 through wgpu; in WGSL it gave wrong logits silently.
        bf16: false,
        unusable: None,
    }
}

/// The bytes of the largest device-local heap of a Vulkan adapter; the other APIs do not tell.
fn memory(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the handles stay alive as long as `adapter`, and are only read.
    unsafe {
        let hal = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let properties = hal
            .shared_instance()
            .raw_instance()
            .get_physical_device_memory_properties(hal.raw_physical_device());
        let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
        // Bit 0 of the flags is DEVICE_LOCAL.
        heaps
            .iter()
            .filter(|heap| heap.flags.as_raw() & 1 == 1)
            .map(|heap| heap.size)
            .max()
    }
}
