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

/// The name by which `--device` selects the device.
fn name(device: &DeviceReport) -> String {
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
    if let Some(reason) = &device.unusable {
        // Writing to a string does not fail.
        let _ = writeln!(text, "           cannot be used: {reason}");
    }
    text
}

fn as_json(device: &DeviceReport) -> Value {
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
