//! Reads adapters for the served model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use hearth_api::adapters::{AdapterError, AdapterSource, Adapters, LoraDir};
use hearth_engine::Adapter;
use hearth_model::AdapterSlots;
use hearth_model::config::ModelConfig;
use hearth_model::hub::{HubOptions, fetch_adapter, is_repo_id};
use hearth_model::lora::{self, Base, LoraError};
use hearth_model::weights::Weights;

use crate::config::{AdapterSettings, Config};

/// The largest rank where none is configured and no adapter needs more, as in vLLM.
const USUAL_RANK: usize = 16;
/// The largest rank of an adapter that is given at the start.
const MOST_RANK: usize = 512;

/// Opens the weights of the base model, for adapters that are relative to them.
pub type OpenWeights = Box<dyn Fn() -> Result<Weights, String> + Send + Sync>;

/// The model that adapters are read for.
struct Model {
    config: ModelConfig,
    weights: OpenWeights,
}

impl Model {
    /// Reads a directory, a GGUF file, or a repository of the Hub. `None` for the slots with room for
    /// whole tables stands for as many as are needed.
    fn read(&self, path: &str, most_rank: usize, tables: Option<usize>) -> Result<Adapter> {
        let local = Path::new(path);
        let found = match local.exists() || !is_repo_id(path) {
            true => PathBuf::from(local),
            false => fetch_adapter(path, &HubOptions::from_env()?)?,
        };
        let base = Base::new(&self.config, &*self.weights);
        let adapter = lora::read(&found, &base, most_rank)?;
        if let Some(tables) = tables {
            lora::check_tables(&adapter, tables)?;
        }
        Ok(adapter)
    }
}

/// The adapters of a server before its device is opened.
pub struct Prepared {
    settings: AdapterSettings,
    model: Model,
    pub slots: AdapterSlots,
    dir: Option<LoraDir>,
}

/// Reads the adapters that the server starts with, to learn how much room they need. `None` for a
/// server that takes no adapters.
///
/// # Errors
/// Names the adapter that is missing or cannot be applied, or the directory.
pub fn prepare(
    config: &Config,
    model: &ModelConfig,
    weights: OpenWeights,
) -> Result<Option<Prepared>> {
    let Some(settings) = config.adapters()? else {
        return Ok(None);
    };
    let model = Model {
        config: model.clone(),
        weights,
    };
    let mut rank = settings.rank.unwrap_or(USUAL_RANK);
    let most = settings.rank.unwrap_or(MOST_RANK);
    let (mut at_once, mut added_up, mut with_tables) = (0, 0, 0);
    let applied = settings.given.iter().filter(|given| given.scale != 0.0);
    let applied: Vec<f32> = applied.map(|given| given.scale).collect();
    for given in &settings.given {
        let adapter = model
            .read(&given.path, most, settings.tables)
            .with_context(|| format!("cannot load the adapter {}", given.name))?;
        ensure!(
            !adapter.has_tables() || given.scale == 0.0 || applied == [1.0],
            "the adapter {} has whole tables (`modules_to_save`): it applies to all requests only if it \
             is the only one that does, with the factor 1 (--lora, --lora-scaled)",
            given.name
        );
        at_once = at_once.max(adapter.rank());
        with_tables += usize::from(adapter.has_tables());
        // Adapters that apply together are one of the sum of their ranks.
        added_up += if given.scale == 0.0 {
            0
        } else {
            adapter.rank()
        };
    }
    if settings.rank.is_none() {
        rank = rank.max(at_once).max(added_up.min(MOST_RANK));
    }
    let dir = config.lora_dir.as_deref().map(|dir| {
        LoraDir::new(dir).with_context(|| format!("--lora-dir {} is not usable", dir.display()))
    });
    Ok(Some(Prepared {
        slots: AdapterSlots {
            slots: settings.slots,
            rank,
            tables: settings.tables.unwrap_or(with_tables.min(settings.slots)),
        },
        settings,
        model,
        dir: dir.transpose()?,
    }))
}

/// The adapters that requests may select, those that the server starts with among them.
///
/// # Errors
/// Names the adapter that cannot be applied.
pub fn adapters(prepared: Option<Prepared>, base: &str) -> Result<Adapters> {
    let Some(Prepared {
        settings,
        model,
        slots,
        dir,
    }) = prepared
    else {
        return Ok(Adapters::default());
    };
    let source = Source { model, slots };
    let adapters = Adapters::new(Arc::new(source), slots.slots, settings.in_memory, dir);
    for given in settings.given {
        let name = given.name.clone();
        adapters
            .register(given, base, false)
            .with_context(|| format!("cannot load the adapter {name}"))?;
    }
    Ok(adapters)
}

struct Source {
    model: Model,
    slots: AdapterSlots,
}

impl AdapterSource for Source {
    fn read(&self, path: &str) -> Result<Adapter, AdapterError> {
        let AdapterSlots { rank, tables, .. } = self.slots;
        self.model.read(path, rank, Some(tables)).map_err(|error| {
            let missing = error.downcast_ref::<LoraError>();
            match missing {
                Some(LoraError::NotFound(_)) => AdapterError::NotFound(format!("{error:#}")),
                _ => AdapterError::Refused(format!("{error:#}")),
            }
        })
    }

    fn combined(&self, parts: &[(Arc<Adapter>, f32)]) -> Result<Adapter, AdapterError> {
        let parts: Vec<(&Adapter, f32)> = parts.iter().map(|(a, scale)| (&**a, *scale)).collect();
        let sum = lora::combined(&parts, self.slots.rank);
        sum.map_err(|error| AdapterError::Refused(error.to_string()))
    }
}
