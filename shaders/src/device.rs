//! Opening a wgpu adapter for Burn, without the panics of opening by name.

use std::path::PathBuf;

use burn_wgpu::{RuntimeOptions, WgpuDevice, WgpuSetup, init_device};
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::future::block_on;

/// The language that kernels are compiled to for an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShaderLanguage {
    /// SPIR-V, handed to a Vulkan driver as it is.
    SpirV,
    /// WGSL, which wgpu validates and translates: every other API, and Vulkan when asked.
    Wgsl,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the Vulkan driver of {adapter} lacks features that SPIR-V kernels need")]
    NoSpirV { adapter: String },
    #[error("the driver refused to open {adapter}: {source}")]
    Refused {
        adapter: String,
        source: wgpu::RequestDeviceError,
    },
}

/// Has kernels that were compiled once (SPIR-V, PTX) taken from files in `directory`. The files
/// know a kernel by its name and sizes and not by its code: each build of the program wants a
/// directory of its own. Without effect once a device was opened; a directory that cannot be
/// written is logged and gone without.
pub fn keep_kernels(directory: PathBuf) {
    if CubeClRuntimeConfig::storage().lock().is_some() {
        return;
    }
    let mut config = CubeClRuntimeConfig::default();
    config.compilation.cache = Some(CacheConfig::File(directory));
    CubeClRuntimeConfig::set(config);
}

/// Every adapter that wgpu finds; empty, never a panic, when there is no driver.
pub fn adapters() -> (wgpu::Instance, Vec<wgpu::Adapter>) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    (instance, adapters)
}

/// Opens `adapter` with all the limits it has and registers it with Burn.
pub fn open(
    instance: wgpu::Instance,
    adapter: wgpu::Adapter,
    language: ShaderLanguage,
) -> Result<WgpuDevice, OpenError> {
    let name = adapter.get_info().name;
    let (device, queue, backend) = match language {
        ShaderLanguage::SpirV => {
            let (device, queue) = block_on(cubecl::wgpu::vulkan::request_vulkan_device(&adapter))
                .ok_or(OpenError::NoSpirV { adapter: name })?;
            (device, queue, wgpu::Backend::Vulkan)
        }
        ShaderLanguage::Wgsl => {
            let passthrough =
                wgpu::Features::PASSTHROUGH_SHADERS | wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
            let descriptor = wgpu::DeviceDescriptor {
                required_features: adapter.features().difference(passthrough)
                    & !wgpu::Features::all_experimental_mask(),
                required_limits: adapter.limits(),
                memory_hints: wgpu::MemoryHints::MemoryUsage,
                ..Default::default()
            };
            let (device, queue) =
                block_on(adapter.request_device(&descriptor)).map_err(|source| {
                    OpenError::Refused {
                        adapter: name,
                        source,
                    }
                })?;
            // CubeCL picks its compiler by this name: WGSL for all but Vulkan.
            (device, queue, wgpu::Backend::BrowserWebGpu)
        }
    };
    let setup = WgpuSetup {
        instance,
        adapter,
        device,
        queue,
        backend,
    };
    Ok(init_device(setup, RuntimeOptions::default()))
}
