//! The settings of adapters (LoRA), in the spellings of vLLM, SGLang and llama-server.

use std::path::Path;

use hearth_api::adapters::Registration;
use serde::Deserialize;

use super::error::ConfigError;
use super::settings::Config;

/// The largest `max_loras` and `max_lora_rank`.
const MAX_SLOTS: usize = 256;
const MAX_RANK: usize = 512;

/// vLLM's JSON form of a module.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Module {
    name: String,
    path: String,
    base_model_name: Option<String>,
}

/// SGLang's JSON form of a path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SglangPath {
    lora_name: String,
    lora_path: String,
    pinned: Option<bool>,
}

/// The adapters of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSettings {
    /// The ones that it starts with.
    pub given: Vec<Registration>,
    /// Slots on the device.
    pub slots: usize,
    /// `None`: as those that it starts with need.
    pub rank: Option<usize>,
    /// Slots with room for whole tables; `None`: as many as those that it starts with need.
    pub tables: Option<usize>,
    /// Adapters in the host's memory.
    pub in_memory: usize,
}

impl Config {
    /// The adapters; `None` for a server that takes none.
    ///
    /// # Errors
    /// An adapter that is not written as its flag wants it, a name that is given twice, or a number
    /// out of bounds.
    pub fn adapters(&self) -> Result<Option<AdapterSettings>, ConfigError> {
        let mut given = Vec::new();
        for module in &self.lora_modules {
            given.push(self.module(module)?);
        }
        for path in &self.lora_paths {
            given.push(sglang_path(path)?);
        }
        given.extend(self.llama_files()?);
        for (index, adapter) in given.iter().enumerate() {
            let same = |other: &Registration| other.name == adapter.name;
            if given[..index].iter().any(same) || adapter.name == self.model_id() {
                return Err(ConfigError::Bound {
                    field: "lora_modules",
                    bound: "adapters with different names, none of them the model's",
                    given: adapter.name.clone(),
                });
            }
        }
        let slots = bounded("max_loras", "from 1 to 256", self.max_loras, 1..=MAX_SLOTS)?;
        let in_memory = self.max_cpu_loras.unwrap_or(slots);
        bounded(
            "max_cpu_loras",
            "at least `max_loras`",
            in_memory,
            slots..=usize::MAX,
        )?;
        if let Some(rank) = self.max_lora_rank {
            bounded("max_lora_rank", "from 1 to 512", rank, 1..=MAX_RANK)?;
        }
        if let Some(tables) = self.max_lora_tables {
            bounded("max_lora_tables", "at most `max_loras`", tables, 0..=slots)?;
        }
        if !self.enable_lora && self.lora_dir.is_none() && given.is_empty() {
            return Ok(None);
        }
        Ok(Some(AdapterSettings {
            given,
            slots,
            rank: self.max_lora_rank,
            tables: self.max_lora_tables,
            in_memory,
        }))
    }

    fn module(&self, given: &str) -> Result<Registration, ConfigError> {
        let bad = || ConfigError::Bound {
            field: "lora_modules",
            bound: "`name=path`, or JSON with `name`, `path` and perhaps `base_model_name`",
            given: given.to_owned(),
        };
        let (name, path) = match given.starts_with('{') {
            true => {
                let module: Module = serde_json::from_str(given).map_err(|_| bad())?;
                let base = module
                    .base_model_name
                    .filter(|base| *base != self.model_id());
                if let Some(base) = base {
                    return Err(ConfigError::Bound {
                        field: "lora_modules",
                        bound: "adapters whose `base_model_name` is the served model",
                        given: base,
                    });
                }
                (module.name, module.path)
            }
            false => {
                let (name, path) = given.split_once('=').ok_or_else(bad)?;
                (name.to_owned(), path.to_owned())
            }
        };
        match name.is_empty() || path.is_empty() {
            true => Err(bad()),
            false => Ok(Registration {
                name,
                path,
                ..Registration::default()
            }),
        }
    }

    /// The adapters of `lora` and `lora_scaled`, which are named by their files.
    fn llama_files(&self) -> Result<Vec<Registration>, ConfigError> {
        let applied = |scale: f32| {
            if self.lora_init_without_apply {
                0.0
            } else {
                scale
            }
        };
        let registration = |path: &str, scale: f32| Registration {
            name: name_of(path),
            path: path.to_owned(),
            pinned: false,
            scale: applied(scale),
        };
        let each = |list: &[String]| -> Vec<String> {
            let parts = list.iter().flat_map(|files| files.split(','));
            parts.map(str::to_owned).collect()
        };
        let mut adapters: Vec<Registration> = each(&self.lora)
            .iter()
            .map(|path| registration(path, 1.0))
            .collect();
        for given in each(&self.lora_scaled) {
            let bad = || ConfigError::Bound {
                field: "lora_scaled",
                bound: "`file:factor`",
                given: given.clone(),
            };
            let (path, scale) = given.rsplit_once(':').ok_or_else(bad)?;
            let scale: f32 = scale.parse().map_err(|_| bad())?;
            if !scale.is_finite() {
                return Err(bad());
            }
            adapters.push(registration(path, scale));
        }
        match adapters.iter().find(|adapter| adapter.path.is_empty()) {
            Some(_) => Err(ConfigError::Bound {
                field: "lora",
                bound: "a comma-separated list of files",
                given: "an empty name".to_owned(),
            }),
            None => Ok(adapters),
        }
    }
}

