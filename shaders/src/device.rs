//! Opens a wgpu adapter for Burn. Burn's own way, by name, panics where an adapter does not open.

use std::path::PathBuf;

use burn_wgpu::{RuntimeOptions, WgpuDevice, WgpuSetup, init_device};
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::future::block_on;

/// The language that kernels are compiled to for an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShaderLanguage {
    /// SPIR-V, which a Vulkan driver takes as it is.
    SpirV,
    /// WGSL, which wgpu validates and translates: used for all other APIs, and for Vulkan on
    /// request.
    Wgsl,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the Vulkan driver of {adapter} lacks features that SPIR-V kernels need")]
    NoSpirV { adapter: String },
    #[error("the driver refused to open {adapter}: {error}")]
    Refused {
        adapter: String,
        error: wgpu::RequestDeviceError,
    },
}

/// Makes CubeCL keep compiled kernels (SPIR-V, PTX) in files in `directory` and use them at later
/// starts. The files identify a kernel by its name and sizes, not by its code, so each build of the
/// program needs a directory of its own. The call has no effect after a device was opened. If the
/// directory cannot be written, CubeCL logs this and compiles the kernels every time.
pub fn keep_kernels(directory: PathBuf) {
    if CubeClRuntimeConfig::storage().lock().is_some() {
        return;
    }
    let mut config = CubeClRuntimeConfig::default();
    config.compilation.cache = Some(CacheConfig::File(directory));
    CubeClRuntimeConfig::set(config);
}

/// All adapters that wgpu finds. The list is empty when there is no driver; this never panics.
pub fn adapters() -> (wgpu::Instance, Vec<wgpu::Adapter>) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    (instance, adapters)
}

/// Opens `adapter` with the highest limits that it supports and registers it with Burn.
///
/// # Errors
/// The driver does not support SPIR-V kernels, or it refuses to open the adapter.
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
                block_on(adapter.request_device(&descriptor)).map_err(|error| {
                    OpenError::Refused {
                        adapter: name,
                        error,
                    }
                })?;
            // CubeCL selects its compiler by this name: WGSL for everything except Vulkan.
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
