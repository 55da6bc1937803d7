//! `hearth bench`: measures the speed of prefill and decode, without HTTP, scheduler or
//! sampling. A device that samples tokens itself takes the likeliest ones, so that no logits are
//! copied to the host, as when it serves.

mod bandwidth;
mod breakdown;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hearth_api::served::ModelInfo;
use hearth_forward::{
    Executor, ForwardBatch, ForwardOutput, SampleParams, SampleRequest, SequenceSpan,
};
use hearth_model::progress::counting_bar;
use serde::Serialize;

use breakdown::Breakdown;

use crate::cli::BenchArgs;
use crate::config::Config;
use crate::load;

/// The measurement that is made for each batch size.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Tokens before each prompt, which all sequences share.
    pub context: u32,
    pub prompt_tokens: u32,
    pub decode_tokens: u32,
    /// Prompt tokens per forward pass.
    pub chunk: u32,
    pub repeats: u32,
}

/// The results for one batch size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub batch: u32,
    pub context: u32,
    pub prompt_tokens: u32,
    pub decode_tokens: u32,
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
    /// Percentage of the memory bandwidth that is needed to read the weights once per decode
    /// step. Only on the CPU, where this process can measure the bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_percent: Option<f64>,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    version: &'static str,
    model: &'a ModelInfo,
    load_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_gb_per_s: Option<f64>,
    results: &'a [Row],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    breakdown: &'a [Breakdown],
}

/// Loads the model, measures every batch size, and prints the results.
///
/// # Errors
/// The model does not load, the sizes do not fit it, or a forward pass fails.
pub fn run(args: &BenchArgs) -> Result<()> {
    let mut config = Config::resolve_quiet(args.file.config.as_deref(), &args.flags)?;
    let _logs = hearth_otel::init_logs(config.log_format.into(), &config.log_level)?;
    let per_sequence = args.prompt_tokens as usize + args.decode_tokens as usize;
    let context = args.context as usize;
    let largest = args.batch.iter().copied().max().unwrap_or(1);
    let slots = context + largest as usize * per_sequence;
    config.kv_tokens.get_or_insert(slots);
    // The batches of this command have no window slots.
    config.swa_full_tokens_ratio = 1.0;
    let started = Instant::now();
    let checkpoint = load::open(&config)?;
    let (mut executor, info) = load::executor(&config, checkpoint, None, Default::default())?;
    let load_seconds = started.elapsed().as_secs_f64();
    let on_cpu = info.device.starts_with("cpu");
    ensure!(
        on_cpu || !args.breakdown,
        "--breakdown only works on the CPU, but the device is {}",
        info.device
    );
    let limits = executor.limits();
    ensure!(
        context + per_sequence <= limits.max_model_len,
        "--context + --prompt-tokens + --decode-tokens must be at most {} (the context length), given {}",
        limits.max_model_len,
        context + per_sequence
    );
    ensure!(
        slots <= limits.kv_slots,
        "--batch {largest} needs {slots} KV slots, but the cache has {} (--kv-tokens)",
        limits.kv_slots
    );
    let plan = Plan {
        context: args.context,
        prompt_tokens: args.prompt_tokens,
        decode_tokens: args.decode_tokens,
        chunk: u32::try_from(config.prefill_chunk).unwrap_or(u32::MAX),
        repeats: args.repeats,
    };
    // Measured after loading, so that the weights' pages are resident, and before the first round,
    // which is not counted and refills the CPU's caches.
    let bytes_per_s = on_cpu.then(bandwidth::read_bytes_per_second);
    let (mut rows, mut breakdowns) = (Vec::new(), Vec::new());
    let bar = counting_bar("measured batch sizes");
    bar.set_length(args.batch.len() as u64);
    for &batch in &args.batch {
        // A terminal shows it from the beginning; where standard error is none, there is no bar.
        bar.tick();
        let mut row = measure(&mut executor, plan, batch)?;
        row.bandwidth_percent = bytes_per_s.map(|limit| {
            let steps_per_s = row.decode_tokens_per_s / f64::from(batch);
            100.0 * steps_per_s * info.weight_bytes as f64 / limit
        });
        rows.push(row);
        if args.breakdown {
            breakdowns.extend(breakdown::measure(&mut executor, plan, batch)?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            model: &info,
            load_seconds,
            read_gb_per_s: bytes_per_s.map(|bytes| bytes / 1e9),
            results: &rows,
            breakdown: &breakdowns,
        };
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", table(&info, load_seconds, bytes_per_s, &rows));
        for breakdown in &breakdowns {
            print!("{}", breakdown::table(breakdown));
        }
    }
    Ok(())
}

fn table(info: &ModelInfo, load_seconds: f64, bytes_per_s: Option<f64>, rows: &[Row]) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "{} ({}, {}) on {}, loaded in {load_seconds:.1} s\n",
        info.model_path,
        info.architecture,
        info.formats(),
        info.device
    );
    // Writing to a string does not fail.
    if let Some(bytes) = bytes_per_s {
        let _ = writeln!(out, "memory reads {:.1} GB/s", bytes / 1e9);
    }
    let _ = writeln!(
        out,
        "{:>6} {:>8} {:>8} {:>8} {:>16} {:>16} {:>12}",
        "batch", "context", "prompt", "decode", "prefill tok/s", "decode tok/s", "% bandwidth"
    );
    for row in rows {
        let percent = row
            .bandwidth_percent
            .map_or("-".to_owned(), |percent| format!("{percent:.0}"));
        let _ = writeln!(
            out,
            "{:>6} {:>8} {:>8} {:>8} {:>16.1} {:>16.1} {:>12}",
            row.batch,
            row.context,
            row.prompt_tokens,
            row.decode_tokens,
            row.prefill_tokens_per_s,
            row.decode_tokens_per_s,
            percent
        );
    }
    out
}

