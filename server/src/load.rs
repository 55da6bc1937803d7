//! From a configuration to a model that serves.

use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hearth_api::disaggregation::Disaggregation;
use hearth_api::grammars::Grammars;
use hearth_api::served::{Defaults, Formats, ModelInfo, Served, TextCodec};
use hearth_api::state::unix_time;
use hearth_api::{reasoning, tools};
use hearth_engine::{BuildError, Engine, EngineConfig};
use hearth_model::certified;
use hearth_model::checkpoint::Checkpoint;
use hearth_model::device::DeviceSpec;
use hearth_model::progress::loading_bar;
use hearth_model::{AdapterSlots, LargestStep, LoadOptions, Report};

use crate::config::{Config, DisaggregationMode, LoadFormat, SamplingDefaults, SpecialTokens};
use crate::disaggregation;
use crate::draft_model::DraftCheckpoint;
use crate::executor::{ModelExecutor, Reload};
use crate::kernel_cache;
use crate::load_formats::{formats_to_load, load_format};
use crate::lora;
use crate::text::{IdText, ModelText};
use crate::warmup::Sizes;

/// Opens, loads and warms up the model, and starts its engine.
///
/// # Errors
/// Names the file, the device or the option that is missing or wrong.
pub fn load(config: &Config) -> Result<Served> {
    let checkpoint = open(config)?;
    let (class, packaging) = (
        checkpoint.config.architecture.class_name(),
        checkpoint.packaging,
    );
    if !certified::is_certified(class, packaging) {
        tracing::warn!(
            "no {packaging} files of {class} were compared with a reference: \
             docs/CERTIFIED.md does not list them"
        );
    }
    let draft = DraftCheckpoint::open(config, &checkpoint)?;
    let text = text(config, &checkpoint)?;
    let defaults = defaults(config, &checkpoint);
    let formats = formats(config, &checkpoint)?;
    check(&defaults)?;
    // Opened again whenever it is asked for: the weights that serve are gone once they are on the
    // device. A repository of the Hub may have a new commit by then, so this is the same directory.
    let same = config.clone();
    let place = config.model.as_ref().map(|_| checkpoint.place().to_owned());
    let weights = move || -> Result<_, String> {
        let opened = open_at(&same, place.as_deref()).map_err(|error| format!("{error:#}"))?;
        Ok(opened.weights)
    };
    let prepared = lora::prepare(config, &checkpoint.config, Box::new(weights))?;
    let slots = prepared.as_ref().map(|prepared| prepared.slots);
    let slots = slots.unwrap_or_default();
    let (report, info) = mpsc::channel();
    let build_config = config.clone();
    // The executor is created on the engine's thread, because a device's queue belongs to the
    // thread that opened it.
    let engine_config = engine_config(config)?;
    let sizes = Sizes {
        running: engine_config.max_running,
        tokens: engine_config.max_batch_tokens,
        max_submission: engine_config.max_submission,
    };
    let kv_bytes = Arc::new(AtomicU64::new(0));
    let taken = Arc::clone(&kv_bytes);
    let build = move || {
        let (executor, info) = executor(&build_config, checkpoint, Some(sizes), slots)
            .map_err(|error| BuildError::new(format!("{error:#}")))?;
        kv_bytes.store(info.kv_bytes, Ordering::Relaxed);
        // The receiver below waits for this, so sending does not fail.
        let _ = report.send((info, executor.lost()));
        Ok(executor)
    };
    let (draft_report, draft_info) = mpsc::channel();
    let build_draft = draft.map(|draft| draft.builder(config.clone(), taken, draft_report));
    let engine = Engine::spawn_with_draft_model(engine_config.clone(), build, build_draft)?;
    let grammars = Grammars::start(
        Arc::clone(&text),
        engine.limits().vocab_size,
        defaults.eos_token_ids.clone(),
        config.grammar_defaults(),
    )
    .context("cannot start the threads that compile grammars")?;
    let (mut info, lost) = info.recv().context("the engine came up without a model")?;
    info.draft_model = draft_info.try_recv().ok();
    if let (Some(draft), Some(headroom)) = (&info.draft_model, &mut info.headroom_bytes) {
        *headroom = headroom.saturating_sub(draft.weight_bytes + draft.kv_bytes);
    }
    let adapters = lora::adapters(prepared, &config.model_id())?;
    Ok(Served {
        id: config.model_id(),
        aliases: config.model_aliases(),
        engine,
        text,
        defaults,
        formats,
        grammars: Arc::new(grammars),
        info,
        adapters: Arc::new(adapters),
        pooling: config.pooling.into(),
        engine_config,
        created: unix_time(),
        // It begins when the ports are open.
        disaggregation: Disaggregation::Null,
        kv_events: None,
        lost,
    })
}

