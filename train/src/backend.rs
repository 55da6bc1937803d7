//! Which device trains and evaluates.

use anyhow::Result;
use burn_cuda::Cuda;
use burn_flex::Flex;
use burn_wgpu::Vulkan;

use crate::measure::measure;
use crate::options::{DeviceKind, TrainOptions};
use crate::trainer;

/// Trains on the device that the options name.
pub fn train(options: &TrainOptions) -> Result<()> {
    match options.device {
        DeviceKind::Cpu => trainer::train::<Flex>(options, &Default::default()),
        DeviceKind::Cuda => trainer::train::<Cuda>(options, &Default::default()),
        DeviceKind::Vulkan => trainer::train::<Vulkan>(options, &Default::default()),
    }
}

/// Measures the checkpoint in `options.out` on the device that the options name.
pub fn evaluate(options: &TrainOptions) -> Result<()> {
    match options.device {
        DeviceKind::Cpu => measure::<Flex>(&options.out, options, &Default::default()),
        DeviceKind::Cuda => measure::<Cuda>(&options.out, options, &Default::default()),
        DeviceKind::Vulkan => measure::<Vulkan>(&options.out, options, &Default::default()),
    }
}