fn sglang_path(given: &str) -> Result<Registration, ConfigError> {
    let bad = || ConfigError::Bound {
        field: "lora_paths",
        bound: "`path`, `name=path`, or JSON with `lora_name`, `lora_path` and perhaps `pinned`",
        given: given.to_owned(),
    };
    let (name, path, pinned) = match given.starts_with('{') {
        true => {
            let path: SglangPath = serde_json::from_str(given).map_err(|_| bad())?;
            (path.lora_name, path.lora_path, path.pinned.unwrap_or(false))
        }
        false => match given.split_once('=') {
            Some((name, path)) => (name.to_owned(), path.to_owned(), false),
            None => (given.to_owned(), given.to_owned(), false),
        },
    };
    match name.is_empty() || path.is_empty() {
        true => Err(bad()),
        false => Ok(Registration {
            name,
            path,
            pinned,
            scale: 0.0,
        }),
    }
}

/// The last part of a path, without `.gguf`.
fn name_of(path: &str) -> String {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or(path);
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

fn bounded(
    field: &'static str,
    bound: &'static str,
    given: usize,
    within: std::ops::RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    match within.contains(&given) {
        true => Ok(given),
        false => Err(ConfigError::Bound {
            field,
            bound,
            given: given.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Config) -> Vec<(String, String, bool, f32)> {
        let settings = config.adapters().unwrap().unwrap();
        let given = settings.given.into_iter();
        given.map(|a| (a.name, a.path, a.pinned, a.scale)).collect()
    }

    fn adapter(name: &str, path: &str, pinned: bool, scale: f32) -> (String, String, bool, f32) {
        (name.to_owned(), path.to_owned(), pinned, scale)
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn adapters_are_named_as_in_vllm_sglang_and_llama_server() {
        let vllm = Config {
            lora_modules: strings(&["a=/x/y=z", r#"{"name": "b", "path": "org/b"}"#]),
            ..Config::default()
        };
        let want = [
            adapter("a", "/x/y=z", false, 0.0),
            adapter("b", "org/b", false, 0.0),
        ];
        assert_eq!(read(vllm), want);
        let sglang = Config {
            lora_paths: strings(&[
                "/x",
                "a=/y",
                r#"{"lora_name": "b", "lora_path": "/z", "pinned": true}"#,
            ]),
            ..Config::default()
        };
        let want = [
            adapter("/x", "/x", false, 0.0),
            adapter("a", "/y", false, 0.0),
            adapter("b", "/z", true, 0.0),
        ];
        assert_eq!(read(sglang), want);
        let llama = |without_apply| Config {
            lora: strings(&["/x/a.gguf,/y/b"]),
            lora_scaled: strings(&["c.gguf:0.5"]),
            lora_init_without_apply: without_apply,
            ..Config::default()
        };
        let want = [
            adapter("a", "/x/a.gguf", false, 1.0),
            adapter("b", "/y/b", false, 1.0),
            adapter("c", "c.gguf", false, 0.5),
        ];
        assert_eq!(read(llama(false)), want);
        assert!(read(llama(true)).iter().all(|adapter| adapter.3 == 0.0));
    }

    #[test]
    fn adapters_are_off_unless_something_asks_for_them() {
        assert_eq!(Config::default().adapters().unwrap(), None);
        let on = Config {
            enable_lora: true,
            max_loras: 2,
            ..Config::default()
        };
        let settings = on.adapters().unwrap().unwrap();
        assert_eq!(
            (settings.slots, settings.in_memory, settings.rank),
            (2, 2, None)
        );
    }

    #[test]
    fn what_is_written_wrongly_is_named() {
        let refused = |config: Config| config.adapters().unwrap_err().to_string();
        let modules = |list: &[&str]| Config {
            lora_modules: strings(list),
            ..Config::default()
        };
        for (config, field) in [
            (modules(&["a"]), "lora_modules"),
            (modules(&["=x"]), "lora_modules"),
            (modules(&["a=x", "a=y"]), "different names"),
            (modules(&["hearth-tiny=x"]), "lora_modules"),
            (modules(&[r#"{"name": "a"}"#]), "lora_modules"),
            (
                modules(&[r#"{"name": "a", "path": "x", "base_model_name": "other"}"#]),
                "base_model_name",
            ),
            (
                Config {
                    lora_scaled: strings(&["a:b"]),
                    ..Config::default()
                },
                "lora_scaled",
            ),
            (
                Config {
                    max_loras: 0,
                    ..Config::default()
                },
                "max_loras",
            ),
            (
                Config {
                    max_cpu_loras: Some(1),
                    ..Config::default()
                },
                "max_cpu_loras",
            ),
            (
                Config {
                    max_lora_rank: Some(1024),
                    ..Config::default()
                },
                "max_lora_rank",
            ),
            (
                Config {
                    max_lora_tables: Some(5),
                    ..Config::default()
                },
                "max_lora_tables",
            ),
        ] {
            let error = refused(config);
            assert!(error.contains(field), "{error}");
        }
    }
}
