//! The page of `/metrics`: the points of the canonical instruments under the names of the
//! configured vocabularies.

use std::collections::{BTreeMap, HashSet};

use crate::bounds::Bounds;
use crate::catalog::{self, Instrument, Kind};
use crate::points::{Distribution, Point, Points, Value};
use crate::rows::{self, Label, Row, Shape, Source};
use crate::text::{TextFormat, exemplar, sample};

/// A set of metric names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vocabulary {
    /// `vllm:*`, and `http_*` of the instrumentator that vLLM uses.
    Vllm,
    /// `sglang:*`.
    Sglang,
    /// OpenTelemetry's, as Prometheus spells them.
    Otel,
    /// vLLM's with `_` for `:`, because Prometheus reserves colons for recording rules.
    Plain,
}

/// Selects the metrics on a page.
#[derive(Clone, Debug)]
pub struct Exposition {
    /// The value of `model_name`.
    pub model: String,
    pub vocabularies: Vec<Vocabulary>,
    /// Shows deprecated names that this version of vLLM, `(major, minor)`, still had.
    pub show_hidden: Option<(u32, u32)>,
}

impl Exposition {
    /// Renders the page.
    pub fn render(&self, points: &Points, bounds: &Bounds, format: TextFormat) -> String {
        let mut page = Page {
            out: String::with_capacity(64 * 1024),
            model: &self.model,
            points,
            bounds,
            format,
            written: HashSet::new(),
        };
        for vocabulary in &self.vocabularies {
            match vocabulary {
                Vocabulary::Vllm => self.rows(&mut page, rows::VLLM, false),
                Vocabulary::Plain => self.rows(&mut page, rows::VLLM, true),
                Vocabulary::Sglang => self.rows(&mut page, rows::SGLANG, false),
                Vocabulary::Otel => catalog::instruments().for_each(|i| page.canonical(i)),
            }
        }
        self.rows(&mut page, rows::PROCESS, false);
        format.end(&mut page.out);
        page.out
    }

    fn rows(&self, page: &mut Page<'_>, rows: &'static [Row], plain: bool) {
        for family in rows.chunk_by(|a, b| a.name == b.name) {
            if self.shows(&family[0]) {
                let name = match plain {
                    true => family[0].name.replace(':', "_"),
                    false => family[0].name.to_owned(),
                };
                page.family(name, family);
            }
        }
    }

    /// Whether `row` is current, or was still shown by the vLLM version of `show_hidden`.
    fn shows(&self, row: &Row) -> bool {
        match (row.hidden, self.show_hidden) {
            (None, _) => true,
            (Some((since, _)), Some(version)) => version < since,
            (Some(_), None) => false,
        }
    }
}

struct Page<'a> {
    out: String,
    model: &'a str,
    points: &'a Points,
    bounds: &'a Bounds,
    format: TextFormat,
    /// Names of the families on the page, each of which may occur only once.
    written: HashSet<String>,
}

/// Values by their label values, which are in the order of the row's labels.
type Series<T> = BTreeMap<Vec<String>, T>;

