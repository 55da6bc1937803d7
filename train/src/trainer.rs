//! The training loop.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::module::{AutodiffModule, Module};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use burn_optim::{AdamWConfig, Optimizer};
use hearth_model::config::ModelConfig;
use hearth_model::dtype::Dtype;
use hearth_model::transformer::Transformer;
use hearth_model::weights::Weights;

use crate::batches::{Batch, BatchShape, Batches};
use crate::checkpoint;
use crate::corpus::{Split, conversation};
use crate::evaluate::{Grid, evaluate, table};
use crate::gradients::clip;
use crate::measure::measure;
use crate::options::{DeviceKind, TrainOptions};
use crate::record::{Point, RECORD, Record, Run};
use crate::schedule::Schedule;
use crate::shards::Shards;
use crate::tokenizer::Encoder;

/// Standard deviation of the first weights.
const INIT_STD: f64 = 0.04;
/// Steps between lines of the loss curve. There are few lines, because reading a loss back stops
/// the device for a moment.
const REPORT_EVERY: u64 = 20;

pub type Autodiff<B> = burn_autodiff::Autodiff<B>;

/// Trains a model on `B` and writes everything to `options.out`.
pub fn train<B: Backend>(options: &TrainOptions, device: &B::Device) -> Result<()> {
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let config = checkpoint::model_config(&options.shape)?;
    let encoder = Encoder::from_json(crate::TOKENIZER_JSON)?;
    ensure!(
        encoder.vocab_size() == config.vocab_size,
        "tokenizer.json has {} tokens, the model {}: run `hearth-train tokenizer`",
        encoder.vocab_size(),
        config.vocab_size
    );
    B::seed(device, options.seed);
    let mut model = match &options.from {
        Some(dir) => {
            let weights = Weights::open_dir(dir)?;
            Transformer::<Autodiff<B>>::load(&config, &weights, Dtype::F32, Dtype::F32, device)?
        }
        None => Transformer::<Autodiff<B>>::init(&config, INIT_STD, device),
    };
    let parameters = model.num_params();
    println!(
        "{parameters} parameters, {:?}, {} x {} tokens",
        options.device, options.batch, options.length
    );

    let mut optimizer = AdamWConfig::new()
        .with_beta_2(0.98)
        .with_epsilon(1e-8)
        .with_weight_decay(options.weight_decay)
        .init();
    let schedule = Schedule {
        steps: options.steps,
        time: Duration::from_secs_f64(options.minutes * 60.0),
        warmup_steps: options.warmup,
        peak: options.lr,
    };
    let shape = BatchShape {
        rows: options.batch,
        length: options.length,
        long_every: options.long_every,
        corpus: |mixture, seed, index| conversation(mixture, seed, Split::Train, index),
    };
    let shards = Shards::new(match (options.device, options.shards) {
        (DeviceKind::Cpu, 0) => std::thread::available_parallelism().map_or(1, |n| n.get()),
        (DeviceKind::Cpu, shards) => shards,
        (DeviceKind::Cuda | DeviceKind::Vulkan, _) => 1,
    })?;
    let mut batches = Batches::start(crate::TOKENIZER_JSON, shape, options.seed, options.workers);
    let mut curve = Curve::create(options)?;
    let started = Instant::now();
    let mut next_check = Duration::from_secs_f64(options.every * 60.0);
    let mut step = 0;
    while schedule.progress(step, started.elapsed()) < 1.0 {
        let batch = batches.next()?;
        let rate = schedule.learning_rate(step, started.elapsed());
        let (loss, mut gradients) = shards.gradients(&model, batch, device, |model, part| {
            loss(model, &config, part, options.device, device)
        });
        clip::<Autodiff<B>, _>(&model, &mut gradients, options.clip);
        model = optimizer.step(rate, model, gradients);
        step += 1;
        if step.is_multiple_of(REPORT_EVERY) || step <= 3 {
            let loss = f64::from(loss.into_data().convert::<f32>().iter::<f32>().sum::<f32>());
            ensure!(
                loss.is_finite(),
                "the loss is {loss} at step {step}: use a lower --lr"
            );
            curve.push(step, started.elapsed(), rate, loss)?;
        }
        if started.elapsed() >= next_check && schedule.progress(step, started.elapsed()) < 0.95 {
            next_check = started.elapsed() + Duration::from_secs_f64(options.every * 60.0);
            let model = model.valid();
            let run = curve.run(parameters, step, started.elapsed());
            save(options, &config, &model, &run)?;
            let quick = options.prompts.div_ceil(4);
            let grid = Grid::of(options, 32);
            let report = evaluate(&model, &config, &encoder, device, quick, grid)?;
            println!("after {step} steps:\n{}", table(&report));
        }
    }
    let run = curve.run(parameters, step, started.elapsed());
    println!("{step} steps, {} tokens, {:.0} s", run.tokens, run.seconds);
    save(options, &config, &model.valid(), &run)?;
    drop((model, optimizer));
    measure::<B>(&options.out, options, device)
}

