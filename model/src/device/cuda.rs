//! NVIDIA devices, as CUDA's driver library describes them.
//!
//! CubeCL compiles its kernels with NVRTC at run time, against CUDA's headers, so a device is
//! usable only where the driver, libnvrtc and the headers are all installed.

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;

use super::report::{DeviceReport, Kind};
use super::spec::Api;

#[cfg(windows)]
const DRIVER: &str = "nvcuda.dll";
#[cfg(not(windows))]
const DRIVER: &str = "libcuda.so.1";

const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
/// The first major compute capability with bf16 arithmetic (Ampere).
const FIRST_BF16: c_int = 8;

/// Headers that kernels include, each with a package that contains it. Python's
/// `nvidia-cuda-runtime` has none below `crt/`, without which no kernel for tensor cores compiles.
const HEADERS: [(&str, &str); 2] = [
    ("cuda_runtime.h", "cuda-cudart-dev"),
    ("crt/mma.h", "cuda-crt, of older releases cuda-nvcc"),
];

type Init = unsafe extern "C" fn(u32) -> c_int;
type GetInt = unsafe extern "C" fn(*mut c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type TotalMemory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// Every CUDA device. Without a driver or without a device there is one that is absent, with the reason;
/// on macOS, for which CUDA does not exist, the list is empty.
pub fn list() -> Vec<DeviceReport> {
    let compiler = missing_compiler();
    // SAFETY: the driver library has no initialiser with preconditions, and the
    // signatures are those of CUDA's driver API.
    match unsafe { query(compiler.as_deref()) } {
        Ok(reports) => reports,
        Err(_) if cfg!(target_os = "macos") => Vec::new(),
        Err(reason) => {
            let reasons: Vec<String> = [reason].into_iter().chain(compiler).collect();
            vec![DeviceReport::absent(
                Api::Cuda,
                "NVIDIA",
                reasons.join("; "),
            )]
        }
    }
}

/// The devices of the driver, which `unusable` keeps from being used. An error says why there are none.
unsafe fn query(unusable: Option<&str>) -> Result<Vec<DeviceReport>, String> {
    let broken = |error: libloading::Error| format!("NVIDIA's driver does not load: {error}");
    // SAFETY: the caller vouches for the library and the signatures. Every pointer that is passed
    // is to a local variable of the size that the function writes.
    unsafe {
        let driver = Library::new(DRIVER).map_err(broken)?;
        let init = driver.get::<Init>(b"cuInit").map_err(broken)?;
        let count_of = driver.get::<GetInt>(b"cuDeviceGetCount").map_err(broken)?;
        let device_at = driver.get::<Get>(b"cuDeviceGet").map_err(broken)?;
        let name_of = driver.get::<GetName>(b"cuDeviceGetName").map_err(broken)?;
        let memory_of = driver
            .get::<TotalMemory>(b"cuDeviceTotalMem_v2")
            .map_err(broken)?;
        let attribute_of = driver
            .get::<Attribute>(b"cuDeviceGetAttribute")
            .map_err(broken)?;
        let mut count = 0;
        for (call, status) in [
            ("cuInit", init(0)),
            ("cuDeviceGetCount", count_of(&raw mut count)),
        ] {
            if status != 0 {
                return Err(format!(
                    "NVIDIA's driver has no device: {call} returns {status}"
                ));
            }
        }
        let reports = (0..count).filter_map(|index| {
            let mut device = 0;
            let mut name = [0 as c_char; 256];
            let mut memory = 0usize;
            let (mut major, mut minor) = (0, 0);
            let answered = device_at(&raw mut device, index) == 0
                && name_of(name.as_mut_ptr(), name.len() as c_int - 1, device) == 0
                && memory_of(&raw mut memory, device) == 0
                && attribute_of(&raw mut major, COMPUTE_CAPABILITY_MAJOR, device) == 0
                && attribute_of(&raw mut minor, COMPUTE_CAPABILITY_MINOR, device) == 0;
            answered.then(|| DeviceReport {
                api: Api::Cuda,
                index: index as usize,
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                kind: Kind::Discrete,
                driver: format!("compute capability {major}.{minor}"),
                memory: Some(memory as u64),
                // CubeCL's memory pages on CUDA are at most a quarter of the memory.
                max_binding: memory as u64 / 4,
                subgroups: true,
                f16: true,
                bf16: major >= FIRST_BF16,
                unusable: unusable.map(str::to_owned),
            })
        });
        Ok(reports.collect())
    }
}

/// Names the first thing that is missing to compile kernels, if anything is.
fn missing_compiler() -> Option<String> {
    let names = [
        "libnvrtc.so",
        "libnvrtc.so.13",
        "libnvrtc.so.12",
        "libnvrtc.so.11.2",
        "nvrtc.dll",
        "nvrtc64_130_0.dll",
        "nvrtc64_120_0.dll",
    ];
    // SAFETY: NVRTC's library has no initialiser with preconditions.
    let opens = |name: &&str| unsafe { Library::new(name) }.is_ok();
    if !names.iter().any(opens) {
        return Some(
            "libnvrtc, which compiles its kernels, is not there (package cuda-nvrtc)".to_owned(),
        );
    }
    let include = cubecl::cuda::install::cuda_path().map(|path| path.join("include"));
    HEADERS.into_iter().find_map(|(header, package)| {
        let there = include
            .as_ref()
            .is_some_and(|include| include.join(header).exists());
        (!there).then(|| {
            format!("CUDA's header {header} is not there (package {package}; CUDA_PATH says where)")
        })
    })
}