/// The checkpoint that `--model` names, or the embedded one.
///
/// # Errors
/// A missing or malformed file, an unsupported architecture.
pub fn open(config: &Config) -> Result<Checkpoint> {
    open_at(config, config.model.as_deref())
}

/// [`open`] for a model at `place`, or for the one in the binary.
fn open_at(config: &Config, place: Option<&str>) -> Result<Checkpoint> {
    let format = load_format(config);
    let checkpoint = match place {
        Some(place) => Checkpoint::open(place, format),
        None => Checkpoint::embedded(),
    };
    checkpoint.with_context(|| format!("cannot open the model {}", config.model_id()))
}

/// Loads `checkpoint` onto the device, with slots for adapters, and warms it up, on a GPU for `sizes`. It must be called on
/// the thread that will use the executor.
///
/// # Errors
/// There is no such device, the memory does not suffice, or a tensor is missing or has a wrong
/// shape.
pub fn executor(
    config: &Config,
    mut checkpoint: Checkpoint,
    sizes: Option<Sizes>,
    adapters: AdapterSlots,
) -> Result<(ModelExecutor, ModelInfo)> {
    let steps = engine_config(config)?;
    let options = LoadOptions {
        device: DeviceSpec::parse(&config.device)?,
        kv_tokens: config.kv_tokens,
        window_share: window_share(config),
        max_model_len: config.max_model_len,
        host_slots: config.host_cache_tokens,
        adapters,
        deterministic: config.deterministic,
        largest_matrix: None,
        check_kernels: true,
        tuned_for: config.autotune.then_some(LargestStep {
            tokens: steps.max_batch_tokens,
            sequences: steps.max_running,
        }),
        kernel_cache: kernel_cache::of_this_build(),
        ..formats_to_load(config)
    };
    let digest = disaggregation::digest(&checkpoint);
    let kv_layout = {
        let config = &checkpoint.config;
        let (layers, heads, dim) = (config.layers.len(), config.kv_heads, config.head_dim);
        format!("layers={layers} kv_heads={heads} head_dim={dim}")
    };
    let bar = stderr()
        .is_terminal()
        .then(|| loading_bar(checkpoint.weights.total_bytes()));
    if let Some(bar) = &bar {
        checkpoint.weights.set_progress(bar.clone());
    }
    let decoder = hearth_model::load(&checkpoint, &options);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let decoder = decoder.with_context(|| format!("cannot load {}", checkpoint.name))?;
    let report = decoder.report();
    if let Some(window) = report.window {
        tracing::info!(
            window = window.tokens,
            window_slots = window.slots,
            slots = report.kv_slots,
            "layers that attend a window have KV slots of their own"
        );
    }
    let info = ModelInfo {
        model_path: config
            .model
            .clone()
            .unwrap_or_else(|| "embedded".to_owned()),
        load_format: match config.load_format {
            LoadFormat::Auto => "auto",
            LoadFormat::Dummy => "dummy",
        },
        architecture: report.architecture.clone(),
        parameters: report.parameters,
        hidden_size: report.hidden_size,
        device: report.device.clone(),
        dtype: report.dtype.to_string(),
        quantization: report.quantization.clone(),
        kv_cache_dtype: report.kv_dtype.clone(),
        // Quantized weights give other keys and values, and so do other rotations.
        digest: {
            let long = checkpoint.config.rotates_for_long(report.max_model_len);
            let rotated = if long {
                " rotated for long contexts"
            } else {
                ""
            };
            match &report.quantization {
                Some(blocks) => format!("{digest}{rotated} in {blocks}"),
                None => format!("{digest}{rotated}"),
            }
        },
        kv_layout,
        weight_bytes: report.weight_bytes,
        kv_bytes: report.kv_bytes,
        headroom_bytes: report.headroom_bytes,
        draft_model: None,
    };
    // The CPU's kernels are compiled already; a GPU's are compiled when they first run.
    let compiles = !report.device.starts_with("cpu");
    if let Some(kernels) = options.kernel_cache.as_deref().filter(|_| compiles) {
        kernel_cache::keep(kernels);
    }
    let sizes = sizes.filter(|_| compiles);
    let mut executor = ModelExecutor::new(decoder, sizes, reload(config.clone(), options));
    executor.warm_up().context("the first forward failed")?;
    if config.deterministic {
        let cost = match info.device.starts_with("cpu") {
            true => "nothing",
            false => "a weight is read again for every 8 tokens of a prompt, without matrix units",
        };
        tracing::info!(
            cost,
            "deterministic: the same bits in any batch, cached or not"
        );
    }
    Ok((executor, info))
}

/// The share of slots that layers with a window get, unless these must keep whole sequences: copies
/// for the host, for files and for other servers have all layers of a token.
pub fn window_share(config: &Config) -> Option<f64> {
    let copied = config.host_cache_tokens > 0
        || config.cache_dir.is_some()
        || config.disaggregation_mode != DisaggregationMode::Null;
    (!copied).then_some(config.swa_full_tokens_ratio)
}

