//! Names in OpenTelemetry's namespaces are those of its published registry.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashSet;

use hearth_otel::catalog;

/// The names of a list in `tests/semconv`.
fn listed(file: &str) -> HashSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/semconv/").to_owned() + file;
    let text = std::fs::read_to_string(path).unwrap();
    let names = text.lines().filter(|line| !line.starts_with('#'));
    names.map(str::to_owned).collect()
}

fn is_opentelemetrys(name: &str) -> bool {
    let namespace = name.split('.').next().unwrap();
    ["gen_ai", "http", "url", "error", "process"].contains(&namespace)
}

#[test]
fn instruments_and_attributes_in_opentelemetrys_namespaces_are_in_its_registry() {
    let (metrics, attributes) = (listed("metrics.txt"), listed("attributes.txt"));
    assert!(metrics.len() > 20 && attributes.len() > 100);
    for instrument in catalog::instruments() {
        let name = instrument.name;
        assert!(
            !is_opentelemetrys(name) || metrics.contains(name),
            "{name} is no metric of OpenTelemetry"
        );
        for attribute in instrument.attributes {
            assert!(
                !is_opentelemetrys(attribute) || attributes.contains(*attribute),
                "{name}: {attribute} is no attribute of OpenTelemetry"
            );
        }
    }
}
