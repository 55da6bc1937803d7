//! Which device trains.

use anyhow::Result;

use crate::options::{DeviceKind, TrainOptions};
use crate::trainer::train;

/// Trains on the device that the options name.
pub fn run(options: &TrainOptions) -> Result<()> {
    match options.device {
        DeviceKind::Cpu => train::<burn::backend::Flex>(options, &Default::default()),
        DeviceKind::Cuda => train::<burn::backend::Cuda>(options, &Default::default()),
        DeviceKind::Vulkan => train::<burn::backend::Vulkan>(options, &Default::default()),
    }
}
