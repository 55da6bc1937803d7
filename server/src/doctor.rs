//! `hearth doctor`: tests whether the devices of this machine compute correctly, and how fast
//! they are.

mod text;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use hearth_model::device::{self, DeviceReport, DeviceSpec};
use hearth_model::doctor::{
    self, Diagnosis, Found, GoldenFinding, Outcome, SpeedFinding, Thoroughness,
};
use serde_json::{Value, json};

use crate::cli::DoctorArgs;

/// The result of a model with reference logits, or why it could not be run.
type Golden = Result<GoldenFinding, String>;

/// Examines one device or all usable ones, and prints each finding when it is there. The last line is
/// the verdict.
///
/// # Errors
/// A kernel or a model computes wrong results, or the device does not exist.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let _logs = hearth_otel::init_logs(hearth_otel::LogFormat::Text, "error")?;
    let how = Thoroughness {
        cases: args.cases as usize,
        speed: !args.no_speed,
        products: args.autotune,
        seed: args.seed.unwrap_or_else(|| RandomState::new().hash_one(0)),
    };
    let goldens = match &args.goldens {
        Some(root) => doctor::golden_directories(root)?,
        None => Vec::new(),
    };
    let begun = Instant::now();
    let found = device::list();
    let (auto, reason) = device::choose(&DeviceSpec::Auto, &found)?;
    let auto = format!("auto takes {}: {reason}", name(auto));
    // A report in JSON is one object.
    let show = |text: String| {
        if !args.json {
            print!("{text}");
        }
    };
    show(text::wrapped(&auto));
    show(format!("--seed {} gives the same inputs again\n", how.seed));
    let (mut well, mut unwell, mut reports, mut kernels) = (0, Vec::new(), Vec::new(), 0);
    for spec in specs(args, &found)? {
        let mut tell = |found: Found<'_>| show(text::of(&found));
        let diagnosis = doctor::examine(&spec, how, &mut tell)
            .with_context(|| format!("cannot examine {spec}"))?;
        let logits = goldens.iter().map(|path| {
            let golden = golden(path, spec);
            show(text::of_golden(&golden));
            golden
        });
        let logits: Vec<Golden> = logits.collect();
        let right = |golden: &Golden| golden.as_ref().is_ok_and(GoldenFinding::is_right);
        let healthy = diagnosis.is_healthy() && logits.iter().all(right);
        kernels += diagnosis.kernels.len();
        match healthy {
            true => well += 1,
            false => unwell.push(diagnosis.device.to_string()),
        }
        if args.json {
            reports.push(as_json(&diagnosis, &logits, healthy));
        }
    }
    if args.json {
        let report = json!({"auto": auto, "seed": how.seed, "devices": reports});
        println!("{report}");
    }
    if !unwell.is_empty() {
        bail!(
            "verdict: wrong results on {}: do not serve models there",
            unwell.join(", ")
        );
    }
    let took = begun.elapsed().as_secs();
    let devices = if well == 1 {
        "1 device"
    } else {
        &format!("{well} devices")
    };
    show(format!(
        "\nverdict: right results on {devices}, of {kernels} kernels in {took} s\n"
    ));
    Ok(())
}

/// The device of `--device`, or all usable ones.
fn specs(args: &DoctorArgs, found: &[DeviceReport]) -> Result<Vec<DeviceSpec>> {
    if let Some(device) = &args.device {
        return Ok(vec![DeviceSpec::parse(device)?]);
    }
    let usable = found.iter().filter(|device| device.unusable.is_none());
    let spec = |device: &DeviceReport| DeviceSpec::Named {
        api: device.api,
        index: Some(device.index),
    };
    Ok(usable.map(spec).collect())
}

fn golden(directory: &Path, device: DeviceSpec) -> Golden {
    doctor::golden_logits(directory, device).map_err(|error| error.to_string())
}

fn name(device: &DeviceReport) -> String {
    format!("{}:{}", device.api.name(), device.index)
}

