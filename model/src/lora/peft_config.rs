//! `adapter_config.json` of PEFT.

use fancy_regex::Regex;
use hearth_forward::AdaptedMatrix;
use serde_json::{Map, Value};

use super::error::LoraError;

/// The longest regular expression.
const MAX_PATTERN: usize = 4096;
/// The most keys of `rank_pattern` and `alpha_pattern`, each of which is compiled.
const MAX_PATTERNS: usize = 4096;

/// Fields that say nothing about the result of an adapter that is loaded without being trained.
const WITHOUT_EFFECT: [&str; 17] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    // It is for layers that store their weights transposed, which these models do not have.
    "fan_in_fan_out",
    "inference_mode",
    // True if it takes effect is in `init_lora_weights`.
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// The part of `adapter_config.json` about the modules and their scales.
pub struct PeftConfig {
    rank: usize,
    alpha: f64,
    rslora: bool,
    /// True if `lora_B` has a bias.
    pub bias: bool,
    /// True if the adapter has the lengths of the rows of changed matrices.
    pub dora: bool,
    /// True if the adapter has biases that replace those of the base model.
    pub base_biases: bool,
    /// True if a table of tied embeddings that the adapter has is that of both modules.
    pub ties_saved: bool,
    /// Modules whose whole weights the adapter has: the ends of their names.
    saved: Vec<String>,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    targets: Modules,
    excluded: Modules,
    layers: Option<Vec<u64>>,
}

/// A set of modules, by name.
enum Modules {
    /// The field is absent.
    Unsaid,
    /// Whole names, or their ends.
    Names(Vec<String>),
    /// A regular expression for the whole name.
    Pattern(Regex),
    AllLinear,
}

impl PeftConfig {
    pub fn read(json: &Map<String, Value>) -> Result<Self, LoraError> {
        check_kind(json)?;
        refuse_unsupported(json)?;
        let fields = Fields(json);
        let rank = fields.number("r")?.unwrap_or(8.0);
        if rank < 1.0 || rank.fract() != 0.0 {
            return Err(fields.bad("r", "an integer from 1"));
        }
        let targets = fields.modules("target_modules")?;
        let layers = fields.layers("layers_to_transform")?;
        if layers.is_some() && !matches!(targets, Modules::Names(_)) {
            let reason = "works only with a list in `target_modules`";
            return Err(LoraError::field("layers_to_transform", reason));
        }
        let (bias, dora) = (fields.flag("lora_bias")?, fields.flag("use_dora")?);
        if bias && dora {
            return Err(LoraError::field(
                "lora_bias",
                "does not work with `use_dora`",
            ));
        }
        let base_biases = match fields.value("bias").map(|value| value.as_str()) {
            None | Some(Some("none")) => false,
            Some(Some("all" | "lora_only")) => true,
            Some(_) => return Err(fields.bad("bias", "\"none\", \"all\" or \"lora_only\"")),
        };
        Ok(Self {
            rank: rank as usize,
            alpha: fields.number("lora_alpha")?.unwrap_or(8.0),
            rslora: fields.flag("use_rslora")?,
            bias,
            dora,
            base_biases,
            ties_saved: fields.flag("ensure_weight_tying")?,
            saved: fields.names("modules_to_save")?,
            ranks: fields.patterns("rank_pattern")?,
            alphas: fields.patterns("alpha_pattern")?,
            targets,
            excluded: fields.modules("exclude_modules")?,
            layers,
        })
    }

    /// True if `modules_to_save` names `module`. PEFT compares the ends of names, dots or not.
    pub fn saves(&self, module: &str) -> bool {
        let mut saved = self.saved.iter();
        saved.any(|name| !name.is_empty() && module.ends_with(name.as_str()))
    }

    /// Checks that `modules_to_save` names nothing else than some of `modules`.
    pub fn check_saved(&self, modules: &[&str]) -> Result<(), LoraError> {
        let of_these = |name: &str| {
            let mut modules = modules.iter();
            !name.is_empty() && modules.any(|module| module.ends_with(name))
        };
        match self.saved.iter().find(|name| !of_these(name)) {
            Some(name) => {
                let reason =
                    format!("names {name:?}; it is supported for embed_tokens and lm_head only");
                Err(LoraError::field("modules_to_save", reason))
            }
            None => Ok(()),
        }
    }

