//! Tests `hearth bench`.

use serde_json::Value;

use super::doctor::has_vulkan;
use super::harness::hearth;

const SMALL: [&str; 10] = [
    "bench",
    "--prompt-tokens",
    "8",
    "--decode-tokens",
    "4",
    "--batch",
    "2",
    "--repeats",
    "1",
    "--json",
];

#[test]
fn a_breakdown_has_every_operation_of_the_model_and_its_share_of_a_step() {
    let run = |flags: &[&str]| -> Value {
        let mut command = hearth();
        command.args(SMALL).args(["--device", "cpu"]).args(flags);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let plain = run(&[]);
    assert!(plain.get("breakdown").is_none(), "{plain}");
    let report = run(&["--breakdown"]);
    let phases = report["breakdown"].as_array().unwrap();
    assert_eq!(phases.len(), 2, "{report}");
    for (phase, name) in phases.iter().zip(["prefill", "decode"]) {
        assert_eq!(phase["phase"], name);
        let parts = phase["parts"].as_array().unwrap();
        let calls = |part: &str| -> f64 {
            let found = parts.iter().find(|found| found["name"] == part);
            found.unwrap_or_else(|| panic!("no {part}: {phase}"))["calls"]
                .as_f64()
                .unwrap()
        };
        // The embedded model has four layers, and its output projection is as large as its vocabulary.
        for part in [
            "product, 256 x 128",
            "product, 768 x 128",
            "attention",
            "activation",
        ] {
            assert_eq!(calls(part), 4.0, "{name}, {part}");
        }
        assert_eq!(calls("product, 1536 x 128"), 1.0, "{name}");
        let rows = if name == "prefill" { 1.0 } else { 2.0 };
        assert_eq!(calls("sampling, greedy"), rows, "{name}");
        let shares = parts.iter().map(|part| part["percent"].as_f64().unwrap());
        let sum: f64 = shares.sum();
        assert!((sum - 100.0).abs() < 0.1, "{phase}");
    }
}

#[test]
fn a_breakdown_on_a_gpu_is_refused() {
    if !has_vulkan() {
        return;
    }
    let command = hearth()
        .args(SMALL)
        .args(["--device", "vulkan", "--breakdown"])
        .output();
    let output = command.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("--breakdown"),
        "{errors}"
    );
}
