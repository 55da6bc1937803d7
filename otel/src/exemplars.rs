//! Exemplars: for each bucket of a latency, the trace of a request that fell into it last. A slow
//! bucket on a dashboard then opens a trace.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use opentelemetry::{KeyValue, TraceId};

use crate::bounds::Bounds;
use crate::points::{Exemplar, Exemplars as Buckets, Points, Value, attributes};

/// The instruments that have exemplars.
const LATENCIES: [&str; 9] = [
    "http.server.request.duration",
    "llm.inter_token_latency",
    "gen_ai.server.time_to_first_token",
    "gen_ai.server.request.duration",
    "gen_ai.server.time_per_output_token",
    "llm.request.queue_time",
    "llm.request.prefill_time",
    "llm.request.decode_time",
    "llm.request.inference_time",
];

/// An instrument and the sorted attributes of a series.
type Series = (&'static str, Vec<(String, String)>);

#[derive(Debug)]
pub struct Exemplars {
    /// The bounds that each instrument records with.
    bounds: HashMap<&'static str, Vec<f64>>,
    /// There are as many series as the instruments have.
    series: Mutex<HashMap<Series, Buckets>>,
}

impl Exemplars {
    pub fn new(bounds: &Bounds) -> Self {
        let bounds = LATENCIES.map(|name| (name, bounds.of_instrument(name)));
        Self {
            bounds: bounds.into(),
            series: Mutex::default(),
        }
    }

    /// Keeps `value` of `instrument`, which is one of [`LATENCIES`], and the trace of its request.
    pub fn keep(&self, instrument: &'static str, given: &[KeyValue], value: f64, trace: TraceId) {
        let Some(bounds) = self.bounds.get(instrument) else {
            return;
        };
        let bucket = bounds.partition_point(|&bound| bound < value);
        let exemplar = Exemplar {
            trace,
            value,
            at: SystemTime::now(),
        };
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let buckets = series.entry((instrument, attributes(given.iter())));
        buckets.or_default().insert(bucket, exemplar);
    }

    /// Gives the distributions of `points` their exemplars.
    pub fn attach(&self, points: &mut Points) {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        for ((instrument, attributes), buckets) in &*series {
            let of_instrument = points.get_mut(*instrument).into_iter().flatten();
            for point in of_instrument.filter(|point| point.attributes == *attributes) {
                if let Value::Distribution(distribution) = &mut point.value {
                    distribution.exemplars.clone_from(buckets);
                }
            }
        }
    }
}
