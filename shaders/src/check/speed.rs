//! Measures how long a kernel takes.

use std::time::{Duration, Instant};

use super::prepare::{Prepared, prepare};
use super::{Case, Precision, Random};
use crate::Kernels;

/// Calls are repeated until they take so long,
const LONG_ENOUGH: Duration = Duration::from_millis(60);
/// or until there are so many of them.
const MOST_CALLS: u32 = 2_000;

#[derive(Debug, Clone, Copy)]
pub struct Speed {
    pub seconds: f64,
    /// Bandwidth, for the bytes that have to be moved at least.
    pub bytes_per_s: f64,
    pub flops_per_s: f64,
}

/// Times `case` without compilation: many calls in a row, and one wait for the device at the end.
///
/// # Errors
/// The text of the device's error.
pub fn measure<B: Kernels>(
    case: &Case,
    precision: Precision,
    random: &mut Random,
    device: &B::Device,
) -> Result<Speed, String> {
    let Prepared {
        mut launch, work, ..
    } = prepare::<B>(case, precision, random, device);
    let mut time = |calls: u32| -> Result<Duration, String> {
        let started = Instant::now();
        for _ in 0..calls {
            drop(launch());
        }
        B::sync(device).map_err(|error| format!("{error:?}"))?;
        Ok(started.elapsed())
    };
    time(1)?;
    let mut calls = 1;
    let mut took = time(calls)?;
    while took < LONG_ENOUGH && calls < MOST_CALLS {
        calls = (calls * 4).min(MOST_CALLS);
        took = time(calls)?;
    }
    let seconds = took.as_secs_f64() / f64::from(calls);
    Ok(Speed {
        seconds,
        bytes_per_s: work.bytes as f64 / seconds,
        flops_per_s: work.flops as f64 / seconds,
    })
}
