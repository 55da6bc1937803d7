//! The points that the meter provider collected, independent of their number types.

use std::collections::BTreeMap;
use std::time::SystemTime;

use opentelemetry::{KeyValue, TraceId};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};

/// A measured value and the trace of its request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub trace: TraceId,
    pub value: f64,
    pub at: SystemTime,
}

/// The newest exemplar of each bucket that has one, by the index of the bucket.
pub type Exemplars = BTreeMap<usize, Exemplar>;

/// The point of a histogram: `counts[i]` values were in `(bounds[i - 1], bounds[i]]`. The last
/// count is that of values above all bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    pub bounds: Vec<f64>,
    pub counts: Vec<u64>,
    pub sum: f64,
    /// By the index of the count that each is part of.
    pub exemplars: Exemplars,
}

impl Distribution {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds a distribution with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.is_empty() {
            *self = other.clone();
            return;
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
        for (&bucket, theirs) in &other.exemplars {
            let ours = self.exemplars.entry(bucket).or_insert(*theirs);
            if ours.at < theirs.at {
                *ours = *theirs;
            }
        }
    }

    /// The newest exemplar above `from` and up to `to`, which must be bounds, or infinite.
    pub fn exemplar(&self, from: f64, to: f64) -> Option<&Exemplar> {
        let index = |bound: f64| self.bounds.partition_point(|&b| b <= bound);
        let last = if to.is_finite() {
            index(to)
        } else {
            self.counts.len()
        };
        let within = self.exemplars.range(index(from)..last.max(index(from)));
        within.map(|(_, exemplar)| exemplar).max_by_key(|e| e.at)
    }

    /// Number of values up to `bound`, which must be one of the bounds.
    pub fn at_most(&self, bound: f64) -> u64 {
        let buckets = self.bounds.iter().take_while(|&&b| b <= bound).count();
        self.counts[..buckets].iter().sum()
    }
}

/// The value of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Distribution(Distribution),
}

/// One series of an instrument.
#[derive(Clone, Debug)]
pub struct Point {
    /// Sorted by name.
    pub attributes: Vec<(String, String)>,
    pub value: Value,
}

impl Point {
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        attributes
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

/// The points of each instrument, by its name.
pub type Points = BTreeMap<String, Vec<Point>>;

/// Converts what the meter provider collected.
pub fn points(collected: &ResourceMetrics) -> Points {
    let scopes = collected.scope_metrics();
    let metrics = scopes.flat_map(|scope| scope.metrics());
    let mut points = Points::new();
    for metric in metrics {
        let of_metric = match metric.data() {
            AggregatedMetrics::F64(data) => read(data, |value| value),
            AggregatedMetrics::U64(data) => read(data, |value| value as f64),
            AggregatedMetrics::I64(data) => read(data, |value| value as f64),
        };
        points
            .entry(metric.name().to_owned())
            .or_default()
            .extend(of_metric);
    }
    points
}

fn read<T: Copy>(data: &MetricData<T>, number: impl Fn(T) -> f64) -> Vec<Point> {
    match data {
        MetricData::Gauge(gauge) => gauge
            .data_points()
            .map(|point| Point {
                attributes: attributes(point.attributes()),
                value: Value::Number(number(point.value())),
            })
            .collect(),
        MetricData::Sum(sum) => sum
            .data_points()
            .map(|point| Point {
                attributes: attributes(point.attributes()),
                value: Value::Number(number(point.value())),
            })
            .collect(),
        MetricData::Histogram(histogram) => histogram
            .data_points()
            .map(|point| Point {
                attributes: attributes(point.attributes()),
                value: Value::Distribution(Distribution {
                    bounds: point.bounds().collect(),
                    counts: point.bucket_counts().collect(),
                    sum: number(point.sum()),
                    exemplars: Exemplars::new(),
                }),
            })
            .collect(),
        // The catalog has no exponential histograms.
        MetricData::ExponentialHistogram(_) => Vec::new(),
    }
}

/// Attributes sorted by their names.
pub fn attributes<'a>(given: impl Iterator<Item = &'a KeyValue>) -> Vec<(String, String)> {
    let mut attributes: Vec<_> = given
        .map(|pair| (pair.key.to_string(), pair.value.to_string()))
        .collect();
    // The SDK returns the attributes of observed instruments in a varying order.
    attributes.sort_unstable();
    attributes
}
