//! Diagnosis of a device (`hearth doctor`): whether it computes correctly, and how fast.
//!
//! Every kernel runs against the reference of `hearth_shaders::check`, and tiny models run against
//! the logits that came with them ([`golden_logits`]).

mod goldens;

use burn::tensor::DType;
#[cfg(not(test))]
use burn_cuda::Cuda;
use burn_flex::Flex;
#[cfg(not(test))]
use burn_wgpu::Wgpu;
use hearth_shaders::check::{self, CASES_PER_SHAPE, Precision, Random};
use hearth_shaders::{HeadLayout, Kernels, Summation};

use crate::cpu_threads::CpuThreads;
#[cfg(not(test))]
use crate::device::Kind;
use crate::device::{Api, DeviceError, DeviceReport, DeviceSpec, Handle, open};
use crate::driver_panic::caught;
use crate::dtype::Dtype;
use crate::kernel_check::{check_case, precision};
use crate::tuning;

pub use hearth_shaders::check::{Case, Kernel, Speed};
pub use hearth_shaders::tune::{Outcome, Tuned};
pub use hearth_shaders::{AttentionTiles, Hardware};

pub use goldens::{GoldenError, GoldenFinding, golden_directories, golden_logits};

/// How thoroughly to examine a device.
#[derive(Debug, Clone, Copy)]
pub struct Thoroughness {
    /// Number of random cases of each kernel in each type.
    pub cases: usize,
    /// Time the kernels as well.
    pub speed: bool,
    /// Time the alternative kernels for matrix multiplications of many tokens.
    pub products: bool,
    pub seed: u64,
}

/// The facts that were found about one device.
#[derive(Debug)]
pub struct Diagnosis {
    pub device: DeviceReport,
    /// The language that kernels are compiled to.
    pub language: &'static str,
    /// Details from the driver beyond the report; `None` for the CPU.
    pub hardware: Option<Hardware>,
    /// The tiles in which attention computes chunks of many tokens, for each type and in the
    /// sizes of Llama-3.2-1B; `None` where such chunks use the general kernel.
    pub tiles: Vec<(Dtype, Option<AttentionTiles>)>,
    pub kernels: Vec<KernelFinding>,
    /// The kernels for matrix multiplications of many tokens that tuning takes on this GPU in
    /// the sizes of Llama-3.2-1B, or why it failed; empty where tuning was not asked for.
    pub products: Vec<(Dtype, Result<Tuned, String>)>,
    pub speeds: Vec<SpeedFinding>,
}

/// How one kernel did in one type.
#[derive(Debug)]
pub struct KernelFinding {
    pub kernel: Kernel,
    pub dtype: Dtype,
    pub cases: usize,
    /// The largest relative error of the correct cases.
    pub error: f64,
    pub tolerance: f64,
    /// The first failure, if there was one.
    pub wrong: Option<String>,
}

