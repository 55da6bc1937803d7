//! Rotary position embedding: parameters from `config.json` and the frequencies they give.
//!
//! Both spellings are read: `rope_theta` + `rope_scaling` (checkpoints written before
//! transformers 5) and `rope_parameters` (since). The arithmetic follows transformers'
//! `modeling_rope_utils` step by step in f32, because at position 100,000 one unit in the last
//! place of a frequency is a visible angle.

use std::f64::consts::PI;

use super::bounds::MAX_POSITIONS;
use super::error::ConfigError;
use super::fields::Fields;

/// The rotary embedding of one model: which dimensions are rotated, and at which frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// The first `rotary_dim` of the `head_dim` dimensions are rotated, and the others are not.
    /// Even.
    pub rotary_dim: usize,
    pub scaling: RopeScaling,
}

/// How the frequencies are stretched for contexts longer than those of pre-training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a smooth ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position: usize,
    },
    /// Every frequency divided by its own factor, `[rotary_dim / 2]`. GGUF files express `Llama3`
    /// in this way.
    Divided {
        factors: Vec<f32>,
    },
    /// LongRoPE (arXiv 2402.13753): every frequency divided by its own factor, `[rotary_dim / 2]`. The
    /// `short` factors are for servers whose contexts have at most `original_max_position` tokens, the
    /// `long` ones for all others.
    ///
    /// transformers chooses by the length of each forward pass, so that a sequence that grows beyond the
    /// bound has keys of both kinds. Here all positions of all sequences use one kind, which is that of
    /// the longest sequence that is served, so that cached keys stay valid.
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
        original_max_position: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
    /// YaRN: a ramp over dimensions between interpolation and extrapolation.
    Yarn {
        factor: f64,
        /// Multiplies cos and sin; `None` derives it from `factor`, `mscale`, `mscale_all_dim`.
        attention_factor: Option<f64>,
        beta_fast: f64,
        beta_slow: f64,
        mscale: Option<f64>,
        mscale_all_dim: Option<f64>,
        original_max_position: usize,
        /// Round the ends of the ramp to whole dimensions.
        truncate: bool,
    },
}

const SUPPORTED: &str = "default, linear, llama3, longrope, yarn";

/// The values of absent fields in a family.
pub(super) struct RopeDefaults {
    pub theta: f64,
    /// The base of the rotation of layers with a window, where they have one of their own (Gemma 3).
    pub local_theta: Option<f64>,
    /// `original_max_position_embeddings`; `None` for `max_position_embeddings`.
    pub original_max_position: Option<usize>,
}

impl RopeDefaults {
    pub const LLAMA: RopeDefaults = RopeDefaults {
        theta: 10_000.0,
        local_theta: None,
        original_max_position: None,
    };
}

/// The fields of the file and of the object with the parameters of one rotation, and the base for the
/// case that the object has none.
#[derive(Clone, Copy)]
struct Source<'a> {
    config: Fields<'a>,
    rope: Fields<'a>,
    theta: f64,
    original_max_position: Option<usize>,
}

