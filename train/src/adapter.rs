//! Trains an adapter (LoRA, Hu et al., arXiv 2106.09685) of hearth-tiny and writes it as PEFT does.

mod factors;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::module::{AutodiffModule, Module};
use burn::tensor::backend::Backend;
use burn_flex::Flex;
use burn_optim::{AdamWConfig, Optimizer};
use half::bf16;
use hearth_model::config::ModelConfig;
use hearth_model::dtype::Dtype;
use hearth_model::transformer::Transformer;
use hearth_model::weights::Weights;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::batches::{BatchShape, Batches};
use crate::checkpoint::{write, write_json};
use crate::corpus::Split;
use crate::decode::greedy;
use crate::evaluate::Grid;
use crate::gradients::clip;
use crate::options::{AdapterOptions, DeviceKind};
use crate::schedule::Schedule;
use crate::shards::Shards;
use crate::tokenizer::Encoder;
use crate::trainer::{Autodiff, loss};
use factors::{Factors, TARGETS};

/// Steps between lines of the loss.
const REPORT_EVERY: u64 = 20;
/// The most tokens of an answer.
const ANSWER: usize = 120;

/// Trains as `options` say, answers some requests, and writes the adapter.
pub fn train(options: &AdapterOptions) -> Result<()> {
    let device = Default::default();
    let path = options.base.join("config.json");
    let json = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let config = ModelConfig::from_json(&json)?;
    let encoder = Encoder::from_json(crate::TOKENIZER_JSON)?;
    let weights = Weights::open_dir(&options.base)?;
    Flex::seed(&device, options.seed);
    let base =
        Transformer::<Autodiff<Flex>>::load(&config, &weights, Dtype::F32, Dtype::F32, &device)?;
    let base = base.no_grad();
    let scale = options.alpha / options.rank as f64;
    let mut factors = Factors::<Autodiff<Flex>>::new(&config, options.rank, &device);
    println!("{} numbers in {:?}", factors.num_params(), options.style);

    let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
    let schedule = Schedule {
        steps: options.steps,
        time: Duration::MAX,
        warmup_steps: options.steps / 20,
        peak: options.lr,
    };
    let shape = BatchShape {
        rows: options.batch,
        length: options.length,
        long_every: 0,
        corpus: options.style.corpus(),
    };
    let shards = Shards::new(std::thread::available_parallelism().map_or(1, |n| n.get()))?;
    let mut batches = Batches::start(crate::TOKENIZER_JSON, shape, options.seed, 1);
    let started = Instant::now();
    for step in 0..options.steps {
        let batch = batches.next()?;
        let rate = schedule.learning_rate(step, Duration::ZERO);
        let (sum, mut gradients) = shards.gradients(&factors, batch, &device, |factors, part| {
            let model = factors.added_to(&base, scale);
            loss(&model, &config, part, DeviceKind::Cpu, &device)
        });
        clip::<Autodiff<Flex>, _>(&factors, &mut gradients, 1.0);
        factors = optimizer.step(rate, factors, gradients);
        if step % REPORT_EVERY == 0 || step + 1 == options.steps {
            let loss = sum.into_scalar();
            ensure!(loss.is_finite(), "the loss is {loss}: use a lower --lr");
            let seconds = started.elapsed().as_secs_f64();
            println!("step {step:>5}  {seconds:>5.0} s  loss {loss:.4}");
        }
    }
    save(options, &config, &factors.valid())?;
    let adapted = factors.valid().added_to(&base.valid(), scale);
    show(options, &config, &encoder, &adapted)
}

/// Answers held-out requests and counts the answers that are in the style.
fn show(
    options: &AdapterOptions,
    config: &ModelConfig,
    encoder: &Encoder,
    model: &Transformer<Flex>,
) -> Result<()> {
    let style = options.style;
    let asked: Vec<_> = (0..options.prompts)
        .map(|index| style.conversation(options.seed, Split::HeldOut, (1 << 40) + index))
        .collect();
    let grid = Grid {
        rows: 32,
        length: 64,
        fill: false,
    };
    let device = Default::default();
    let answers = greedy(model, config, encoder, &device, &asked, ANSWER, grid)?;
    let mut in_style = 0;
    for (index, (conversation, answer)) in asked.iter().zip(answers).enumerate() {
        let (Ok(text) | Err(text)) = &answer;
        in_style += u64::from(answer.is_ok() && style.has(text));
        if index < 8 {
            println!("> {}\n{text}\n", conversation.turns[0].user);
        }
    }
    println!("{in_style} of {} answers are in the style", options.prompts);
    Ok(())
}

/// Writes the two files of PEFT's format, with the numbers in bf16.
fn save(options: &AdapterOptions, config: &ModelConfig, factors: &Factors<Flex>) -> Result<()> {
    let dir = &options.out;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    write_json(&dir.join("adapter_config.json"), &fields(options))?;
    let tensors = factors.export(config);
    let encoded: Vec<Vec<u8>> = tensors
        .iter()
        .map(|tensor| {
            let values = tensor.values.iter();
            let values = values.flat_map(|value| bf16::from_f32(*value).to_le_bytes());
            values.collect()
        })
        .collect();
    let views = tensors.iter().zip(&encoded).map(|(tensor, bytes)| {
        let dtype = safetensors::Dtype::BF16;
        let view = TensorView::new(dtype, tensor.shape.clone(), bytes)?;
        Ok((tensor.name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    let file = safetensors::serialize(views, None)?;
    println!("{} bytes", file.len());
    write(&dir.join("adapter_model.safetensors"), &file)
}

/// The fields of adapter_config.json.
fn fields(options: &AdapterOptions) -> Value {
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "hearth-tiny",
        "inference_mode": true,
        "r": options.rank,
        "lora_alpha": options.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": TARGETS.map(|(module, _)| module),
    })
}