    /// The rank that `module` is said to have.
    pub fn rank(&self, module: &str) -> Result<usize, LoraError> {
        Ok(found(&self.ranks, "rank_pattern", module)?.map_or(self.rank, |rank| rank as usize))
    }

    /// The factor of a change of `rank`.
    pub fn scale(&self, module: &str, rank: usize) -> Result<f64, LoraError> {
        let alpha = found(&self.alphas, "alpha_pattern", module)?.unwrap_or(self.alpha);
        let rank = rank as f64;
        Ok(match self.rslora {
            true => alpha / rank.sqrt(),
            false => alpha / rank,
        })
    }

    /// Checks that the fields name `module`, for which there is a tensor.
    pub fn check_target(&self, module: &str, matrix: AdaptedMatrix) -> Result<(), LoraError> {
        let not_named = |field: &str| {
            let reason = format!("does not name {module}, for which there is a tensor");
            Err(LoraError::field(field, reason))
        };
        if !matches!(self.targets, Modules::Unsaid)
            && !self.targets.names("target_modules", module, matrix)?
        {
            return not_named("target_modules");
        }
        if !matches!(self.excluded, Modules::Unsaid)
            && self.excluded.names("exclude_modules", module, matrix)?
        {
            let reason = format!("names {module}, for which there is a tensor");
            return Err(LoraError::field("exclude_modules", reason));
        }
        match (&self.layers, matrix) {
            (None, _) => Ok(()),
            (Some(layers), AdaptedMatrix::Layer(layer, _))
                if layers.contains(&u64::from(layer)) =>
            {
                Ok(())
            }
            _ => not_named("layers_to_transform"),
        }
    }
}

impl Modules {
    fn names(&self, field: &str, module: &str, matrix: AdaptedMatrix) -> Result<bool, LoraError> {
        Ok(match self {
            Self::Unsaid => false,
            Self::Names(names) => names.iter().any(|name| {
                let before = module.strip_suffix(name.as_str());
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }),
            Self::Pattern(pattern) => matches(pattern, field, module)?,
            Self::AllLinear => matches!(matrix, AdaptedMatrix::Layer(..)),
        })
    }
}

/// The value of the first pattern that matches.
fn found(patterns: &[(Regex, f64)], field: &str, module: &str) -> Result<Option<f64>, LoraError> {
    for (pattern, value) in patterns {
        if matches(pattern, field, module)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn matches(pattern: &Regex, field: &str, module: &str) -> Result<bool, LoraError> {
    // The only error is a search that takes too long.
    pattern
        .is_match(module)
        .map_err(|error| LoraError::field(field, format!("cannot be matched: {error}")))
}

fn check_kind(json: &Map<String, Value>) -> Result<(), LoraError> {
    match json.get("peft_type").and_then(Value::as_str) {
        Some("LORA") => {}
        given => {
            let given = given.unwrap_or("nothing");
            let reason = format!("must be \"LORA\", got {given:.80}");
            return Err(LoraError::field("peft_type", reason));
        }
    }
    match json.get("task_type") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(task)) if task == "CAUSAL_LM" || task == "FEATURE_EXTRACTION" => Ok(()),
        Some(given) => {
            let reason = format!("must be \"CAUSAL_LM\", got {given}");
            Err(LoraError::field("task_type", reason))
        }
    }
}

/// True if a value switches nothing on.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        _ => false,
    }
}

