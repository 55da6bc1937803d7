//! Tests `hearth doctor`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use super::harness::{hearth, workspace};

/// Runs `hearth doctor` and returns its findings for one device.
fn examine(device: &str, flags: &[&str]) -> Value {
    let mut command = hearth();
    command.args(["doctor", "--json", "--cases", "3", "--device", device]);
    let output = command.args(flags).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{device}: {errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = report["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1, "{report}");
    devices[0].clone()
}

fn assert_healthy(found: &Value) {
    assert_eq!(found["healthy"], true, "{found}");
    let kernels = found["kernels"].as_array().unwrap();
    assert!(kernels.len() >= 9, "{found}");
    let adapters = kernels.iter().any(|k| k["kernel"] == "low_rank");
    assert!(adapters, "{found}");
    for kernel in kernels {
        assert_eq!(kernel["cases"], 3, "{kernel}");
        let (error, allowed) = (&kernel["largest_error"], &kernel["allowed_error"]);
        assert!(error.as_f64() <= allowed.as_f64(), "{kernel}");
    }
}

pub fn has_vulkan() -> bool {
    has("vulkan:0", "HEARTH_REQUIRE_VULKAN")
}

pub fn has_cuda() -> bool {
    has("cuda:0", "HEARTH_REQUIRE_CUDA")
}

/// Whether the machine has the device.
///
/// # Panics
/// The device is missing and the variable `required_by` is set.
fn has(name: &str, required_by: &str) -> bool {
    let output = hearth().args(["devices", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let found = devices.iter().any(|device| device["device"] == name);
    assert!(
        found || std::env::var_os(required_by).is_none(),
        "{required_by} is set, but there is no {name}"
    );
    found
}

#[test]
fn the_doctor_tests_and_times_the_cpu_and_runs_models_with_known_logits() {
    let goldens = workspace().join("model/goldens");
    let found = examine("cpu", &["--goldens", goldens.to_str().unwrap()]);
    assert_healthy(&found);
    let speeds = found["speeds"].as_array().unwrap();
    assert!(speeds.len() >= 8, "{found}");
    for speed in speeds {
        assert!(speed["gb_per_s"].as_f64().unwrap() > 0.0, "{speed}");
    }
    let goldens = found["goldens"].as_array().unwrap();
    assert!(goldens.len() >= 10, "{found}");
    assert!(
        goldens.iter().all(|golden| golden["right"] == true),
        "{found}"
    );
}

#[test]
fn each_finding_is_printed_when_it_is_there_and_the_last_line_is_the_verdict() {
    let mut command = hearth();
    command.args(["doctor", "--device", "cpu", "--cases", "3"]);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut told = Vec::new();
    for line in lines.by_ref() {
        told.push(line.unwrap());
        if told
            .last()
            .is_some_and(|line| line.contains("largest error"))
        {
            break;
        }
    }
    let ended = process.try_wait().unwrap();
    assert!(
        ended.is_none(),
        "the first finding came at the end: {told:?}"
    );
    told.extend(lines.map(Result::unwrap));
    assert!(process.wait().unwrap().success());
    let text = told.join("\n");
    assert!(
        told.iter().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(text.contains("GFLOP/s"), "{text}");
    let verdict = told.last().unwrap();
    let right = "verdict: right results on 1 device, of ";
    assert!(verdict.starts_with(right), "{text}");
}

#[test]
fn the_doctor_runs_every_kernel_in_both_languages_of_a_vulkan_adapter() {
    if !has_vulkan() {
        return;
    }
    // Only one of the golden models, because all of them take long on lavapipe.
    let goldens = std::env::temp_dir().join(format!("hearth-doctor-{}", std::process::id()));
    let copy = goldens.join("qwen3");
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(workspace().join("model/goldens/qwen3")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    for (device, language) in [("vulkan", "SPIR-V"), ("webgpu", "WGSL")] {
        let goldens = goldens.to_str().unwrap();
        let found = examine(device, &["--no-speed", "--goldens", goldens]);
        assert_healthy(&found);
        assert_eq!(found["goldens"][0]["right"], true, "{found}");
        assert_eq!(found["language"], language);
        assert!(
            found["hardware"]["workgroup_memory_bytes"]
                .as_u64()
                .unwrap()
                >= 16 << 10
        );
        assert!(found["max_binding_bytes"].as_u64().unwrap() >= 128 << 20);
    }
    let _ = std::fs::remove_dir_all(&goldens);
}

#[test]
fn the_same_seed_gives_the_same_errors() {
    let errors = |seed: &str| -> Vec<Value> {
        let found = examine("cpu", &["--no-speed", "--seed", seed]);
        let kernels = found["kernels"].as_array().unwrap().iter();
        kernels
            .map(|kernel| kernel["largest_error"].clone())
            .collect()
    };
    assert_eq!(errors("5"), errors("5"));
    assert_ne!(errors("5"), errors("6"));
}

#[test]
fn missing_devices_and_missing_goldens_are_errors() {
    for flags in [
        &["--device", "metal"][..],
        &["--device", "gpu"],
        &["--device", "cpu", "--goldens", "/nonexistent"],
    ] {
        let output = hearth().arg("doctor").args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains(flags[flags.len() - 1]), "{errors}");
    }
}
