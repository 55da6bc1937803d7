//! Finds a Python with the packages that a test needs.

use std::path::PathBuf;
use std::process::Command;

use super::workspace;

/// A Python that has the packages of Prometheus and OpenTelemetry: see [`python_with`].
pub fn telemetry_python() -> Option<PathBuf> {
    python_with("import grpc, prometheus_client, opentelemetry.proto.trace.v1.trace_pb2")
}

/// `HEARTH_PYTHON`, or the environment that test.sh makes. Prints a notice and returns `None` if
/// that Python cannot run `imports`.
///
/// # Panics
/// The imports fail and `HEARTH_REQUIRE_PYTHON` is set.
pub fn python_with(imports: &str) -> Option<PathBuf> {
    let path = std::env::var_os("HEARTH_PYTHON")
        .map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from);
    let found = Command::new(&path).args(["-c", imports]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(path);
    }
    assert!(
        std::env::var_os("HEARTH_REQUIRE_PYTHON").is_none(),
        "HEARTH_REQUIRE_PYTHON is set, and {} cannot `{imports}`",
        path.display()
    );
    eprintln!("SKIPPED: {} cannot `{imports}`", path.display());
    None
}