/// Measures one batch size. The results are medians over the repeats, after one round of warm-up.
///
/// # Errors
/// A forward pass fails.
pub fn measure(executor: &mut impl Executor, plan: Plan, batch: u32) -> Result<Row> {
    fill_context(executor, plan)?;
    let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
    for round in 0..=plan.repeats {
        let mut sequences = Sequences::new(plan, batch, executor);
        let prefill = time(|| sequences.prefill(executor, plan, &mut drop))?;
        let decode = time(|| sequences.decode(executor, plan.decode_tokens, &mut drop))?;
        if round > 0 {
            prefills.push(prefill);
            decodes.push(decode);
        }
    }
    let rate = |tokens: u32, times: &mut Vec<Duration>| {
        times.sort();
        f64::from(batch) * f64::from(tokens) / times[times.len() / 2].as_secs_f64()
    };
    Ok(Row {
        batch,
        context: plan.context,
        prompt_tokens: plan.prompt_tokens,
        decode_tokens: plan.decode_tokens,
        prefill_tokens_per_s: rate(plan.prompt_tokens, &mut prefills),
        decode_tokens_per_s: rate(plan.decode_tokens, &mut decodes),
        bandwidth_percent: None,
    })
}

fn time(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// `batch` sequences with the same context. It has the first KV slots, and each sequence has its own
/// behind them.
struct Sequences {
    batch: u32,
    /// Tokens of the context.
    context: u32,
    /// Slots per sequence: sequence `s` has those from `context + s * stride` on.
    stride: u32,
    /// Tokens of each sequence after the context that are computed, with their KV in the pool.
    length: u32,
    vocab: u32,
    /// Whether the executor samples tokens on its device.
    samples: bool,
}

impl Sequences {
    fn new(plan: Plan, batch: u32, executor: &impl Executor) -> Self {
        Self {
            batch,
            context: plan.context,
            stride: plan.prompt_tokens + plan.decode_tokens,
            length: 0,
            vocab: u32::try_from(executor.limits().vocab_size).unwrap_or(u32::MAX),
            samples: executor.samples_on_device(),
        }
    }

    /// Computes the prompts one after the other in chunks, as the engine does. `take` receives
    /// the output of each forward pass.
    fn prefill(
        &mut self,
        executor: &mut impl Executor,
        plan: Plan,
        take: &mut dyn FnMut(ForwardOutput),
    ) -> Result<()> {
        for sequence in 0..self.batch {
            let mut done = 0;
            while done < plan.prompt_tokens {
                let tokens = plan.chunk.min(plan.prompt_tokens - done);
                let mut forward = ForwardBatch::default();
                self.append(&mut forward, sequence, done, tokens);
                if done + tokens < plan.prompt_tokens {
                    forward.logit_rows.clear();
                    forward.sample_rows.clear();
                }
                take(compute(executor, &forward)?);
                done += tokens;
            }
        }
        self.length = plan.prompt_tokens;
        Ok(())
    }

    /// Computes one token of every sequence per step.
    fn decode(
        &mut self,
        executor: &mut impl Executor,
        steps: u32,
        take: &mut dyn FnMut(ForwardOutput),
    ) -> Result<()> {
        for _ in 0..steps {
            let mut forward = ForwardBatch::default();
            for sequence in 0..self.batch {
                self.append(&mut forward, sequence, self.length, 1);
            }
            take(compute(executor, &forward)?);
            self.length += 1;
        }
        Ok(())
    }

    /// Adds the tokens `from .. from + tokens` of `sequence`, counted from the end of the context, to
    /// the batch, with a sample or the logits after the last one.
    fn append(&self, forward: &mut ForwardBatch, sequence: u32, from: u32, tokens: u32) {
        let first_slot = self.context + sequence * self.stride;
        forward.sequences.push(SequenceSpan {
            tokens,
            context: self.context + from + tokens,
            first_slot: forward.slot_table.len() as u32,
        });
        for position in from..from + tokens {
            // The tokens do not matter; a large prime factor makes them differ.
            forward
                .tokens
                .push(sequence.wrapping_add(position.wrapping_mul(7919)) % self.vocab);
            forward.positions.push(self.context + position);
            forward.write_slots.push(first_slot + position);
        }
        forward.slot_table.extend(0..self.context);
        forward
            .slot_table
            .extend(first_slot..first_slot + from + tokens);
        let rows = match self.samples {
            true => &mut forward.sample_rows,
            false => &mut forward.logit_rows,
        };
        rows.push(forward.tokens.len() as u32 - 1);
    }
}

/// Fills the slots of the context. Only its first chunk is computed, and the slots of the others have
/// copies of its keys and values where the executor can copy them: speed does not depend on the
/// values, and to compute a long context takes a CPU minutes.
fn fill_context(executor: &mut impl Executor, plan: Plan) -> Result<()> {
    let computed = match executor.kv_token_bytes() {
        0 => plan.context,
        _ => plan.chunk.min(plan.context),
    };
    let context = Plan {
        context: 0,
        prompt_tokens: computed,
        ..plan
    };
    Sequences::new(context, 1, executor).prefill(executor, context, &mut drop)?;
    let chunks = (computed..plan.context).step_by(computed.max(1) as usize);
    for from in chunks {
        let to: Vec<u32> = (from..plan.context.min(from + computed)).collect();
        let copied: Vec<u32> = (0..to.len() as u32).collect();
        let bytes = executor.read_kv(&copied)?;
        executor.write_kv(&to, &bytes)?;
    }
    Ok(())
}

fn compute(executor: &mut impl Executor, forward: &ForwardBatch) -> Result<ForwardOutput> {
    let greedy = SampleRequest::Token(SampleParams::GREEDY);
    let mut requests = || vec![greedy.clone(); forward.sample_rows.len()];
    Ok(executor.forward(forward, &mut requests)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_forward::{ExecutorLimits, ForwardError, SampleRequests};

    /// Checks that every batch is consistent, and counts tokens, passes and output rows.
    #[derive(Default)]
    struct Checker {
        /// True for an executor that can copy keys and values.
        copies: bool,
        filled: std::collections::HashSet<u32>,
        tokens: usize,
        forwards: usize,
        samples: bool,
        sampled: usize,
        logits: usize,
    }

    impl Executor for Checker {
        type Submission = ForwardOutput;

        fn limits(&self) -> ExecutorLimits {
            ExecutorLimits {
                kv_slots: 64,
                max_model_len: 64,
                vocab_size: 10,
            }
        }

        fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
            Ok(output)
        }

        fn submit(
            &mut self,
            batch: &ForwardBatch,
            _: &mut SampleRequests<'_>,
        ) -> Result<ForwardOutput, ForwardError> {
            assert!(batch.tokens.iter().all(|&token| token < 10));
            self.filled.extend(&batch.write_slots);
            let mut end = 0;
            for sequence in &batch.sequences {
                let from = sequence.first_slot as usize;
                let slots = &batch.slot_table[from..from + sequence.context as usize];
                assert!(
                    slots.iter().all(|slot| self.filled.contains(slot)),
                    "a slot of the context was never written"
                );
                end += sequence.tokens as usize;
                let last = end - 1;
                assert_eq!(batch.positions[last] + 1, sequence.context);
                assert_eq!(slots.last(), Some(&batch.write_slots[last]));
            }
            self.tokens += batch.tokens.len();
            self.sampled += batch.sample_rows.len();
            self.logits += batch.logit_rows.len();
            self.forwards += 1;
            Ok(ForwardOutput {
                logits: vec![0.0; batch.logit_rows.len() * 10],
                ..ForwardOutput::default()
            })
        }

        fn samples_on_device(&self) -> bool {
            self.samples
        }

        fn kv_token_bytes(&self) -> usize {
            usize::from(self.copies)
        }

        fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
            assert!(slots.iter().all(|slot| self.filled.contains(slot)));
            Ok(vec![0; slots.len()])
        }

        fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
            assert_eq!(slots.len(), bytes.len());
            let before = self.filled.len();
            self.filled.extend(slots);
            assert_eq!(self.filled.len(), before + slots.len(), "written twice");
            Ok(())
        }
    }

    #[test]
    fn sequences_share_a_context_that_is_computed_or_copied_once() {
        let plan = Plan {
            context: 17,
            prompt_tokens: 5,
            decode_tokens: 3,
            chunk: 4,
            repeats: 2,
        };
        for (copies, computed) in [(false, 17), (true, 4)] {
            let mut checker = Checker {
                copies,
                ..Checker::default()
            };
            let row = measure(&mut checker, plan, 4).unwrap();
            // Beside the context, three rounds of 4 * (5 + 3) tokens.
            assert_eq!((row.context, checker.tokens), (17, computed + 96));
            assert_eq!(checker.filled.len(), 17 + 32);
        }
    }

    #[test]
    fn every_token_is_computed_once_per_round_and_sees_the_tokens_before_it() {
        let plan = Plan {
            context: 0,
            prompt_tokens: 5,
            decode_tokens: 3,
            chunk: 2,
            repeats: 2,
        };
        let mut checker = Checker::default();
        let row = measure(&mut checker, plan, 4).unwrap();
        // Three rounds, one of them for warm-up: 4 * (5 + 3) tokens each, in 4 * 3 chunks and 3 steps.
        assert_eq!((checker.tokens, checker.forwards), (96, 45));
        assert_eq!(checker.filled.len(), 32);
        assert!(row.prefill_tokens_per_s > 0.0 && row.decode_tokens_per_s > 0.0);
        // In each round one row per prompt, and one per sequence and step.
        assert_eq!((checker.logits, checker.sampled), (48, 0));
    }

    #[test]
    fn a_device_that_samples_is_asked_for_tokens_and_not_for_logits() {
        let plan = Plan {
            context: 0,
            prompt_tokens: 5,
            decode_tokens: 3,
            chunk: 2,
            repeats: 2,
        };
        let mut checker = Checker {
            samples: true,
            ..Checker::default()
        };
        measure(&mut checker, plan, 4).unwrap();
        assert_eq!((checker.logits, checker.sampled), (0, 48));
    }

    #[test]
    fn a_breakdown_counts_every_sampled_row_and_its_parts_add_up() {
        let plan = Plan {
            context: 0,
            prompt_tokens: 5,
            decode_tokens: 3,
            chunk: 2,
            repeats: 1,
        };
        let [prefill, decode] = breakdown::measure(&mut Checker::default(), plan, 4).unwrap();
        // One row per prompt, and one per sequence in a decode step.
        for (breakdown, steps, rows) in [(prefill, 4, 1.0), (decode, 3, 4.0)] {
            assert_eq!(breakdown.steps, steps);
            let of = |part: &breakdown::Part| part.name.starts_with("sampling");
            let sampling = breakdown.parts.iter().find(|part| of(part)).unwrap();
            assert_eq!(sampling.calls, rows, "{}", breakdown.phase);
            // Other tests in this process may add their kernels.
            let sum: f64 = breakdown.parts.iter().map(|part| part.milliseconds).sum();
            assert!(sum >= breakdown.milliseconds - 1e-6, "{breakdown:?}");
            assert!(breakdown::table(&breakdown).contains(breakdown.phase));
        }
    }
}