/// A part of a diagnosis that is complete, while the others are still worked on.
#[derive(Debug)]
pub enum Found<'a> {
    /// The device is open, and everything but the lists of findings is known.
    Device(&'a Diagnosis),
    Kernel(&'a KernelFinding),
    Product(Dtype, &'a Result<Tuned, String>),
    Speed(&'a SpeedFinding),
}

/// The heads of Llama-3.2-1B.
const CHUNK_HEADS: HeadLayout = HeadLayout {
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
};

/// How fast one kernel is at one size.
#[derive(Debug)]
pub struct SpeedFinding {
    pub case: Case,
    pub dtype: Dtype,
    /// The measurement, or why there is none.
    pub speed: Result<Speed, String>,
}

impl Diagnosis {
    /// True if every kernel computes correctly.
    pub fn is_healthy(&self) -> bool {
        self.kernels.iter().all(|finding| finding.wrong.is_none())
    }
}

/// Opens the device that `spec` names and runs every kernel on it. `tell` hears of each part when it
/// is done.
///
/// # Errors
/// There is no such device, or it cannot be opened. A kernel that fails is a finding instead.
pub fn examine(
    spec: &DeviceSpec,
    how: Thoroughness,
    tell: &mut (dyn FnMut(Found<'_>) + Send),
) -> Result<Diagnosis, DeviceError> {
    // Without a kernel cache: a kernel compiled by an earlier start proves nothing.
    let opened = open(spec, None)?;
    let report = opened.report;
    Ok(match opened.handle {
        Handle::Cpu => {
            let examine =
                || Examination::<Flex>::new(report, &Default::default()).examine(how, false, tell);
            match CpuThreads::start() {
                Ok(threads) => threads.run(examine),
                // Without a pool of its own a forward pass uses the global one.
                Err(_) => examine(),
            }
        }
        // As in `runner::load`: the unit tests examine no GPU.
        #[cfg(test)]
        Handle::Cuda(_) | Handle::Wgpu(_) => unreachable!("unit tests use the CPU"),
        #[cfg(not(test))]
        Handle::Cuda(cuda) => Examination::<Cuda>::new(report, &cuda).examine(how, false, tell),
        #[cfg(not(test))]
        Handle::Wgpu(wgpu) => {
            let software = report.kind == Kind::Software;
            Examination::<Wgpu>::new(report, &wgpu).examine(how, software, tell)
        }
    })
}

struct Examination<'a, B: Kernels> {
    report: DeviceReport,
    device: &'a B::Device,
}

impl<'a, B: Kernels> Examination<'a, B> {
    fn new(report: DeviceReport, device: &'a B::Device) -> Self {
        Self { report, device }
    }

    /// `slow` asks for the small sizes that suit a device which computes in software.
    fn examine(
        self,
        how: Thoroughness,
        slow: bool,
        tell: &mut (dyn FnMut(Found<'_>) + Send),
    ) -> Diagnosis {
        let dtypes = self.dtypes();
        let mut random = Random::seeded(how.seed);
        let tiles = |dtype| B::attention_tiles(CHUNK_HEADS, DType::from(dtype), self.device);
        let tiles = dtypes.iter().map(|dtype| (*dtype, tiles(*dtype)));
        let mut diagnosis = Diagnosis {
            tiles: tiles.collect(),
            language: language(self.report.api),
            device: self.report.clone(),
            hardware: B::hardware(self.device),
            kernels: Vec::new(),
            products: Vec::new(),
            speeds: Vec::new(),
        };
        tell(Found::Device(&diagnosis));
        for &dtype in &dtypes {
            for kernel in Kernel::ALL
                .into_iter()
                .filter(|kernel| kernel.is_supported::<B>())
            {
                let finding = self.check(kernel, dtype, how.cases, &mut random);
                tell(Found::Kernel(&finding));
                diagnosis.kernels.push(finding);
            }
        }
        let timed = how.products && tuning::is_tuned(&self.report);
        for &dtype in dtypes.iter().filter(|_| timed) {
            let tuned = tuning::tune_llama::<B>(dtype, self.device);
            tell(Found::Product(dtype, &tuned));
            diagnosis.products.push((dtype, tuned));
        }
        if how.speed {
            // Large models are served in the narrowest type.
            let dtype = dtypes.last().copied().unwrap_or(Dtype::F32);
            let cases = Case::for_speed(slow).into_iter();
            for case in cases.filter(|case| case.kernel().is_supported::<B>()) {
                // The CPU has one order of sums, which was timed already.
                if self.report.is_cpu() && case.summation() == Some(Summation::Fixed) {
                    continue;
                }
                let precision = self.precision(dtype);
                let speed =
                    caught(|| check::measure::<B>(&case, precision, &mut random, self.device))
                        .and_then(|speed| speed);
                let finding = SpeedFinding { case, dtype, speed };
                tell(Found::Speed(&finding));
                diagnosis.speeds.push(finding);
            }
        }
        diagnosis
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
            // The shape changes at least twice, even among few cases.
            if finding
                .cases
                .is_multiple_of(CASES_PER_SHAPE.min(cases.div_ceil(3)))
            {
                shape = Random::seeded(random.bits());
            }
            let case = Case::random(kernel, shape.clone(), random);
            match check_case::<B>(&case, precision, tolerance, random, self.device) {
                Ok(error) => finding.error = finding.error.max(error),
                Err(wrong) => finding.wrong = Some(wrong),
            }
            finding.cases += 1;
        }
        finding
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
        let (mut told, mut opened) = (0, 0);
        let diagnosis = examine(&spec, how, &mut |found| match found {
            Found::Device(_) => opened += 1,
            Found::Kernel(_) => told += 1,
            Found::Product(..) | Found::Speed(_) => {}
        });
        let diagnosis = diagnosis.unwrap();
        assert_eq!((opened, told), (1, diagnosis.kernels.len()));
        assert!(diagnosis.is_healthy(), "{:?}", diagnosis.kernels);
        // All but sampling, which the CPU leaves to the engine, and the three kernels with which a
        // GPU handles blocks.
        assert_eq!(diagnosis.kernels.len(), 3 * (Kernel::ALL.len() - 4));
        assert!(diagnosis.kernels.iter().all(|finding| finding.cases == 2));
        assert!(diagnosis.tiles.iter().all(|(_, tiles)| tiles.is_none()));
    }

    #[test]
    fn a_wrong_kernel_makes_a_device_unhealthy() {
        let wrong = KernelFinding {
            kernel: Kernel::Linear,
            dtype: Dtype::F32,
            cases: 1,
            error: 0.0,
            tolerance: 0.0,
            wrong: Some("y[0] is 1, not 2".to_owned()),
        };
        let diagnosis = Diagnosis {
            device: crate::device::list().pop().unwrap(),
            language: "",
            hardware: None,
            tiles: Vec::new(),
            kernels: vec![wrong],
            products: Vec::new(),
            speeds: Vec::new(),
        };
        assert!(!diagnosis.is_healthy());
    }
}
