//! The settings of speculative decoding, in the spellings of vLLM and SGLang.

use hearth_engine::{DraftMethod, Speculation};
use serde::Deserialize;

use super::error::ConfigError;
use super::settings::Config;

/// vLLM's `prompt_lookup_min` and `prompt_lookup_max` where neither is given.
const LOOKUP: usize = 5;

/// The keys of vLLM's `--speculative-config` that this server knows, and `adaptive`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    method: String,
    num_speculative_tokens: usize,
    model: Option<String>,
    prompt_lookup_min: Option<usize>,
    prompt_lookup_max: Option<usize>,
    /// True if drafts are left out where they do not pay; true where it is not given.
    adaptive: Option<bool>,
}

/// Speculative decoding as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drafting {
    pub speculation: Speculation,
    /// The draft model, a directory, a GGUF file or a repository, with
    /// [`DraftMethod::DraftModel`].
    pub model: Option<String>,
}

impl Config {
    /// How the engine drafts tokens; `None` if it does not.
    ///
    /// # Errors
    /// The JSON is invalid, the method is unknown, a number is out of bounds, or the settings
    /// contradict each other.
    pub fn drafting(&self) -> Result<Option<Drafting>, ConfigError> {
        let drafting = match (&self.speculative_config, &self.speculative_algorithm) {
            (Some(_), Some(given)) => {
                return Err(bound(
                    "speculative_algorithm",
                    "left out where `speculative_config` is given",
                    given,
                ));
            }
            (Some(json), None) => Some(("speculative_config", from_json(json)?)),
            (None, Some(name)) => Some(("speculative_algorithm", self.named(name)?)),
            (None, None) => None,
        };
        if let Some(given) = self.speculative_num_draft_tokens
            && self.speculative_algorithm.is_none()
        {
            return Err(bound(
                "speculative_num_draft_tokens",
                "given with `speculative_algorithm`",
                given,
            ));
        }
        let has_model = drafting.as_ref().is_some_and(|(_, d)| d.model.is_some());
        if let Some(given) = &self.speculative_draft_model_path
            && (self.speculative_algorithm.is_none() || !has_model)
        {
            return Err(bound(
                "speculative_draft_model_path",
                "given with the `speculative_algorithm` STANDALONE",
                given,
            ));
        }
        if let Some((field, drafting)) = &drafting {
            let valid = drafting.speculation.validate();
            valid.map_err(|error| ConfigError::Speculation { field, error })?;
        }
        Ok(drafting.map(|(_, drafting)| drafting))
    }

    /// The algorithm that SGLang calls `name`.
    fn named(&self, name: &str) -> Result<Drafting, ConfigError> {
        let default = Speculation::default();
        let num_tokens = self.speculative_num_draft_tokens;
        let speculation = Speculation {
            num_tokens: num_tokens.unwrap_or(default.num_tokens),
            ..default
        };
        match name.to_ascii_uppercase().as_str() {
            "NGRAM" => Ok(Drafting {
                speculation,
                model: None,
            }),
            "STANDALONE" => match &self.speculative_draft_model_path {
                Some(model) => Ok(by_model(speculation, model.clone())),
                None => Err(bound(
                    "speculative_draft_model_path",
                    "given with the `speculative_algorithm` STANDALONE",
                    "left out",
                )),
            },
            _ => Err(bound(
                "speculative_algorithm",
                "NGRAM or STANDALONE (a draft model), the algorithms of this server",
                name,
            )),
        }
    }
}

fn by_model(speculation: Speculation, model: String) -> Drafting {
    Drafting {
        speculation: Speculation {
            method: DraftMethod::DraftModel,
            ..speculation
        },
        model: Some(model),
    }
}

fn bound(field: &'static str, bound: &'static str, given: impl ToString) -> ConfigError {
    ConfigError::Bound {
        field,
        bound,
        given: given.to_string(),
    }
}