/// Refuses every field that would change the result in a way that is not implemented, unknown ones
/// included.
fn refuse_unsupported(json: &Map<String, Value>) -> Result<(), LoraError> {
    const READ: [&str; 14] = [
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "lora_bias",
        "use_dora",
        "bias",
        "layers_pattern",
        "modules_to_save",
        "ensure_weight_tying",
    ];
    for (field, value) in json {
        let refused = |reason: String| Err(LoraError::field(field, reason));
        match field.as_str() {
            "init_lora_weights" => match value {
                Value::Null | Value::Bool(_) => {}
                Value::String(name)
                    if ["gaussian", "eva", "orthogonal"].contains(&name.as_str()) => {}
                _ => {
                    return refused(format!(
                        "is {value}: the adapter belongs to changed base weights; convert it with \
                         PEFT's path_initial_model_for_weight_conversion"
                    ));
                }
            },
            "layers_pattern" => {
                let layers = match value {
                    Value::String(name) => name.is_empty() || name == "layers",
                    Value::Array(names) => names.iter().all(|name| name == "layers"),
                    other => other.is_null(),
                };
                if !layers {
                    return refused(format!("is {value}; this model's layers are in \"layers\""));
                }
            }
            name if READ.contains(&name) || WITHOUT_EFFECT.contains(&name) => {}
            _ if is_off(value) => {}
            _ => return refused("is not supported by this server".to_owned()),
        }
    }
    Ok(())
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn value(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn bad(&self, field: &str, bound: &str) -> LoraError {
        let given = self
            .0
            .get(field)
            .map(ToString::to_string)
            .unwrap_or_default();
        LoraError::field(field, format!("must be {bound}, got {given:.80}"))
    }

    fn number(&self, field: &str) -> Result<Option<f64>, LoraError> {
        self.value(field)
            .map(|value| {
                let number = value.as_f64().filter(|number| number.is_finite());
                number.ok_or_else(|| self.bad(field, "a finite number"))
            })
            .transpose()
    }

    fn flag(&self, field: &str) -> Result<bool, LoraError> {
        match self.value(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.bad(field, "true or false")),
        }
    }

    /// Regular expressions for the ends of names, with a number each.
    fn patterns(&self, field: &str) -> Result<Vec<(Regex, f64)>, LoraError> {
        let Some(value) = self.value(field) else {
            return Ok(Vec::new());
        };
        let bad = || self.bad(field, "an object with numbers");
        let patterns = value.as_object().ok_or_else(bad)?;
        if patterns.len() > MAX_PATTERNS {
            let reason = format!(
                "may have at most {MAX_PATTERNS} keys, has {}",
                patterns.len()
            );
            return Err(LoraError::field(field, reason));
        }
        patterns
            .iter()
            .map(|(key, value)| {
                let number = value.as_f64().filter(|number| number.is_finite());
                let number = number.ok_or_else(bad)?;
                Ok((regex(field, &format!(r"^(.*\.)?({key})$"))?, number))
            })
            .collect()
    }

    fn modules(&self, field: &str) -> Result<Modules, LoraError> {
        Ok(match self.value(field) {
            None => Modules::Unsaid,
            Some(Value::String(name)) if name.eq_ignore_ascii_case("all-linear") => {
                Modules::AllLinear
            }
            Some(Value::String(pattern)) => {
                Modules::Pattern(regex(field, &format!("^(?:{pattern})$"))?)
            }
            Some(Value::Array(_)) => match self.names(field)? {
                names if names.is_empty() && field == "exclude_modules" => Modules::Unsaid,
                names => Modules::Names(names),
            },
            Some(_) => return Err(self.bad(field, "a regular expression or a list of names")),
        })
    }

    fn names(&self, field: &str) -> Result<Vec<String>, LoraError> {
        let Some(value) = self.value(field) else {
            return Ok(Vec::new());
        };
        let names = value.as_array().and_then(|names| {
            let names = names.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect::<Option<Vec<_>>>()
        });
        names.ok_or_else(|| self.bad(field, "a list of names"))
    }

    fn layers(&self, field: &str) -> Result<Option<Vec<u64>>, LoraError> {
        let bad = || self.bad(field, "a layer or a list of layers");
        match self.value(field) {
            None => Ok(None),
            Some(Value::Array(layers)) if layers.is_empty() => Ok(None),
            Some(Value::Array(layers)) => {
                let layers: Option<Vec<_>> = layers.iter().map(Value::as_u64).collect();
                Ok(Some(layers.ok_or_else(bad)?))
            }
            Some(layer) => Ok(Some(vec![layer.as_u64().ok_or_else(bad)?])),
        }
    }
}

fn regex(field: &str, pattern: &str) -> Result<Regex, LoraError> {
    if pattern.len() > MAX_PATTERN {
        let reason = format!(
            "may be a regular expression of at most {MAX_PATTERN} bytes, has {}",
            pattern.len()
        );
        return Err(LoraError::field(field, reason));
    }
    Regex::new(pattern)
        .map_err(|error| LoraError::field(field, format!("is not a regular expression: {error}")))
}
