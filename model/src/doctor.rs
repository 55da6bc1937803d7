//! Whether a device computes rightly, and how fast: every kernel against the reference of
//! `hearth_shaders::check`, and tiny models against the logits that came with them.

mod goldens;
mod products;
mod start;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::DType;
use burn_cuda::Cuda;
use burn_flex::Flex;
use burn_wgpu::Wgpu;
use hearth_shaders::check::{self, CASES_PER_SHAPE, Precision, Random};
use hearth_shaders::{HeadLayout, Kernels, Summation};

use crate::cpu_threads::CpuThreads;
use crate::device::{self, Api, DeviceError, DeviceReport, DeviceSpec, Handle, Kind};
use crate::dtype::Dtype;

pub use hearth_shaders::check::{Case, Kernel, Speed};
pub use hearth_shaders::tune::{Outcome, Tuned};
pub use hearth_shaders::{AttentionTiles, Hardware};

pub use goldens::{GoldenError, GoldenFinding, golden_directories, golden_logits};
pub(crate) use products::{choose_products, products};
pub(crate) use start::refuse_wrong_kernels;

/// How thoroughly to look.
#[derive(Debug, Clone, Copy)]
pub struct Thoroughness {
    /// Random cases of each kernel in each type.
    pub cases: usize,
    /// Whether to time the kernels too.
    pub speed: bool,
    /// Whether to try the kernels that products of many tokens may be computed by.
    pub products: bool,
    pub seed: u64,
}

/// What one device is like.
#[derive(Debug)]
pub struct Diagnosis {
    pub device: DeviceReport,
    /// What kernels are compiled to.
    pub language: &'static str,
    /// What the driver tells beyond the report; `None` for the CPU.
    pub hardware: Option<Hardware>,
    /// What attention computes chunks of many tokens in, in each type, in the sizes of
    /// Llama-3.2-1B; `None` where they go through the kernel of all tokens.
    pub tiles: Vec<(Dtype, Option<AttentionTiles>)>,
    pub kernels: Vec<KernelFinding>,
    /// The kernels for products of many tokens that a GPU would choose in the sizes of
    /// Llama-3.2-1B, or why there are none; empty where they were not to be tried.
    pub products: Vec<(Dtype, Result<Tuned, String>)>,
    pub speeds: Vec<SpeedFinding>,
}

/// A kernel in one type.
#[derive(Debug)]
pub struct KernelFinding {
    pub kernel: Kernel,
    pub dtype: Dtype,
    pub cases: usize,
    /// The largest relative error of the cases that were right.
    pub error: f64,
    pub tolerance: f64,
    /// What is wrong, if anything.
    pub wrong: Option<String>,
}

/// The heads of Llama-3.2-1B.
const CHUNK_HEADS: HeadLayout = HeadLayout {
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
};

/// How fast a kernel is at one size.
#[derive(Debug)]
pub struct SpeedFinding {
    pub case: Case,
    pub dtype: Dtype,
    /// What was measured, or why not.
    pub speed: Result<Speed, String>,
}

impl Diagnosis {
    /// Whether no kernel is wrong.
    pub fn is_healthy(&self) -> bool {
        self.kernels.iter().all(|finding| finding.wrong.is_none())
    }
}

/// Opens what `spec` means, and runs every kernel on it.
///
/// # Errors
/// There is no such device, or it cannot be opened. That a kernel fails is a finding.
pub fn examine(spec: &DeviceSpec, how: Thoroughness) -> Result<Diagnosis, DeviceError> {
    // What was compiled once before proves nothing.
    let opened = device::open(spec, None)?;
    let report = opened.report;
    let software = report.kind == Kind::Software;
    Ok(match opened.handle {
        Handle::Cpu => {
            let look = || Patient::<Flex>::new(report, &Default::default()).examine(how, false);
            match CpuThreads::start() {
                Ok(threads) => threads.run(look),
                // Without threads of its own a forward has those of everybody.
                Err(_) => look(),
            }
        }
        Handle::Cuda(cuda) => Patient::<Cuda>::new(report, &cuda).examine(how, false),
        Handle::Wgpu(wgpu) => Patient::<Wgpu>::new(report, &wgpu).examine(how, software),
    })
}

struct Patient<'a, B: Kernels> {
    report: DeviceReport,
    device: &'a B::Device,
}

impl<'a, B: Kernels> Patient<'a, B> {
    fn new(report: DeviceReport, device: &'a B::Device) -> Self {
        Self { report, device }
    }

    /// `slow`: sizes for a device that computes in software.
    fn examine(self, how: Thoroughness, slow: bool) -> Diagnosis {
        let dtypes = self.dtypes();
        let mut random = Random::seeded(how.seed);
        let mut kernels = Vec::new();
        for &dtype in &dtypes {
            for kernel in Kernel::ALL
                .into_iter()
                .filter(|kernel| kernel.is_supported::<B>())
            {
                kernels.push(self.check(kernel, dtype, how.cases, &mut random));
            }
        }
        let timed = how.products && products::are_tuned(&self.report);
        let timed = dtypes.iter().filter(|_| timed);
        let products = timed
            .map(|dtype| (*dtype, products::tune_llama::<B>(*dtype, self.device)))
            .collect();
        let mut speeds = Vec::new();
        if how.speed {
            // The narrowest type is what a large model is served in.
            let dtype = dtypes.last().copied().unwrap_or(Dtype::F32);
            let cases = Case::for_speed(slow).into_iter();
            for case in cases.filter(|case| case.kernel().is_supported::<B>()) {
                // The CPU has no other.
                if self.report.is_cpu() && case.summation() == Some(Summation::Fixed) {
                    continue;
                }
                let precision = self.precision(dtype);
                let speed =
                    caught(|| check::measure::<B>(&case, precision, &mut random, self.device))
                        .and_then(|speed| speed);
                speeds.push(SpeedFinding { case, dtype, speed });
            }
        }
        let hardware = B::hardware(self.device);
        let tiles = |dtype| B::attention_tiles(CHUNK_HEADS, DType::from(dtype), self.device);
        let tiles = dtypes.iter().map(|dtype| (*dtype, tiles(*dtype)));
        Diagnosis {
            tiles: tiles.collect(),
            language: language(self.report.api),
            device: self.report,
            hardware,
            kernels,
            products,
            speeds,
        }
    }