fn from_json(json: &str) -> Result<Drafting, ConfigError> {
    let given: Given = serde_json::from_str(json).map_err(|error| {
        bound(
            "speculative_config",
            "JSON with `method` and `num_speculative_tokens`, and perhaps `model`, \
             `prompt_lookup_min`, `prompt_lookup_max` and `adaptive`",
            format!("{json:?}: {error}"),
        )
    })?;
    let (min, max) = (given.prompt_lookup_min, given.prompt_lookup_max);
    let speculation = Speculation {
        method: DraftMethod::Ngram,
        num_tokens: given.num_speculative_tokens,
        lookup_min: min.or(max).unwrap_or(LOOKUP),
        lookup_max: max.or(min).unwrap_or(LOOKUP),
        adaptive: given.adaptive.unwrap_or(true),
    };
    match (given.method.as_str(), given.model) {
        ("ngram", None) => Ok(Drafting {
            speculation,
            model: None,
        }),
        ("ngram", Some(model)) => Err(bound(
            "speculative_config.model",
            "left out with the method \"ngram\"",
            format!("{model:?}"),
        )),
        ("draft_model", None) => Err(bound(
            "speculative_config.model",
            "given with the method \"draft_model\"",
            "left out",
        )),
        ("draft_model", Some(model)) => match min.or(max) {
            None => Ok(by_model(speculation, model)),
            Some(given) => Err(bound(
                "speculative_config.prompt_lookup_min and prompt_lookup_max",
                "left out with the method \"draft_model\"",
                given,
            )),
        },
        (method, _) => Err(bound(
            "speculative_config.method",
            "\"ngram\" or \"draft_model\", the methods of this server",
            format!("{method:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Option<Drafting>, String> {
        let config = Config {
            speculative_config: Some(json.to_owned()),
            ..Config::default()
        };
        config.drafting().map_err(|error| error.to_string())
    }

    #[test]
    fn vllms_json_is_read_with_its_defaults() {
        let ngram = |num_tokens, lookup_min, lookup_max| Drafting {
            speculation: Speculation {
                method: DraftMethod::Ngram,
                num_tokens,
                lookup_min,
                lookup_max,
                adaptive: true,
            },
            model: None,
        };
        let json = r#"{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":2,
            "prompt_lookup_max":4}"#;
        assert_eq!(of(json), Ok(Some(ngram(4, 2, 4))));
        let json = r#"{"method":"ngram","num_speculative_tokens":3}"#;
        assert_eq!(of(json), Ok(Some(ngram(3, 5, 5))));
        let json = r#"{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":6}"#;
        assert_eq!(of(json), Ok(Some(ngram(3, 6, 6))));
        assert_eq!(Config::default().drafting().unwrap(), None);
        let json = r#"{"method":"draft_model","model":"x/y","num_speculative_tokens":3,
            "adaptive":false}"#;
        let drafting = of(json).unwrap().unwrap();
        assert_eq!(drafting.model.as_deref(), Some("x/y"));
        let speculation = drafting.speculation;
        assert_eq!(speculation.method, DraftMethod::DraftModel);
        assert_eq!((speculation.num_tokens, speculation.adaptive), (3, false));
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
        assert!(error.contains("speculative_config.model"), "{error}");
        let error = refused(r#"{"method":"draft_model","num_speculative_tokens":3}"#);
        assert!(error.contains("speculative_config.model"), "{error}");
        let error = refused(
            r#"{"method":"draft_model","num_speculative_tokens":3,"model":"x","prompt_lookup_min":2}"#,
        );
        assert!(error.contains("prompt_lookup_min"), "{error}");
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
        let drafting = config.drafting().unwrap().unwrap();
        assert_eq!((drafting.speculation.num_tokens, drafting.model), (8, None));
        let standalone = Config {
            speculative_algorithm: Some("STANDALONE".to_owned()),
            speculative_draft_model_path: Some("x/y".to_owned()),
            ..Config::default()
        };
        let drafting = standalone.drafting().unwrap().unwrap();
        assert_eq!(drafting.model.as_deref(), Some("x/y"));
        assert_eq!(drafting.speculation.method, DraftMethod::DraftModel);
        let refused = |config: Config| config.drafting().unwrap_err().to_string();
        for (algorithm, path) in [
            (Some("STANDALONE"), None),
            (Some("NGRAM"), Some("x/y")),
            (None, Some("x/y")),
        ] {
            let error = refused(Config {
                speculative_algorithm: algorithm.map(str::to_owned),
                speculative_draft_model_path: path.map(str::to_owned),
                ..Config::default()
            });
            assert!(error.contains("speculative_draft_model_path"), "{error}");
        }
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