/// Loads the model of a lost device again, with the same sizes.
fn reload(config: Config, options: LoadOptions) -> Reload {
    Box::new(move |was: &Report| {
        let options = LoadOptions {
            kv_tokens: Some(was.kv_slots),
            max_model_len: Some(was.max_model_len),
            // One of the tuned kernels may have caused the loss.
            tuned_for: None,
            ..options.clone()
        };
        Ok(hearth_model::load(&open(&config)?, &options)?)
    })
}

fn text(config: &Config, checkpoint: &Checkpoint) -> Result<Arc<dyn TextCodec>> {
    if config.load_format == LoadFormat::Dummy && checkpoint.tokenizer.is_none() {
        return Ok(Arc::new(IdText));
    }
    let template = checkpoint.chat_template.clone();
    Ok(Arc::new(ModelText::new(
        checkpoint.tokenizer()?.clone(),
        template,
        config.special_tokens_in_messages == SpecialTokens::Text,
    )))
}

/// The formats of tool calls and reasoning: as the flags say, or else as the chat template shows.
///
/// # Errors
/// The flags name two formats of which one is in the other.
fn formats(config: &Config, checkpoint: &Checkpoint) -> Result<Formats> {
    let template = checkpoint.chat_template.as_ref().ok();
    let source = template.and_then(|template| template.source(true).ok());
    let tools = match config.tool_call_parser {
        Some(parser) => {
            if parser.format().is_some() && source.is_some_and(|text| !text.contains("tools")) {
                tracing::warn!(
                    "the chat template does not mention tools: the model will not be told of them"
                );
            }
            parser.format()
        }
        None => {
            let found = source.and_then(tools::Format::detect);
            if let Some(format) = found {
                tracing::info!(
                    format = format.name(),
                    "the chat template shows how tools are called"
                );
            }
            found
        }
    };
    let in_messages = tools == Some(tools::Format::Harmony);
    let reasoning = match config.reasoning_parser {
        Some(parser) => {
            let format = parser.format();
            if in_messages && format != Some(reasoning::Format::Harmony) {
                bail!(
                    "--reasoning-parser must be harmony with the tool call parser harmony, because \
                     both are messages; or give another --tool-call-parser"
                );
            }
            format
        }
        None if in_messages => Some(reasoning::Format::Harmony),
        None => {
            let found = source.and_then(reasoning::Format::detect);
            if let Some(format) = found {
                tracing::info!(
                    format = format.name(),
                    "the chat template shows how reasoning is marked"
                );
            }
            found
        }
    };
    Ok(Formats { tools, reasoning })
}

fn engine_config(config: &Config) -> Result<EngineConfig> {
    Ok(EngineConfig {
        max_running: config.max_running_requests,
        max_queue: config.max_queue,
        // One token of every running sequence and one chunk fit into a batch.
        max_batch_tokens: config.max_batch_tokens.unwrap_or_else(|| {
            config
                .prefill_chunk
                .saturating_add(config.max_running_requests)
        }),
        prefill_chunk: config.prefill_chunk,
        max_submission: (config.max_submission_ms > 0)
            .then(|| Duration::from_millis(config.max_submission_ms)),
        prefix_cache: config.prefix_cache,
        page_size: config.page_size,
        eviction: config.radix_eviction_policy.into(),
        host_writes: config.host_cache_write_policy.into(),
        schedule: config.schedule_policy.into(),
        // The configuration was checked.
        cache_changes: config.kv_events().is_ok_and(|events| events.is_some()),
        speculation: config.drafting()?.map(|drafting| drafting.speculation),
        ..EngineConfig::default()
    })
}

/// Checks the defaults: one that a request may not ask for would fail every request that leaves
/// the field out.
fn check(defaults: &Defaults) -> Result<()> {
    let params = defaults.params();
    // The defaults name no tokens except stop ids, which are not checked.
    params.validate(0).map_err(|error| {
        anyhow!("generation_config.json: {error} (--sampling-defaults openai goes without it)")
    })
}

fn defaults(config: &Config, checkpoint: &Checkpoint) -> Defaults {
    let eos_token_ids = checkpoint.eos_token_ids();
    let given = &checkpoint.generation;
    match config.sampling_defaults {
        SamplingDefaults::Openai => Defaults {
            eos_token_ids,
            ..Defaults::default()
        },
        SamplingDefaults::Model => Defaults {
            // `do_sample: false` makes greedy decoding the default.
            temperature: match given.do_sample {
                Some(false) => Some(0.0),
                _ => given.temperature,
            },
            top_p: given.top_p,
            top_k: given.top_k,
            min_p: given.min_p,
            repetition_penalty: given.repetition_penalty,
            max_tokens: given.max_new_tokens.map(|tokens| tokens as usize),
            eos_token_ids,
        },
    }
}