/// Writes the checkpoint and the record of the run so far.
fn save<B: Backend>(
    options: &TrainOptions,
    config: &ModelConfig,
    model: &Transformer<B>,
    run: &Run,
) -> Result<()> {
    checkpoint::save(&options.out, &options.shape, &model.export(config))?;
    let record = Record {
        options: options.clone(),
        run: run.clone(),
    };
    checkpoint::write_json(&options.out.join(RECORD), &record)
}

/// The mean negative log-likelihood of the answers' tokens, or the share of a part of a batch in
/// it.
pub fn loss<B: Backend>(
    model: &Transformer<Autodiff<B>>,
    config: &ModelConfig,
    batch: &Batch,
    kind: DeviceKind,
    device: &B::Device,
) -> Tensor<Autodiff<B>, 1> {
    let length = batch.tokens.len() / batch.rows;
    let ints = |values: Vec<i32>| {
        let size = values.len();
        Tensor::<Autodiff<B>, 1, Int>::from_data(TensorData::new(values, [size]), device)
    };
    let tokens = ints(batch.tokens.clone());
    let embedded = match kind {
        DeviceKind::Cpu => model.embedding.val().select(0, tokens),
        DeviceKind::Cuda | DeviceKind::Vulkan => {
            one_hot(tokens, config.vocab_size).matmul(model.embedding.val())
        }
    };
    let hidden = model.hidden_dense(config, embedded, length);
    // On the CPU only the tokens that are learnt from are projected, a third of all. On a GPU it is
    // cheaper to keep the shapes of all steps the same.
    let (hidden, targets, weights) = match kind {
        DeviceKind::Cpu => {
            let learnt = |i: &usize| batch.weights[*i] != 0.0;
            let rows: Vec<usize> = (0..batch.weights.len()).filter(learnt).collect();
            let targets: Vec<i32> = rows.iter().map(|&i| batch.targets[i]).collect();
            let weights: Vec<f32> = rows.iter().map(|&i| batch.weights[i]).collect();
            let rows = ints(rows.iter().map(|&i| i as i32).collect());
            (hidden.select(0, rows), targets, weights)
        }
        DeviceKind::Cuda | DeviceKind::Vulkan => {
            (hidden, batch.targets.clone(), batch.weights.clone())
        }
    };
    let size = targets.len();
    let weights = Tensor::<Autodiff<B>, 1>::from_data(TensorData::new(weights, [size]), device);
    let log_probabilities = log_softmax(model.logits_dense(config, hidden), 1);
    let chosen = log_probabilities.gather(1, ints(targets).reshape([size, 1]));
    (chosen.reshape([size]) * weights).sum().neg() / batch.learnt.max(1) as f64
}

/// Rows of zeros with a one at each token, `[tokens, vocab]`. Burn's own function reads its input
/// back to check it.
fn one_hot<B: Backend>(tokens: Tensor<B, 1, Int>, vocab: usize) -> Tensor<B, 2> {
    let [size] = tokens.dims();
    let ids = Tensor::<B, 1, Int>::arange(0..vocab as i64, &tokens.device());
    let ids = ids.reshape([1, vocab]).expand([size, vocab]);
    tokens
        .reshape([size, 1])
        .expand([size, vocab])
        .equal(ids)
        .float()
}

/// The loss curve: a CSV file and, with fewer points, the table of the model card.
struct Curve {
    file: BufWriter<File>,
    per_step: u64,
    points: Vec<Point>,
    last: (u64, Duration),
}

impl Curve {
    fn create(options: &TrainOptions) -> Result<Self> {
        let path = options.out.join("loss.csv");
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut file = BufWriter::new(file);
        writeln!(file, "step,seconds,tokens,learning_rate,loss")?;
        let per_step = (options.batch * options.length) as u64;
        Ok(Self {
            file,
            per_step,
            points: Vec::new(),
            last: (0, Duration::ZERO),
        })
    }

    fn push(&mut self, step: u64, elapsed: Duration, rate: f64, loss: f64) -> Result<()> {
        let (seconds, tokens) = (elapsed.as_secs_f64(), step * self.per_step);
        let since = (elapsed - self.last.1).as_secs_f64().max(1e-9);
        let speed = ((step - self.last.0) * self.per_step) as f64 / since;
        self.last = (step, elapsed);
        writeln!(
            self.file,
            "{step},{seconds:.1},{tokens},{rate:.6},{loss:.5}"
        )?;
        self.file.flush()?;
        println!(
            "step {step:>6}  {seconds:>6.0} s  loss {loss:.4}  lr {rate:.5}  {speed:.0} tokens/s"
        );
        self.points.push(Point { step, tokens, loss });
        Ok(())
    }

    /// The run up to `step`.
    fn run(&self, parameters: usize, step: u64, elapsed: Duration) -> Run {
        Run {
            parameters,
            steps: step,
            tokens: step * self.per_step,
            seconds: elapsed.as_secs_f64(),
            curve: self.points.clone(),
        }
    }
}
