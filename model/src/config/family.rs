//! The type of a family of models.

use std::fmt;

use super::ModelConfig;
use super::defaults::Defaults;
use super::error::ConfigError;
use super::fields::Fields;

/// A family of decoder-only transformers.
pub struct Family {
    /// The class name in `architectures`.
    pub class_name: &'static str,
    /// The name in `model_type`.
    pub model_type: &'static str,
    /// The object of `config.json` that describes the decoder; `None` for the file itself.
    pub(super) part: Option<Part>,
    pub(super) defaults: Defaults,
    /// The fields that change the arithmetic and that `describe` reads, of those which
    /// [`ARITHMETIC`](super::plain::ARITHMETIC) lists. All others of that list are refused.
    pub(super) reads: &'static [&'static str],
    /// Turns the fields of a file into the description of the model, beginning with a plain block
    /// that has the sizes of the file and what the family's defaults say.
    pub(super) describe: fn(Fields<'_>, &mut ModelConfig) -> Result<(), ConfigError>,
}

/// An object of `config.json`.
pub(super) struct Part {
    pub key: &'static str,
    /// Errors put this before the names of its fields: `text_config.`
    pub prefix: &'static str,
}

/// The family of a model, named as in `architectures`.
#[derive(Clone, Copy)]
pub struct Architecture(&'static Family);

impl Architecture {
    pub(super) fn of(family: &'static Family) -> Self {
        Self(family)
    }

    /// The class name in `architectures`.
    pub fn class_name(self) -> &'static str {
        self.0.class_name
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.class_name() == other.class_name()
    }
}

impl fmt::Debug for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class_name())
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class_name())
    }
}