/// The field with the type of scaling, which has two names.
fn type_key(rope: Fields<'_>) -> &'static str {
    match rope.value("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    }
}

impl RopeConfig {
    /// Reads the rotary parameters of `config`: one set, or where layers with a window have a base of
    /// their own, that of the other layers and that of these.
    pub(super) fn read(
        config: Fields<'_>,
        head_dim: usize,
        max_position: usize,
        defaults: &RopeDefaults,
    ) -> Result<Vec<Self>, ConfigError> {
        let empty = serde_json::Map::new();
        // `rope_parameters` replaces an empty `rope_scaling`, as in transformers.
        let old = config.object("rope_scaling")?.filter(|map| !map.is_empty());
        let old = old.map(|map| Fields::new(map, "rope_scaling."));
        let new = Fields::new(
            config.object("rope_parameters")?.unwrap_or(&empty),
            "rope_parameters.",
        );
        let base = |key: &str, default: f64| {
            Ok::<f64, ConfigError>(config.positive(key)?.unwrap_or(default))
        };
        let source = |rope: Fields<'_>, theta: f64| {
            let original_max_position = defaults.original_max_position;
            let source = Source {
                config,
                rope,
                theta,
                original_max_position,
            };
            Self::parse(source, head_dim, max_position)
        };
        let theta = base("rope_theta", defaults.theta)?;
        let types = ["full_attention", "sliding_attention"];
        let Some(local_theta) = defaults.local_theta else {
            let rope = old.unwrap_or(new);
            if let Some(layer_type) = types.iter().find(|key| rope.raw(key).is_some()) {
                return Err(rope.bad(layer_type, "one set of parameters for all layers"));
            }
            return Ok(vec![source(rope, theta)?]);
        };
        if let Some(key) = ["rope_type", "rope_theta"]
            .iter()
            .find(|key| new.value(key).is_some())
        {
            return Err(new.bad(key, "in full_attention or sliding_attention"));
        }
        let set = |key: &str, prefix: &'static str| {
            Ok::<_, ConfigError>(Fields::new(new.object(key)?.unwrap_or(&empty), prefix))
        };
        let global = set("full_attention", "rope_parameters.full_attention.")?;
        let local = set("sliding_attention", "rope_parameters.sliding_attention.")?;
        Ok(vec![
            source(old.unwrap_or(global), theta)?,
            source(local, base("rope_local_base_freq", local_theta)?)?,
        ])
    }

    fn parse(
        source: Source<'_>,
        head_dim: usize,
        max_position: usize,
    ) -> Result<Self, ConfigError> {
        let Source { config, rope, .. } = source;
        let theta = rope.positive("rope_theta")?.unwrap_or(source.theta);
        let (holder, partial) = match rope.positive("partial_rotary_factor")? {
            Some(partial) => (rope, partial),
            None => (
                config,
                config.positive("partial_rotary_factor")?.unwrap_or(1.0),
            ),
        };
        let rotary_dim = (head_dim as f64 * partial) as usize;
        if !(2..=head_dim).contains(&rotary_dim) || !rotary_dim.is_multiple_of(2) {
            return Err(ConfigError::Invalid {
                field: holder.name("partial_rotary_factor"),
                bound: format!(
                    "a share of head_dim = {head_dim} that makes an even number of dimensions"
                ),
                given: format!("{partial} ({rotary_dim} dimensions)"),
            });
        }

        let scaling = Self::parse_scaling(source, rotary_dim / 2, max_position)?;
        if theta == 1.0 && matches!(scaling, RopeScaling::Yarn { .. }) {
            return Err(config.bad("rope_theta", "other than 1 under yarn"));
        }
        let unscaled = Self {
            theta,
            rotary_dim,
            scaling: RopeScaling::None,
        };
        if !unscaled.is_finite(max_position) {
            let holder = match rope.value("rope_theta") {
                Some(_) => rope,
                None => config,
            };
            return Err(holder.bad("rope_theta", "a base whose angles are finite"));
        }
        let scaled = Self {
            scaling,
            ..unscaled
        };
        if !scaled.is_finite(max_position) {
            let bound = "of a type whose parameters give finite angles and factors";
            return Err(rope.bad(type_key(rope), bound));
        }
        Ok(scaled)
    }

    /// True if all angles of `positions` positions are finite, and so is the factor of cos and sin.
    fn is_finite(&self, positions: usize) -> bool {
        // The short and the long factors.
        let kinds = [0, usize::MAX].into_iter();
        let mut frequencies = kinds.flat_map(|served| self.inverse_frequencies(served));
        frequencies.all(|frequency| (frequency * positions as f32).is_finite())
            && self.attention_scaling().is_finite()
    }

    fn parse_scaling(
        source: Source<'_>,
        pairs: usize,
        max_position: usize,
    ) -> Result<RopeScaling, ConfigError> {
        let Source { config, rope, .. } = source;
        let key = type_key(rope);
        let required = |name: &str| rope.positive(name)?.ok_or_else(|| rope.missing(name));
        let original_max_position = || {
            let name = "original_max_position_embeddings";
            // The field outside of the object takes precedence, as in transformers.
            Ok::<usize, ConfigError>(match config.count(name, MAX_POSITIONS)? {
                Some(positions) => positions,
                None => rope
                    .count(name, MAX_POSITIONS)?
                    .or(source.original_max_position)
                    .unwrap_or(max_position),
            })
        };
        match rope.text(key)?.unwrap_or("default") {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear {
                factor: required("factor")?,
            }),
            "llama3" => {
                let low_freq_factor = required("low_freq_factor")?;
                let high_freq_factor = required("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    let bound = format!("above low_freq_factor = {low_freq_factor}");
                    return Err(rope.bad("high_freq_factor", bound));
                }
                Ok(RopeScaling::Llama3 {
                    factor: required("factor")?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position: original_max_position()?,
                })
            }
            // The first checkpoints of Phi-3 have the second name.
            "longrope" | "su" => {
                let original_max_position = original_max_position()?;
                let factor = match rope.positive("factor")? {
                    Some(factor) => factor,
                    None => max_position as f64 / original_max_position as f64,
                };
                let attention_factor = match rope.positive("attention_factor")? {
                    Some(factor) => factor,
                    None if factor <= 1.0 => 1.0,
                    None if original_max_position < 2 => {
                        return Err(
                            rope.bad("attention_factor", "given beside an original length of 1")
                        );
                    }
                    None => (1.0 + factor.ln() / (original_max_position as f64).ln()).sqrt(),
                };
                Ok(RopeScaling::LongRope {
                    short: rope.positives("short_factor", pairs)?,
                    long: rope.positives("long_factor", pairs)?,
                    original_max_position,
                    attention_factor,
                })
            }
            "yarn" => {
                let original_max_position = original_max_position()?;
                // An explicit `null` asks for the ratio of the two context lengths.
                let factor = match rope.raw("factor") {
                    Some(value) if value.is_null() => {
                        max_position as f64 / original_max_position as f64
                    }
                    _ => required("factor")?,
                };
                let nonzero =
                    |name: &str| Ok::<_, ConfigError>(rope.number(name)?.filter(|v| *v != 0.0));
                Ok(RopeScaling::Yarn {
                    factor,
                    attention_factor: rope.number("attention_factor")?,
                    beta_fast: nonzero("beta_fast")?.unwrap_or(32.0),
                    beta_slow: nonzero("beta_slow")?.unwrap_or(1.0),
                    mscale: nonzero("mscale")?,
                    mscale_all_dim: nonzero("mscale_all_dim")?,
                    original_max_position,
                    truncate: rope.boolean("truncate")?.unwrap_or(true),
                })
            }
            other => Err(ConfigError::UnsupportedRope {
                field: rope.name(key),
                given: other.to_owned(),
                supported: SUPPORTED,
            }),
        }
    }

    /// The angle per position of each pair of dimensions, `[rotary_dim / 2]`, in radians. Pair `i`
    /// consists of the dimensions `i` and `i + rotary_dim / 2` (the half-split layout of these
    /// families). The longest sequence has `positions`, on which [`RopeScaling::LongRope`] depends.
    pub fn inverse_frequencies(&self, positions: usize) -> Vec<f32> {
        let base = f64::from(self.theta as f32);
        let dim = self.rotary_dim as f32;
        // The exponent is rounded to f32 first; the power is then the correctly rounded f32.
        let wavelengths = (0..self.rotary_dim / 2)
            .map(|pair| base.powf(f64::from((2 * pair) as f32 / dim)) as f32);
        match &self.scaling {
            RopeScaling::None => wavelengths.map(|w| 1.0 / w).collect(),
            RopeScaling::Divided { factors } => wavelengths
                .zip(factors)
                .map(|(w, factor)| 1.0 / w / factor)
                .collect(),
            RopeScaling::LongRope {
                short,
                long,
                original_max_position,
                ..
            } => {
                let is_long = positions > *original_max_position;
                let factors = if is_long { long } else { short };
                wavelengths
                    .zip(factors)
                    .map(|(w, factor)| 1.0 / (factor * w))
                    .collect()
            }
            RopeScaling::Linear { factor } => {
                wavelengths.map(|w| 1.0 / w / *factor as f32).collect()
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => {
                let context = original_max_position as f64;
                let longest = (context / low_freq_factor) as f32;
                let shortest = (context / high_freq_factor) as f32;
                let width = (high_freq_factor - low_freq_factor) as f32;
                wavelengths
                    .map(|w| {
                        let frequency = 1.0 / w;
                        let wavelength = (2.0 * PI) as f32 / frequency;
                        if wavelength > longest {
                            frequency / factor as f32
                        } else if wavelength < shortest {
                            frequency
                        } else {
                            let smooth =
                                (context as f32 / wavelength - low_freq_factor as f32) / width;
                            (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
                        }
                    })
                    .collect()
            }
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position,
                truncate,
                ..
            } => {
                let dims = self.rotary_dim as f64;
                // The (fractional) dimension that rotates `rotations` times over the context.
                let correction = |rotations: f64| {
                    let turns = original_max_position as f64 / (rotations * 2.0 * PI);
                    dims * turns.ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (correction(beta_fast), correction(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dims - 1.0));
                if low == high {
                    high += 0.001;
                }
                wavelengths
                    .enumerate()
                    .map(|(pair, w)| {
                        let ramp = (pair as f32 - low as f32) / (high - low) as f32;
                        let keep = 1.0 - ramp.clamp(0.0, 1.0);
                        1.0 / (factor as f32 * w) * (1.0 - keep) + 1.0 / w * keep
                    })
                    .collect()
            }
        }
    }

    /// The factor of cos and sin: 1 except under YaRN and LongRoPE.
    pub fn attention_scaling(&self) -> f32 {
        match &self.scaling {
            RopeScaling::LongRope {
                attention_factor, ..
            } => *attention_factor as f32,
            &RopeScaling::Yarn {
                factor,
                attention_factor,
                mscale,
                mscale_all_dim,
                ..
            } => {
                let scale = |mscale: f64| match factor {
                    ..=1.0 => 1.0,
                    factor => 0.1 * mscale * factor.ln() + 1.0,
                };
                let derived = match (mscale, mscale_all_dim) {
                    (Some(mscale), Some(all_dim)) => scale(mscale) / scale(all_dim),
                    _ => scale(1.0),
                };
                attention_factor.unwrap_or(derived) as f32
            }
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Divided { .. } => 1.0,
        }
    }
}
