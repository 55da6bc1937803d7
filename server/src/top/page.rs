//! The numbers of a page of metrics, as Prometheus' text format has them.

use std::collections::HashMap;

/// The samples of a page, by name.
#[derive(Debug, Default)]
pub struct Page(HashMap<String, Vec<Sample>>);

#[derive(Debug)]
struct Sample {
    /// The text between the braces.
    labels: String,
    value: f64,
}

impl Page {
    /// Reads the samples in `text`. A line that is none is left out.
    pub fn new(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse() else {
                continue;
            };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').to_owned();
            let samples = page.0.entry(name.to_owned()).or_default();
            samples.push(Sample { labels, value });
        }
        page
    }

    /// The sum over all series of `name`; `None` if there is none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let samples = self.0.get(name)?;
        Some(samples.iter().map(|sample| sample.value).sum())
    }

    /// The sum over the series of `name` whose `label` has this value.
    pub fn sum_where(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        let wanted = format!("{label}=\"{value}\"");
        let mut samples = self.0.get(name)?.iter();
        let of = |sample: &&Sample| sample.labels.split(',').any(|pair| pair == wanted);
        let first = samples.find(of)?.value;
        Some(first + samples.filter(of).map(|sample| sample.value).sum::<f64>())
    }

    /// The buckets of the histogram `name` over all series: bound and cumulative count, ascending.
    fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.0.get(&format!("{name}_bucket")).into_iter().flatten() {
            let pairs = sample.labels.split(',');
            let mut bounds = pairs.filter_map(|pair| pair.strip_prefix("le=\""));
            let Some(bound) = bounds
                .next()
                .and_then(|bound| bound.trim_end_matches('"').parse().ok())
            else {
                continue;
            };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }

    /// The value below which the part `quantile` of the observations since `before` is, with the
    /// interpolation of Prometheus' `histogram_quantile`; `None` without observations.
    pub fn quantile(&self, before: &Self, name: &str, quantile: f64) -> Option<f64> {
        let earlier: HashMap<u64, f64> = before
            .buckets(name)
            .into_iter()
            .map(|(bound, count)| (bound.to_bits(), count))
            .collect();
        let since = |(bound, count): (f64, f64)| {
            let earlier = earlier.get(&bound.to_bits()).copied().unwrap_or(0.0);
            (bound, (count - earlier).max(0.0))
        };
        let buckets: Vec<(f64, f64)> = self.buckets(name).into_iter().map(since).collect();
        let rank = quantile * buckets.last().map(|last| last.1).filter(|all| *all > 0.0)?;
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= rank {
                // The last bucket has no upper bound.
                let high = if bound.is_finite() { bound } else { low };
                let part = (rank - below) / (count - below).max(f64::MIN_POSITIVE);
                return Some(low + (high - low) * part.clamp(0.0, 1.0));
            }
            (low, below) = (bound, count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# TYPE a counter\na_total{x=\"1\",y=\"a b\"} 2.0\na_total{x=\"2\"} 3.0\nnot a sample\n\
        h_bucket{le=\"1.0\"} 10.0\nh_bucket{le=\"2.0\"} 10.0\nh_bucket{le=\"+Inf\"} 10.0\n";
    const AFTER: &str =
        "h_bucket{le=\"1.0\"} 10.0\nh_bucket{le=\"2.0\"} 14.0\nh_bucket{le=\"+Inf\"} 14.0\n";

    #[test]
    fn numbers_are_summed_over_series_and_by_label() {
        let page = Page::new(BEFORE);
        assert_eq!(page.sum("a_total"), Some(5.0));
        assert_eq!(page.sum_where("a_total", "x", "2"), Some(3.0));
        assert_eq!(page.sum_where("a_total", "x", "3"), None);
        assert_eq!(page.sum("b"), None);
    }

    #[test]
    fn quantiles_are_those_of_the_time_between_two_pages() {
        let (before, after) = (Page::new(BEFORE), Page::new(AFTER));
        assert_eq!(after.quantile(&before, "h", 0.5), Some(1.5));
        assert_eq!(after.quantile(&after, "h", 0.5), None);
        assert_eq!(before.quantile(&Page::default(), "h", 0.5), Some(0.5));
    }
}
