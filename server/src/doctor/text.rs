//! The findings of `hearth doctor` in lines of at most 100 columns.

use hearth_model::doctor::{Diagnosis, Found, GoldenFinding, KernelFinding, SpeedFinding};

use crate::banner::bytes_text;
use crate::wrap;

/// Columns of the widest line.
const COLUMNS: usize = 100;
/// Columns that the measurements of a speed take, at the end of a line.
const MEASURES: usize = 44;

/// The lines about `found`.
pub fn of(found: &Found<'_>) -> String {
    match found {
        Found::Device(diagnosis) => of_device(diagnosis),
        Found::Kernel(finding) => of_kernel(finding),
        Found::Product(dtype, tuned) => {
            let dtype = dtype.to_string();
            wrapped(&match tuned {
                Ok(tuned) => format!("  prompt products  {dtype:<4} {}", tuned.choice),
                Err(error) => format!("  prompt products  {dtype:<4} not timed: {error}"),
            })
        }
        Found::Speed(finding) => of_speed(finding),
    }
}

fn of_device(diagnosis: &Diagnosis) -> String {
    let title = format!("{}: kernels in {}", diagnosis.device, diagnosis.language);
    let mut text = format!("\n{}", wrapped(&title));
    text += &wrapped(&format!("  {}", limits(diagnosis)));
    if diagnosis.hardware.is_some() {
        for (dtype, tiles) in &diagnosis.tiles {
            let dtype = dtype.to_string();
            let how = match tiles {
                Some(tiles) => format!("in {tiles}"),
                None => "without cooperative matrices".to_owned(),
            };
            text += &wrapped(&format!("  prompt attention {dtype:<4} {how}"));
        }
    }
    text
}

fn of_kernel(finding: &KernelFinding) -> String {
    let KernelFinding {
        kernel,
        dtype,
        cases,
        error,
        tolerance,
        wrong,
    } = finding;
    // Formatted first, because padding only applies to text.
    let (kernel, dtype) = (kernel.name(), dtype.to_string());
    wrapped(&match wrong {
        None => format!(
            "  {kernel:<15} {dtype:<5} {cases:>5} cases, largest error {error:.1e} \
             (allowed {tolerance:.0e})"
        ),
        Some(wrong) => format!("  {kernel:<15} {dtype:<5} WRONG: {wrong}"),
    })
}

fn of_speed(SpeedFinding { case, dtype, speed }: &SpeedFinding) -> String {
    let (kernel, dtype) = (case.kernel().name(), dtype.to_string());
    let sizes = format!("  {kernel:<15} {dtype:<5} {case}");
    let speed = match speed {
        Ok(speed) => speed,
        Err(error) => return wrapped(&format!("{sizes}: not timed: {error}")),
    };
    let measures = format!(
        "{:>9.3} ms {:>8.1} GB/s {:>9.1} GFLOP/s",
        speed.seconds * 1e3,
        speed.bytes_per_s / 1e9,
        speed.flops_per_s / 1e9
    );
    let before = COLUMNS - MEASURES;
    match sizes.chars().count() <= before {
        true => format!("{sizes:<before$}{measures:>MEASURES$}\n"),
        false => format!("{sizes}\n{measures:>COLUMNS$}\n"),
    }
}

/// The line about a model with reference logits, or about the reason that it could not be run.
pub fn of_golden(golden: &Result<GoldenFinding, String>) -> String {
    wrapped(&match golden {
        Ok(golden) if golden.is_right() => format!(
            "  logits of {}: off by {:.1e} (allowed {:.0e})",
            golden.name, golden.error, golden.tolerance
        ),
        Ok(golden) => format!(
            "  logits of {}: WRONG: off by {:.1e}",
            golden.name, golden.error
        ),
        Err(error) => format!("  logits: WRONG: {error}"),
    })
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

/// `text` in lines of [`COLUMNS`], with a line break at the end.
pub fn wrapped(text: &str) -> String {
    wrap::wrapped(text, 6, COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::doctor::{Case, Speed};
    use hearth_model::dtype::Dtype;

    #[test]
    fn every_speed_fits_the_columns() {
        for case in Case::for_speed(false) {
            let speed = Ok(Speed {
                seconds: 12.345_678,
                bytes_per_s: 4.8e12,
                flops_per_s: 1.9e15,
            });
            let finding = SpeedFinding {
                case,
                dtype: Dtype::Bf16,
                speed,
            };
            let text = of(&Found::Speed(&finding));
            assert!(
                text.lines().all(|line| line.chars().count() <= COLUMNS),
                "{text}"
            );
            assert!(text.ends_with("GFLOP/s\n"), "{text}");
        }
    }
}
