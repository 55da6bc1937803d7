//! `hearth doctor`: tests whether the devices of this machine compute correctly, and how fast
//! they are.

use std::collections::hash_map::RandomState;
use std::fmt::Write;
use std::hash::BuildHasher;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hearth_model::device::{self, DeviceReport, DeviceSpec};
use hearth_model::doctor::{
    self, Diagnosis, GoldenFinding, KernelFinding, Outcome, SpeedFinding, Thoroughness,
};
use serde_json::{Value, json};

use crate::banner::bytes_text;
use crate::cli::DoctorArgs;

/// The result of a model with reference logits, or why it could not be run.
type Golden = Result<GoldenFinding, String>;

/// Examines one device or all usable ones, and prints the findings.
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
    let found = device::list();
    let (auto, reason) = device::choose(&DeviceSpec::Auto, &found)?;
    let auto = format!("auto takes {}: {reason}", name(auto));
    if !args.json {
        println!("{auto}\n--seed {} gives the same inputs again", how.seed);
    }
    let (mut unwell, mut reports) = (Vec::new(), Vec::new());
    for spec in specs(args, &found)? {
        let diagnosis =
            doctor::examine(&spec, how).with_context(|| format!("cannot examine {spec}"))?;
        let logits: Vec<Golden> = goldens.iter().map(|path| golden(path, spec)).collect();
        let right = |golden: &Golden| golden.as_ref().is_ok_and(GoldenFinding::is_right);
        let healthy = diagnosis.is_healthy() && logits.iter().all(right);
        if !healthy {
            unwell.push(diagnosis.device.to_string());
        }
        if args.json {
            reports.push(as_json(&diagnosis, &logits, healthy));
        } else {
            print!("{}", as_text(&diagnosis, &logits));
        }
    }
    if args.json {
        println!(
            "{}",
            json!({"auto": auto, "seed": how.seed, "devices": reports})
        );
    }
    if !unwell.is_empty() {
        bail!(
            "wrong results on {}: do not serve models there",
            unwell.join(", ")
        );
    }
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

fn as_text(diagnosis: &Diagnosis, goldens: &[Golden]) -> String {
    let mut text = format!(
        "\n{}: kernels in {}\n",
        diagnosis.device, diagnosis.language
    );
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {}", limits(diagnosis));
    if diagnosis.hardware.is_some() {
        for (dtype, tiles) in &diagnosis.tiles {
            let dtype = dtype.to_string();
            let _ = match tiles {
                Some(tiles) => writeln!(text, "  prompt attention {dtype:<4} in {tiles}"),
                None => writeln!(
                    text,
                    "  prompt attention {dtype:<4} without cooperative matrices"
                ),
            };
        }
    }
    for KernelFinding {
        kernel,
        dtype,
        cases,
        error,
        tolerance,
        wrong,
    } in &diagnosis.kernels
    {
        // Formatted first, because padding only applies to text.
        let (kernel, dtype) = (kernel.name(), dtype.to_string());
        let _ = match wrong {
            None => writeln!(
                text,
                "  {kernel:<15} {dtype:<5} {cases:>5} cases, largest error {error:.1e} \
                 (allowed {tolerance:.0e})"
            ),
            Some(wrong) => writeln!(text, "  {kernel:<15} {dtype:<5} WRONG: {wrong}"),
        };
    }
    for (dtype, tuned) in &diagnosis.products {
        let dtype = dtype.to_string();
        let _ = match tuned {
            Ok(tuned) => writeln!(text, "  prompt products  {dtype:<4} {}", tuned.choice),
            Err(error) => writeln!(text, "  prompt products  {dtype:<4} not timed: {error}"),
        };
    }
    for SpeedFinding { case, dtype, speed } in &diagnosis.speeds {
        let (kernel, dtype) = (case.kernel().name(), dtype.to_string());
        let case = case.to_string();
        let _ = match speed {
            Ok(speed) => writeln!(
                text,
                "  {kernel:<15} {dtype:<5} {case:<46} {:>9.3} ms {:>8.1} GB/s {:>9.1} GFLOP/s",
                speed.seconds * 1e3,
                speed.bytes_per_s / 1e9,
                speed.flops_per_s / 1e9
            ),
            Err(error) => writeln!(text, "  {kernel:<15} {dtype:<5} {case}: not timed: {error}"),
        };
    }
    for golden in goldens {
        let _ = match golden {
            Ok(GoldenFinding {
                name,
                error,
                tolerance,
            }) if error <= tolerance => {
                writeln!(
                    text,
                    "  logits of {name}: off by {error:.1e} (allowed {tolerance:.0e})"
                )
            }
            Ok(golden) => writeln!(
                text,
                "  logits of {}: WRONG: off by {:.1e}",
                golden.name, golden.error
            ),
            Err(error) => writeln!(text, "  logits: WRONG: {error}"),
        };
    }
    text
}

fn limits(diagnosis: &Diagnosis) -> String {
    let device = &diagnosis.device;
    let mut limits = vec![format!(
        "memory {}",
        device.memory.map_or("unknown".to_owned(), bytes_text)
    )];
    if let Some(hardware) = &diagnosis.hardware {
        limits.push(format!(
            "largest binding {}",
            bytes_text(device.max_binding)
        ));
        limits.push(format!(
            "workgroup memory {} and {} units",
            bytes_text(hardware.shared_memory as u64),
            hardware.max_units
        ));
        limits.push(match (device.subgroups, hardware.subgroups) {
            (true, (least, most)) if least == most => format!("subgroups of {least}"),
            (true, (least, most)) => format!("subgroups of {least} to {most}"),
            (false, _) => "no subgroups".to_owned(),
        });
        if let Some(processors) = hardware.processors {
            limits.push(format!("{processors} multiprocessors"));
        }
    }
    let has = |has: bool, name: &str| format!("{}{name}", if has { "" } else { "no " });
    limits.push(has(device.f16, "f16"));
    limits.push(has(device.bf16, "bf16"));
    limits.join(", ")
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
    use hearth_model::doctor::{AttentionTiles, Hardware, Kernel, Tuned};
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
        let text = as_text(&diagnosis, &goldens);
        assert!(
            text.contains("linear          f32   WRONG: y[0] is 1, not 2"),
            "{text}"
        );
        assert!(
            text.contains("embed           f32       3 cases, largest error 1.0e-7"),
            "{text}"
        );
        assert!(text.contains("logits: WRONG: no such file"), "{text}");
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
