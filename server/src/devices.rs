//! `hearth devices`: lists the devices that this machine can compute on.

use std::fmt::Write;

use anyhow::Result;
use hearth_model::device::{self, DeviceReport, DeviceSpec, Kind};
use serde_json::{Value, json};

use crate::banner::bytes_text;
use crate::cli::DevicesArgs;

/// Prints every device, and which one `auto` selects and why.
///
/// # Errors
/// No usable device was found, not even a CPU.
pub fn run(args: &DevicesArgs) -> Result<()> {
    let devices = device::list();
    let (chosen, reason) = device::choose(&DeviceSpec::Auto, &devices)?;
    if args.json {
        let list: Vec<Value> = devices.iter().map(as_json).collect();
        let auto = name(chosen);
        println!(
            "{}",
            json!({"devices": list, "auto": auto, "reason": reason})
        );
    } else {
        for device in &devices {
            print!("{}", as_text(device));
        }
        println!("auto takes {}: {reason}", name(chosen));
    }
    Ok(())
}

/// The name by which `--device` selects the device, or that of an API that has none.
fn name(device: &DeviceReport) -> String {
    if device.is_absent() {
        return device.api.name().to_owned();
    }
    format!("{}:{}", device.api.name(), device.index)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Discrete => "discrete",
        Kind::Integrated => "integrated",
        Kind::Virtual => "virtual",
        Kind::Software => "software",
        Kind::Other => "other",
    }
}

fn as_text(device: &DeviceReport) -> String {
    if let Some(reason) = device.unusable.as_ref().filter(|_| device.is_absent()) {
        let (api, name) = (name(device), &device.name);
        return format!("{api:<10} {name}\n           cannot be used: {reason}\n");
    }
    let yes = |has: bool| if has { "yes" } else { "no" };
    let memory = device.memory.map_or("unknown".to_owned(), bytes_text);
    // The CPU has no buffer bindings, and so no limit.
    let binding = match device.max_binding {
        u64::MAX => String::new(),
        bytes => format!(", largest binding {}", bytes_text(bytes)),
    };
    let mut text = format!(
        "{:<10} {} ({}, {})\n           memory {memory}{binding}, subgroups {}, f16 {}, bf16 {}\n",
        name(device),
        device.name,
        kind(device.kind),
        device.driver,
        yes(device.subgroups),
        yes(device.f16),
        yes(device.bf16),
    );
    if device.is_cpu() {
        let Cpu { name, sets } = Cpu::of(&cpu_info());
        let name = name.unwrap_or_else(|| "unknown".to_owned());
        let sets = sets.join(" ");
        let sets = if sets.is_empty() { "unknown" } else { &sets };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "           {name}\n           instruction sets: {sets}"
        );
    }
    if let Some(reason) = &device.unusable {
        // Writing to a string does not fail.
        let _ = writeln!(text, "           cannot be used: {reason}");
    }
    text
}

/// The kind of the CPU and those of its instruction sets that kernels use.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cpu {
    name: Option<String>,
    sets: Vec<&'static str>,
}

/// Instruction sets as Linux names them, for x86-64 and ARM.
const SETS: [&str; 16] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
];

/// The CPU as Linux describes it; empty on other systems.
fn cpu_info() -> String {
    std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

impl Cpu {
    /// Reads the text of `/proc/cpuinfo`.
    fn of(text: &str) -> Self {
        let field = |wanted: [&str; 2]| {
            let mut fields = text.lines().filter_map(|line| line.split_once(':'));
            let found = fields.find(|(name, _)| wanted.contains(&name.trim()));
            found.map(|(_, value)| value.trim())
        };
        let name = field(["model name", "Processor"]).map(str::to_owned);
        let flags = field(["flags", "Features"]).unwrap_or_default();
        let flags: Vec<&str> = flags.split(' ').collect();
        let sets = SETS.into_iter().filter(|set| flags.contains(set));
        Self {
            name,
            sets: sets.collect(),
        }
    }
}

fn as_json(device: &DeviceReport) -> Value {
    let cpu = match device.is_cpu() {
        true => Cpu::of(&cpu_info()),
        false => Cpu::default(),
    };
    json!({
        "device": name(device),
        "name": device.name,
        "kind": kind(device.kind),
        "driver": device.driver,
        "memory_bytes": device.memory,
        "max_binding_bytes": device.max_binding,
        "subgroups": device.subgroups,
        "f16": device.f16,
        "bf16": device.bf16,
        "unusable": device.unusable,
        "cpu": cpu.name,
        "instruction_sets": cpu.sets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_named_with_the_instruction_sets_that_kernels_use() {
        let x86 = "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 sse amx_int8\n\n\
                   processor\t: 1\nmodel name\t: Xeon\n";
        let cpu = Cpu::of(x86);
        assert_eq!(cpu.name.as_deref(), Some("Xeon"));
        assert_eq!(cpu.sets, ["avx2", "amx_int8"]);
        let arm = Cpu::of("processor\t: 0\nFeatures\t: fp asimd asimddp\n");
        assert_eq!((arm.name, arm.sets), (None, vec!["asimd", "asimddp"]));
        assert_eq!(Cpu::of(""), Cpu::default());
    }

    #[test]
    fn the_cpu_is_always_listed_and_auto_selects_a_device() {
        let devices = device::list();
        let cpu = devices.iter().find(|device| device.is_cpu()).unwrap();
        let text = as_text(cpu);
        assert!(
            text.starts_with("cpu:0 ") && text.contains("memory"),
            "{text}"
        );
        assert!(!text.contains("binding"), "{text}");
        assert_eq!(as_json(cpu)["device"], "cpu:0");
        assert!(device::choose(&DeviceSpec::Auto, &devices).is_ok());
    }
}
