//! The instruments of [`crate::catalog`], made in a meter, with what records to them.

mod engine;
mod grammar;
mod http;
mod process;
mod requests;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

pub use engine::{Derived, EngineFacts, EngineSnapshot, ReadDerived, ReadEngine};
pub use grammar::GrammarSnapshot;
pub(crate) use grammar::observe_grammars;
pub use http::{HttpInstruments, HttpOutcome};
pub use process::server_instruments;
pub use requests::{Ending, EngineInstruments, RequestNumbers};

use crate::bounds::Bounds;
use crate::catalog::{Instrument, Kind, find};

pub const PROVIDER_NAME: &str = "hearth";

fn told(name: &str) -> &'static Instrument {
    find(name).unwrap_or_else(|| panic!("{name} is not in the catalog"))
}

fn histogram(meter: &Meter, name: &'static str, bounds: &Bounds) -> Histogram<f64> {
    let instrument = told(name);
    meter
        .f64_histogram(name)
        .with_unit(instrument.unit)
        .with_description(instrument.help)
        .with_boundaries(bounds.of_instrument(name))
        .build()
}

fn counter(meter: &Meter, name: &'static str) -> Counter<u64> {
    let instrument = told(name);
    meter
        .u64_counter(name)
        .with_unit(instrument.unit)
        .with_description(instrument.help)
        .build()
}

/// An instrument whose values are read when somebody looks.
fn observed(
    meter: &Meter,
    name: &'static str,
    read: impl Fn() -> Vec<(Vec<KeyValue>, f64)> + Send + Sync + 'static,
) {
    let instrument = told(name);
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