    fn dtypes(&self) -> Vec<Dtype> {
        let has = [
            (true, Dtype::F32),
            (self.report.f16, Dtype::F16),
            (self.report.bf16, Dtype::Bf16),
        ];
        has.into_iter()
            .filter_map(|(has, dtype)| has.then_some(dtype))
            .collect()
    }

    fn precision(&self, dtype: Dtype) -> Precision {
        precision(dtype, self.report.is_cpu())
    }

    fn check(
        &self,
        kernel: Kernel,
        dtype: Dtype,
        cases: usize,
        random: &mut Random,
    ) -> KernelFinding {
        let precision = self.precision(dtype);
        let tolerance = precision.tolerance();
        let mut finding = KernelFinding {
            kernel,
            dtype,
            cases: 0,
            error: 0.0,
            tolerance,
            wrong: None,
        };
        let mut shape = random.clone();
        while finding.cases < cases && finding.wrong.is_none() {
            // Few shapes among few cases too.
            if finding
                .cases
                .is_multiple_of(CASES_PER_SHAPE.min(cases.div_ceil(3)))
            {
                shape = Random::seeded(random.bits());
            }
            let case = Case::random(kernel, shape.clone(), random);
            match right::<B>(&case, precision, tolerance, random, self.device) {
                Ok(error) => finding.error = finding.error.max(error),
                Err(wrong) => finding.wrong = Some(wrong),
            }
            finding.cases += 1;
        }
        finding
    }
}

/// The error of a case, or in words what is wrong with it: a driver that refuses a kernel
/// shows as a panic.
fn right<B: Kernels>(
    case: &Case,
    precision: Precision,
    tolerance: f64,
    random: &mut Random,
    device: &B::Device,
) -> Result<f64, String> {
    caught(|| check::check::<B>(case, precision, tolerance, random, device))
        .map_err(|panic| format!("{case:?}: {panic}"))?
        .map_err(|mismatch| mismatch.to_string())
}

fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic))
}

/// What a panic said, as far as it said it in words.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("no reason given");
    // CubeCL appends hundreds of lines of a kernel that a compiler refused to what that said.
    let said = text.split_once("[Source]").map_or(text, |(said, _)| said);
    said.trim().to_owned()
}

fn precision(dtype: Dtype, cpu: bool) -> Precision {
    let dtype = DType::from(dtype);
    match cpu {
        true => Precision::on_cpu(dtype),
        false => Precision::uniform(dtype),
    }
}

fn language(api: Api) -> &'static str {
    match api {
        Api::Cpu => "Rust with SIMD",
        Api::Cuda => "CUDA C++, compiled by NVRTC",
        Api::Vulkan => "SPIR-V",
        Api::Metal | Api::Dx12 | Api::WebGpu => "WGSL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_healthy_in_every_type() {
        let spec = DeviceSpec::parse("cpu").unwrap();
        let how = Thoroughness {
            cases: 2,
            speed: false,
            products: true,
            seed: 7,
        };
        let diagnosis = examine(&spec, how).unwrap();
        assert!(diagnosis.is_healthy(), "{:?}", diagnosis.kernels);
        // All but the choice of tokens, which the CPU leaves to the engine, and what a GPU does
        // with blocks.
        assert_eq!(diagnosis.kernels.len(), 3 * (Kernel::ALL.len() - 3));
        assert!(diagnosis.kernels.iter().all(|finding| finding.cases == 2));
        assert!(diagnosis.tiles.iter().all(|(_, tiles)| tiles.is_none()));
    }

    #[test]
    fn a_kernel_that_is_off_or_fails_is_a_finding() {
        let off = KernelFinding {
            kernel: Kernel::Linear,
            dtype: Dtype::F32,
            cases: 1,
            error: 0.0,
            tolerance: 0.0,
            wrong: Some("y[0] is 1, not 2".to_owned()),
        };
        let diagnosis = Diagnosis {
            device: device::list().pop().unwrap(),
            language: "",
            hardware: None,
            tiles: Vec::new(),
            kernels: vec![off],
            products: Vec::new(),
            speeds: Vec::new(),
        };
        assert!(!diagnosis.is_healthy());
        // A tolerance that no rounding meets stands for a kernel that computes wrongly.
        let case = Case::RmsNorm {
            tokens: 3,
            hidden: 64,
        };
        let wrong = right::<Flex>(
            &case,
            precision(Dtype::F32, true),
            0.0,
            &mut Random::seeded(1),
            &Default::default(),
        );
        assert!(wrong.unwrap_err().contains("normed["));
        assert_eq!(
            caught(|| panic!("lost")).map(|(): ()| ()),
            Err("lost".to_owned())
        );
    }
}
