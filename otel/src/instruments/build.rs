//! Builds the instruments of the catalog in a meter.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use crate::bounds::Bounds;
use crate::catalog::{Instrument, Kind, find};

/// The catalog's entry for `name`.
pub(super) fn described(name: &str) -> &'static Instrument {
    find(name).unwrap_or_else(|| panic!("{name} is not in the catalog"))
}

pub(super) fn histogram(meter: &Meter, name: &'static str, bounds: &Bounds) -> Histogram<f64> {
    let instrument = described(name);
    meter
        .f64_histogram(name)
        .with_unit(instrument.unit)
        .with_description(instrument.help)
        .with_boundaries(bounds.of_instrument(name))
        .build()
}

pub(super) fn counter(meter: &Meter, name: &'static str) -> Counter<u64> {
    let instrument = described(name);
    meter
        .u64_counter(name)
        .with_unit(instrument.unit)
        .with_description(instrument.help)
        .build()
}

/// Builds an instrument whose values are read at each collection: a scrape or an export.
/// `read` returns every series with its attributes.
pub(super) fn observed(
    meter: &Meter,
    name: &'static str,
    read: impl Fn() -> Vec<(Vec<KeyValue>, f64)> + Send + Sync + 'static,
) {
    let instrument = described(name);
    let (unit, help) = (instrument.unit, instrument.help);
    match instrument.kind {
        Kind::Counter => drop(
            meter
                .u64_observable_counter(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value as u64, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Seconds => drop(
            meter
                .f64_observable_counter(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Level => drop(
            meter
                .i64_observable_up_down_counter(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value as i64, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Gauge => drop(
            meter
                .f64_observable_gauge(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Histogram => unreachable!("{name}: histograms are recorded, not observed"),
    }
}
