//! Settings of metrics and traces that are written as text.

use hearth_otel::{CustomBuckets, Detail, Vocabulary};

use super::error::ConfigError;
use super::settings::Config;

impl Config {
    /// The vocabularies of metric names on `/metrics`.
    ///
    /// # Errors
    /// A name is unknown.
    pub fn vocabularies(&self) -> Result<Vec<Vocabulary>, ConfigError> {
        let names = self.metrics_names.split(',').map(str::trim);
        let vocabularies = names.map(|name| match name {
            "vllm" => Some(Vocabulary::Vllm),
            "sglang" => Some(Vocabulary::Sglang),
            "otel" => Some(Vocabulary::Otel),
            "plain" => Some(Vocabulary::Plain),
            _ => None,
        });
        vocabularies
            .collect::<Option<_>>()
            .ok_or_else(|| ConfigError::Bound {
                field: "metrics_names",
                bound: "a comma-separated list of vllm, sglang, otel and plain",
                given: format!("{:?}", self.metrics_names),
            })
    }

    /// The version of vLLM, `(major, minor)`, whose deprecated metrics are shown.
    ///
    /// # Errors
    /// The text is not a version.
    pub fn shown_version(&self) -> Result<Option<(u32, u32)>, ConfigError> {
        let Some(given) = &self.show_hidden_metrics_for_version else {
            return Ok(None);
        };
        let version = given.trim_start_matches('v').split_once('.');
        let version = version.and_then(|(major, minor)| {
            let minor = minor.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        version.map(Some).ok_or_else(|| ConfigError::Bound {
            field: "show_hidden_metrics_for_version",
            bound: "a version of vLLM such as 0.8",
            given: format!("{given:?}"),
        })
    }

    /// Bucket bounds that replace the standard ones of their families.
    ///
    /// # Errors
    /// The text is not JSON of lists of numbers, a family is unknown, or its bounds are invalid.
    pub fn buckets(&self) -> Result<CustomBuckets, ConfigError> {
        let Some(given) = &self.custom_histogram_buckets else {
            return Ok(CustomBuckets::default());
        };
        let parsed = serde_json::from_str(given).map_err(|error| error.to_string());
        parsed
            .and_then(CustomBuckets::new)
            .map_err(|error| ConfigError::Bound {
                field: "custom_histogram_buckets",
                bound: "JSON with a list of bounds for each family of docs/METRICS.md",
                given: format!("{given:?}: {error}"),
            })
    }

    /// The parts of engine steps that are traced; `None` if steps are not traced.
    ///
    /// # Errors
    /// A part is unknown.
    pub fn detailed_traces(&self) -> Result<Option<Detail>, ConfigError> {
        let Some(given) = &self.collect_detailed_traces else {
            return Ok(None);
        };
        let mut detail = Detail::default();
        for part in given.split(',').map(str::trim) {
            match part {
                "model" => detail.model = true,
                "worker" => detail.worker = true,
                "all" => (detail.model, detail.worker) = (true, true),
                _ => {
                    return Err(ConfigError::Bound {
                        field: "collect_detailed_traces",
                        bound: "a comma-separated list of model, worker and all",
                        given: format!("{given:?}"),
                    });
                }
            }
        }
        Ok(Some(detail))
    }
}
