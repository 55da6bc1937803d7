//! The compose file for observability agrees with its schema, with the checker of Prometheus, and with
//! the files that it mounts; and the check that says so finds mistakes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::harness::{python_with, workspace};

fn check(python: &Path, compose: &Path) -> Output {
    let root = workspace();
    let mut command = Command::new(python);
    command
        .arg(root.join("tests/python/check_compose.py"))
        .arg(compose)
        .arg(root.join("deploy/check/compose.yaml"));
    command.output().unwrap()
}

fn python() -> Option<PathBuf> {
    python_with("import jsonschema, yaml")
}

#[test]
fn the_compose_file_for_observability_agrees_with_its_schema_and_its_parts() {
    let Some(python) = python() else { return };
    let output = check(&python, &workspace().join("otel/compose"));
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{output:?}");
    // Prometheus' own checker, where there is one.
    if let Some(promtool) = std::env::var_os("HEARTH_PROMTOOL") {
        let config = workspace().join("otel/compose/prometheus.yml");
        let output = Command::new(promtool)
            .args(["check", "config"])
            .arg(config)
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_mistake_in_the_compose_file_for_observability_is_found() {
    let Some(python) = python() else { return };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compose-mistakes");
    let (from, to) = (workspace().join("otel"), scratch.join("otel"));
    for (file, right, wrong, problem) in [
        ("compose.yml", "ports:", "port:", "'port' was unexpected"),
        (
            "compose.yml",
            "./collector.yml:",
            "./collect.yml:",
            "there is no ./collect.yml",
        ),
        (
            "compose.yml",
            "4318:4318",
            "4319:4319",
            "the port of 0.0.0.0:4318 is not published",
        ),
        (
            "compose.yml",
            "otlp-write-receiver,",
            "",
            "it does not receive OTLP",
        ),
        (
            "collector.yml",
            "exporters: [otlphttp/prometheus]",
            "exporters: [debug]",
            "exporters debug, which is not configured",
        ),
        (
            "collector.yml",
            "jaeger:4317",
            "tempo:4317",
            "sends to tempo, which is no service",
        ),
        (
            "prometheus.yml",
            "/etc/prometheus/rules/*.yml",
            "/etc/rules/*.yml",
            "no file is /etc/rules/*.yml",
        ),
    ] {
        let _ = fs::remove_dir_all(&scratch);
        for folder in ["compose", "rules", "dashboards"] {
            let status = Command::new("mkdir").arg("-p").arg(&to).status();
            assert!(status.unwrap().success());
            let copied = Command::new("cp")
                .arg("-r")
                .args([from.join(folder), to.join(folder)])
                .status();
            assert!(copied.unwrap().success());
        }
        let path = to.join("compose").join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = text.replace(right, wrong);
        assert_ne!(text, changed, "{file} has no {right}");
        fs::write(&path, changed).unwrap();
        let output = check(&python, &to.join("compose"));
        let report = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{wrong}: {output:?}");
        assert!(report.contains(problem), "{wrong}: {report}");
    }
}