impl Page<'_> {
    /// The points of `instrument`.
    fn of(&self, instrument: &str) -> &[Point] {
        self.points.get(instrument).map_or(&[], Vec::as_slice)
    }

    /// Writes the rows that share `name`, with one head.
    fn family(&mut self, name: String, family: &[Row]) {
        if !self.written.insert(name.clone()) {
            return;
        }
        let first = &family[0];
        let kind = match first.shape {
            Shape::Counter => "counter",
            Shape::Gauge => "gauge",
            Shape::Histogram => "histogram",
            Shape::Summary => "summary",
        };
        let before = self.out.len();
        self.format
            .head(&mut self.out, &name, kind, &first.help_text());
        let after_head = self.out.len();
        for row in family {
            match row.shape {
                Shape::Counter | Shape::Gauge => self.numbers(&name, row),
                Shape::Histogram => self.histograms(&name, row),
                Shape::Summary => self.summaries(&name, row),
            }
        }
        // A family without series is left out rather than shown as a false 0.
        if self.out.len() == after_head {
            self.out.truncate(before);
        }
    }

    fn numbers(&mut self, name: &str, row: &Row) {
        let mut series = Series::<f64>::new();
        let mut add = |values, number: f64| *series.entry(values).or_insert(0.0) += number;
        match row.source {
            Source::Of(from) => {
                for point in self.of(from) {
                    add(self.values(row, point), number(point));
                }
            }
            Source::Sum(one, other) => {
                for point in self.of(one).iter().chain(self.of(other)) {
                    add(self.values(row, point), number(point));
                }
            }
            Source::Where(from, key, wanted) => {
                let points = self.of(from).iter();
                for point in points.filter(|p| wanted.iter().any(|w| p.attribute(key) == Some(w))) {
                    add(self.values(row, point), number(point));
                }
            }
            Source::CountOf(from) => {
                for point in self.of(from) {
                    add(self.values(row, point), number(point));
                }
            }
            Source::Ratio(part, whole) => {
                let (part, whole) = (self.of(part), self.of(whole));
                if let (Some(first), false) = (part.first(), whole.is_empty()) {
                    let sum = |points: &[Point]| points.iter().map(number).sum::<f64>();
                    let ratio = sum(part) / sum(whole).max(1.0);
                    add(self.values(row, first), ratio);
                }
            }
            // Shown only once there is an engine.
            Source::Always(value) => {
                if let Some(point) = self.of("llm.kv_cache_capacity").first() {
                    add(self.values(row, point), value);
                }
            }
            Source::WithZeros(..) => {}
        }
        for (values, number) in series {
            let labels = labels(row, values);
            sample(&mut self.out, name, "", &labels, None, number * row.scale);
        }
    }

    fn distributions(&self, row: &Row) -> Series<Distribution> {
        let mut series = Series::<Distribution>::new();
        let (from, zeros) = match row.source {
            Source::Of(from) => (from, None),
            Source::WithZeros(from, zeros) => (from, Some(zeros)),
            _ => return series,
        };
        for point in self.of(from) {
            if let Value::Distribution(distribution) = &point.value {
                let values = self.values(row, point);
                series.entry(values).or_default().merge(distribution);
            }
        }
        let fixed = row
            .labels
            .iter()
            .all(|label| matches!(label, Label::Model | Label::Fixed(..)));
        let engine = !self.of("llm.kv_cache_capacity").is_empty();
        // A histogram of the engine without variable labels exists from the start, empty.
        if series.is_empty() && fixed && engine && catalog::ENGINE.iter().any(|i| i.name == from) {
            let bounds = self.bounds.of_instrument(from);
            let counts = vec![0; bounds.len() + 1];
            let empty = Distribution {
                bounds,
                counts,
                ..Distribution::default()
            };
            let point = Point {
                attributes: Vec::new(),
                value: Value::Number(0.0),
            };
            series.insert(self.values(row, &point), empty);
        }
        if let Some(zeros) = zeros {
            let zeros: f64 = self.of(zeros).iter().map(number).sum();
            for distribution in series.values_mut() {
                distribution.counts[0] += zeros as u64;
            }
        }
        series
    }

    fn histograms(&mut self, name: &str, row: &Row) {
        let bounds = row
            .buckets
            .map_or_else(Vec::new, |buckets| self.bounds.of(buckets));
        for (values, distribution) in self.distributions(row) {
            let labels = labels(row, values);
            self.histogram(name, &labels, &bounds, row.scale, &distribution);
        }
    }

    fn histogram<K: AsRef<str>>(
        &mut self,
        name: &str,
        labels: &[(K, String)],
        bounds: &[f64],
        scale: f64,
        of: &Distribution,
    ) {
        let mut from = f64::NEG_INFINITY;
        for &bound in bounds {
            let mut le = String::new();
            crate::text::number(&mut le, bound * scale);
            let count = of.at_most(bound) as f64;
            sample(&mut self.out, name, "_bucket", labels, Some(&le), count);
            exemplar(&mut self.out, of.exemplar(from, bound), scale);
            from = bound;
        }
        let count = of.count() as f64;
        sample(&mut self.out, name, "_bucket", labels, Some("+Inf"), count);
        exemplar(&mut self.out, of.exemplar(from, f64::INFINITY), scale);
        sample(&mut self.out, name, "_count", labels, None, count);
        sample(&mut self.out, name, "_sum", labels, None, of.sum * scale);
    }

    fn summaries(&mut self, name: &str, row: &Row) {
        for (values, distribution) in self.distributions(row) {
            let labels = labels(row, values);
            let count = distribution.count() as f64;
            sample(&mut self.out, name, "_count", &labels, None, count);
            sample(&mut self.out, name, "_sum", &labels, None, distribution.sum);
        }
    }

    /// An instrument under its own name with its own attributes.
    fn canonical(&mut self, instrument: &Instrument) {
        let name = instrument.exposed();
        let points = self.of(instrument.name).to_vec();
        if points.is_empty() || !self.written.insert(name.clone()) {
            return;
        }
        let kind = match instrument.kind {
            Kind::Counter | Kind::Seconds => "counter",
            Kind::Level | Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.format
            .head(&mut self.out, &name, kind, instrument.help);
        for point in points {
            let labels: Vec<(String, String)> = point
                .attributes
                .into_iter()
                .map(|(key, value)| (key.replace('.', "_"), value))
                .collect();
            match point.value {
                Value::Number(value) => sample(&mut self.out, &name, "", &labels, None, value),
                Value::Distribution(distribution) => {
                    // OpenTelemetry's advised bounds if there are any, else all recorded ones.
                    let bounds = match instrument.buckets {
                        [] => distribution.bounds.clone(),
                        own => self.bounds.union(own.iter().copied()),
                    };
                    self.histogram(&name, &labels, &bounds, 1.0, &distribution);
                }
            }
        }
    }

    /// The label values of `point` in `row`.
    fn values(&self, row: &Row, point: &Point) -> Vec<String> {
        let value = |label: &Label| match label {
            Label::Model => self.model.to_owned(),
            Label::Fixed(_, value) => (*value).to_owned(),
            Label::From(_, key) => point.attribute(key).unwrap_or_default().to_owned(),
            Label::StatusClass(_) => {
                let status = point.attribute(catalog::STATUS).unwrap_or_default();
                format!("{}xx", status.get(..1).unwrap_or_default())
            }
        };
        row.labels.iter().map(value).collect()
    }
}

fn labels(row: &Row, values: Vec<String>) -> Vec<(&'static str, String)> {
    let name = |label: &Label| match label {
        Label::Model => "model_name",
        Label::Fixed(name, _) | Label::From(name, _) | Label::StatusClass(name) => name,
    };
    row.labels.iter().map(name).zip(values).collect()
}

/// The value of a number, or the count of a histogram.
fn number(point: &Point) -> f64 {
    match &point.value {
        Value::Number(value) => *value,
        Value::Distribution(distribution) => distribution.count() as f64,
    }
}
