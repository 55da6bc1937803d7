//! Finds a Python that can read telemetry.

use std::path::PathBuf;
use std::process::Command;

use super::workspace;

/// `HEARTH_PYTHON`, or the environment that test.sh makes. Prints a notice and returns `None` if
/// that Python lacks the packages of Prometheus and OpenTelemetry.
///
/// # Panics
/// The packages are missing and `HEARTH_REQUIRE_PYTHON` is set.
pub fn telemetry_python() -> Option<PathBuf> {
    let path = std::env::var_os("HEARTH_PYTHON")
        .map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from);
    let imports = "import grpc, prometheus_client, opentelemetry.proto.trace.v1.trace_pb2";
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
