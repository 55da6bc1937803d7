//! The settings of speculative decoding, in the spellings of vLLM and SGLang.

use hearth_engine::Speculation;
use serde::Deserialize;

use super::error::ConfigError;
use super::settings::Config;

/// vLLM's `prompt_lookup_min` and `prompt_lookup_max` where neither is given.
const LOOKUP: usize = 5;

/// The keys of vLLM's `--speculative-config` that the method `ngram` has, and `adaptive`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    method: String,
    num_speculative_tokens: usize,
    prompt_lookup_min: Option<usize>,
    prompt_lookup_max: Option<usize>,
    /// True if drafts are left out where they do not pay; true where it is not given.
    adaptive: Option<bool>,
}

impl Config {
    /// How the engine drafts tokens; `None` if it does not.
    ///
    /// # Errors
    /// The JSON is invalid, the method is unknown, a number is out of bounds, or the settings
    /// contradict each other.
    pub fn speculation(&self) -> Result<Option<Speculation>, ConfigError> {
        let speculation = match (&self.speculative_config, &self.speculative_algorithm) {
            (Some(_), Some(given)) => {
                return Err(ConfigError::Bound {
                    field: "speculative_algorithm",
                    bound: "left out where `speculative_config` is given",
                    given: given.clone(),
                });
            }
            (Some(json), None) => Some(("speculative_config", from_json(json)?)),
            (None, Some(name)) => Some(("speculative_algorithm", self.named(name)?)),
            (None, None) => None,
        };
        if let Some(given) = self.speculative_num_draft_tokens
            && self.speculative_algorithm.is_none()
        {
            return Err(ConfigError::Bound {
                field: "speculative_num_draft_tokens",
                bound: "given with `speculative_algorithm`",
                given: given.to_string(),
            });
        }
        if let Some((field, speculation)) = &speculation {
            speculation
                .validate()
                .map_err(|error| ConfigError::Speculation { field, error })?;
        }
        Ok(speculation.map(|(_, speculation)| speculation))
    }

    /// The algorithm that SGLang calls `name`.
    fn named(&self, name: &str) -> Result<Speculation, ConfigError> {
        if !name.eq_ignore_ascii_case("ngram") {
            return Err(ConfigError::Bound {
                field: "speculative_algorithm",
                bound: "NGRAM, the only algorithm of this server",
                given: name.to_owned(),
            });
        }
        let default = Speculation::default();
        Ok(Speculation {
            num_tokens: self
                .speculative_num_draft_tokens
                .unwrap_or(default.num_tokens),
            ..default
        })
    }
}

fn from_json(json: &str) -> Result<Speculation, ConfigError> {
    let given: Given = serde_json::from_str(json).map_err(|error| ConfigError::Bound {
        field: "speculative_config",
        bound: "JSON with `method` and `num_speculative_tokens`, and perhaps `prompt_lookup_min`, \
                `prompt_lookup_max` and `adaptive`",
        given: format!("{json:?}: {error}"),
    })?;
    if given.method != "ngram" {
        return Err(ConfigError::Bound {
            field: "speculative_config.method",
            bound: "\"ngram\", the only method of this server",
            given: format!("{:?}", given.method),
        });
    }
    let (min, max) = (given.prompt_lookup_min, given.prompt_lookup_max);
    Ok(Speculation {
        num_tokens: given.num_speculative_tokens,
        lookup_min: min.or(max).unwrap_or(LOOKUP),
        lookup_max: max.or(min).unwrap_or(LOOKUP),
        adaptive: given.adaptive.unwrap_or(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Option<Speculation>, String> {
        let config = Config {
            speculative_config: Some(json.to_owned()),
            ..Config::default()
        };
        config.speculation().map_err(|error| error.to_string())
    }

    #[test]
    fn vllms_json_is_read_with_its_defaults() {
        let ngram = |num_tokens, lookup_min, lookup_max| Speculation {
            num_tokens,
            lookup_min,
            lookup_max,
            adaptive: true,
        };
        let json = r#"{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":2,
            "prompt_lookup_max":4}"#;
        assert_eq!(of(json), Ok(Some(ngram(4, 2, 4))));
        let json = r#"{"method":"ngram","num_speculative_tokens":3}"#;
        assert_eq!(of(json), Ok(Some(ngram(3, 5, 5))));
        let json = r#"{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":6}"#;
        assert_eq!(of(json), Ok(Some(ngram(3, 6, 6))));
        assert_eq!(Config::default().speculation().unwrap(), None);
    }

    #[test]
    fn what_this_server_cannot_do_is_refused_by_name() {
        let refused = |json| of(json).unwrap_err();
        let error = refused(r#"{"method":"eagle","num_speculative_tokens":3}"#);
        assert!(
            error.contains("eagle") && error.contains("method"),
            "{error}"
        );
        let error = refused(r#"{"method":"ngram","num_speculative_tokens":3,"model":"x"}"#);
        assert!(error.contains("`model`"), "{error}");
        let error = refused(r#"{"method":"ngram"}"#);
        assert!(error.contains("num_speculative_tokens"), "{error}");
        let error = refused(r#"{"method":"ngram","num_speculative_tokens":17}"#);
        assert!(error.contains("between 1 and 16, not 17"), "{error}");
    }

    #[test]
    fn sglangs_names_are_read_and_do_not_mix_with_vllms() {
        let config = Config {
            speculative_algorithm: Some("NGRAM".to_owned()),
            speculative_num_draft_tokens: Some(8),
            ..Config::default()
        };
        let speculation = config.speculation().unwrap().unwrap();
        assert_eq!(speculation.num_tokens, 8);
        let refused = |config: Config| config.speculation().unwrap_err().to_string();
        let error = refused(Config {
            speculative_algorithm: Some("EAGLE".to_owned()),
            ..Config::default()
        });
        assert!(error.contains("EAGLE"), "{error}");
        let error = refused(Config {
            speculative_config: Some("{}".to_owned()),
            ..config.clone()
        });
        assert!(error.contains("left out"), "{error}");
        let error = refused(Config {
            speculative_algorithm: None,
            ..config
        });
        assert!(error.contains("speculative_num_draft_tokens"), "{error}");
    }
}