fn as_json(diagnosis: &Diagnosis, goldens: &[Golden], healthy: bool) -> Value {
    let device = &diagnosis.device;
    let kernels = diagnosis.kernels.iter().map(|finding| {
        json!({
            "kernel": finding.kernel.name(),
            "dtype": finding.dtype.to_string(),
            "cases": finding.cases,
            "largest_error": finding.error,
            "allowed_error": finding.tolerance,
            "wrong": finding.wrong,
        })
    });
    let speeds = diagnosis
        .speeds
        .iter()
        .map(|SpeedFinding { case, dtype, speed }| {
            json!({
                "kernel": case.kernel().name(),
                "dtype": dtype.to_string(),
                "case": case.to_string(),
                "seconds": speed.as_ref().ok().map(|speed| speed.seconds),
                "gb_per_s": speed.as_ref().ok().map(|speed| speed.bytes_per_s / 1e9),
                "gflop_per_s": speed.as_ref().ok().map(|speed| speed.flops_per_s / 1e9),
                "error": speed.as_ref().err(),
            })
        });
    let goldens = goldens.iter().map(|golden| match golden {
        Ok(golden) => json!({
            "model": golden.name,
            "largest_error": golden.error,
            "allowed_error": golden.tolerance,
            "right": golden.is_right(),
        }),
        Err(error) => json!({"error": error, "right": false}),
    });
    let tiles = diagnosis.tiles.iter().map(|(dtype, tiles)| {
        json!({
            "dtype": dtype.to_string(),
            "matrices": tiles.map(|tiles| [tiles.m, tiles.n, tiles.k]),
            "rows": tiles.map(|tiles| tiles.rows()),
            "positions": tiles.map(|tiles| tiles.positions),
        })
    });
    let products = diagnosis.products.iter().map(|(dtype, tuned)| {
        let findings = tuned.iter().flat_map(|tuned| &tuned.findings);
        let findings = findings.map(|finding| {
            let (seconds, wrong) = match &finding.outcome {
                Outcome::Took(seconds) => (Some(*seconds), None),
                Outcome::Wrong(reason) => (None, Some(reason)),
                Outcome::Refused => (None, None),
            };
            json!({
                "kernel": finding.kernel.name(),
                "tokens": finding.tokens,
                "seconds": seconds,
                "wrong": wrong,
            })
        });
        json!({
            "dtype": dtype.to_string(),
            "kernels": tuned.as_ref().ok().map(|tuned| tuned.choice.kernels.map(|kernel| kernel.name())),
            "timed": findings.collect::<Vec<_>>(),
            "error": tuned.as_ref().err(),
        })
    });
    let hardware = diagnosis.hardware.as_ref().map(|hardware| {
        json!({
            "workgroup_memory_bytes": hardware.shared_memory,
            "workgroup_units": hardware.max_units,
            "subgroups": [hardware.subgroups.0, hardware.subgroups.1],
            "multiprocessors": hardware.processors,
        })
    });
    json!({
        "device": name(device),
        "name": device.name,
        "language": diagnosis.language,
        "memory_bytes": device.memory,
        "max_binding_bytes": device.max_binding,
        "subgroups": device.subgroups,
        "f16": device.f16,
        "bf16": device.bf16,
        "hardware": hardware,
        "prompt_attention": tiles.collect::<Vec<_>>(),
        "healthy": healthy,
        "kernels": kernels.collect::<Vec<_>>(),
        "prompt_products": products.collect::<Vec<_>>(),
        "speeds": speeds.collect::<Vec<_>>(),
        "goldens": goldens.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::doctor::{AttentionTiles, Hardware, Kernel, KernelFinding, Tuned};
    use hearth_model::dtype::Dtype;

    const TILES: AttentionTiles = AttentionTiles {
        m: 16,
        n: 16,
        k: 16,
        strips: 4,
        positions: 32,
        scored: 16,
        subgroup: 32,
        subgroup_barrier: true,
        vector: 8,
    };

    #[test]
    fn a_wrong_kernel_and_a_golden_model_that_did_not_run_are_shown_as_wrong() {
        let finding = |kernel, wrong| KernelFinding {
            kernel,
            dtype: Dtype::F32,
            cases: 3,
            error: 1e-7,
            tolerance: 3e-5,
            wrong,
        };
        let diagnosis = Diagnosis {
            device: device::list().pop().unwrap(),
            language: "Rust",
            hardware: Some(Hardware {
                shared_memory: 48 << 10,
                max_units: 1024,
                subgroups: (32, 32),
                processors: None,
            }),
            tiles: vec![(Dtype::F32, None), (Dtype::F16, Some(TILES))],
            kernels: vec![
                finding(Kernel::Linear, Some("y[0] is 1, not 2".to_owned())),
                finding(Kernel::Embed, None),
            ],
            products: vec![
                (Dtype::F16, Ok(Tuned::default())),
                (Dtype::Bf16, Err("lost".to_owned())),
            ],
            speeds: Vec::new(),
        };
        let goldens = [Err("no such file".to_owned())];
        let mut text = text::of(&Found::Device(&diagnosis));
        for finding in &diagnosis.kernels {
            text += &text::of(&Found::Kernel(finding));
        }
        for (dtype, tuned) in &diagnosis.products {
            text += &text::of(&Found::Product(*dtype, tuned));
        }
        text += &text::of_golden(&goldens[0]);
        assert!(
            text.contains("linear          f32   WRONG: y[0] is 1, not 2"),
            "{text}"
        );
        assert!(
            text.contains("embed           f32       3 cases, largest error 1.0e-7"),
            "{text}"
        );
        assert!(text.contains("logits: WRONG: no such file"), "{text}");
        let columns = text.lines().map(|line| line.chars().count()).max();
        assert!(columns <= Some(100), "{text}");
        for attention in [
            "prompt attention f32  without cooperative matrices",
            "prompt attention f16  in cooperative matrices of 16 x 16 x 16, 64 rows by 32 positions",
            "prompt products  f16  64 tokens: usual, 512: usual, 2048: usual",
            "prompt products  bf16 not timed: lost",
        ] {
            assert!(text.contains(attention), "{text}");
        }
        let json = as_json(&diagnosis, &goldens, false);
        assert_eq!(json["healthy"], false);
        assert_eq!(json["prompt_attention"][0]["matrices"], Value::Null);
        assert_eq!(json["prompt_attention"][1]["matrices"], json!([16, 16, 16]));
        assert_eq!(json["prompt_attention"][1]["rows"], 64);
        assert_eq!(json["kernels"][0]["wrong"], "y[0] is 1, not 2");
        assert_eq!(json["kernels"][1]["wrong"], Value::Null);
        assert_eq!(
            json["prompt_products"][0]["kernels"],
            json!(["usual", "usual", "usual"])
        );
        assert_eq!(json["prompt_products"][1]["error"], "lost");
        assert_eq!(json["goldens"][0]["right"], false);
    }
}
