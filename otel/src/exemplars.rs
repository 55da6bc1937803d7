//! Exemplars: for each bucket of a latency, the trace of a request that fell into it last. A slow
//! bucket on a dashboard then opens a trace.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// The exemplars of an instrument.
#[derive(Debug)]
struct Latency {
    /// The bounds that it records with.
    bounds: Vec<f64>,
    /// By the attributes of the series, in the order in which they are recorded. There are as many
    /// as the instrument has.
    series: Mutex<HashMap<Vec<KeyValue>, Buckets>>,
}

#[derive(Debug)]
pub struct Exemplars(HashMap<&'static str, Latency>);

impl Latency {
    fn series(&self) -> MutexGuard<'_, HashMap<Vec<KeyValue>, Buckets>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exemplars {
    pub fn new(bounds: &Bounds) -> Self {
        let latency = |name| Latency {
            bounds: bounds.of_instrument(name),
            series: Mutex::default(),
        };
        Self(LATENCIES.map(|name| (name, latency(name))).into())
    }

    /// Keeps `value` of `instrument`, which is one of [`LATENCIES`], and the trace of its request.
    pub fn keep(&self, instrument: &'static str, given: &[KeyValue], value: f64, trace: TraceId) {
        let Some(latency) = self.0.get(instrument) else {
            return;
        };
        let bucket = latency.bounds.partition_point(|&bound| bound < value);
        let exemplar = Exemplar {
            trace,
            value,
            at: SystemTime::now(),
        };
        let mut series = latency.series();
        if let Some(buckets) = series.get_mut(given) {
            buckets.insert(bucket, exemplar);
        } else {
            series.insert(given.to_vec(), [(bucket, exemplar)].into());
        }
    }

    /// Gives the distributions of `points` their exemplars.
    pub fn attach(&self, points: &mut Points) {
        for (&instrument, latency) in &self.0 {
            let Some(of_instrument) = points.get_mut(instrument) else {
                continue;
            };
            for (given, buckets) in &*latency.series() {
                let attributes = attributes(given.iter());
                let of_series = of_instrument.iter_mut();
                for point in of_series.filter(|point| point.attributes == attributes) {
                    if let Value::Distribution(distribution) = &mut point.value {
                        distribution.exemplars.clone_from(buckets);
                    }
                }
            }
        }
    }
}
