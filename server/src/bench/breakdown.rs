//! `hearth bench --breakdown`: divides the time of prefill and decode on the CPU among the
//! operations of the model.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use hearth_engine::SamplingParams;
use hearth_engine::sampler::SamplerState;
use hearth_forward::{Executor, ForwardOutput};
use hearth_model::cpu_times::{self, Spent};
use serde::Serialize;

use super::{Plan, Sequences, fill_context};

/// The mean times of the operations in one kind of step.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// `prefill`, where a step is a whole prompt, or `decode`.
    pub phase: &'static str,
    pub batch: u32,
    pub steps: u32,
    /// Mean time of a step.
    pub milliseconds: f64,
    pub parts: Vec<Part>,
}

/// One operation. All numbers but the rates are means per step.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    pub name: String,
    pub calls: f64,
    pub milliseconds: f64,
    /// Percentage of the step's time.
    pub percent: f64,
    /// Megabytes of weights, keys and values that the operation reads.
    pub megabytes: f64,
    pub gb_per_s: f64,
    pub gflop_per_s: f64,
}

/// Measures prefill and decode with one batch size and greedy sampling.
///
/// # Errors
/// A forward pass fails.
pub fn measure(executor: &mut impl Executor, plan: Plan, batch: u32) -> Result<[Breakdown; 2]> {
    let mut sequences = Sequences::new(plan, batch, executor);
    fill_context(executor, plan)?;
    let vocab = executor.limits().vocab_size.max(1);
    let prefill = phase("prefill", batch, batch, vocab, |sample| {
        sequences.prefill(executor, plan, sample)
    })?;
    let decode = phase("decode", batch, plan.decode_tokens, vocab, |sample| {
        sequences.decode(executor, plan.decode_tokens, sample)
    })?;
    Ok([prefill, decode])
}

fn phase(
    phase: &'static str,
    batch: u32,
    steps: u32,
    vocab: usize,
    work: impl FnOnce(&mut dyn FnMut(ForwardOutput)) -> Result<()>,
) -> Result<Breakdown> {
    let greedy = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let mut sampler = SamplerState::new(&greedy, &[]);
    let mut sampling = Spent::default();
    let mut sample = |mut output: ForwardOutput| {
        let started = Instant::now();
        for row in output.logits.chunks_exact_mut(vocab) {
            // Neither the token nor a failure to sample one matters here.
            let _ = std::hint::black_box(sampler.sample(row, 0));
            sampling.calls += 1;
        }
        sampling.time += started.elapsed();
    };
    cpu_times::record();
    let started = Instant::now();
    let done = work(&mut sample);
    let total = started.elapsed();
    let spent = cpu_times::recorded();
    done?;
    let mut spent: Vec<(String, Spent)> = spent
        .into_iter()
        .map(|(operation, spent)| (operation.to_string(), spent))
        .collect();
    spent.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.time));
    spent.push(("sampling, greedy".to_owned(), sampling));
    let known: Duration = spent.iter().map(|(_, spent)| spent.time).sum();
    let rest = Spent {
        time: total.saturating_sub(known),
        ..Spent::default()
    };
    spent.push(("the rest".to_owned(), rest));
    let parts = spent.into_iter().map(|(name, spent)| {
        let (seconds, steps) = (spent.time.as_secs_f64(), f64::from(steps));
        let per_second = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds / 1e9,
            false => 0.0,
        };
        Part {
            name,
            calls: spent.calls as f64 / steps,
            milliseconds: 1e3 * seconds / steps,
            percent: 100.0 * seconds / total.as_secs_f64(),
            megabytes: spent.bytes as f64 / 1e6 / steps,
            gb_per_s: per_second(spent.bytes),
            gflop_per_s: per_second(spent.flops),
        }
    });
    Ok(Breakdown {
        phase,
        batch,
        steps,
        milliseconds: 1e3 * total.as_secs_f64() / f64::from(steps),
        parts: parts.collect(),
    })
}

/// Formats the breakdown as a table.
pub fn table(breakdown: &Breakdown) -> String {
    let Breakdown {
        phase,
        batch,
        milliseconds,
        parts,
        ..
    } = breakdown;
    let mut out = format!(
        "\n{phase}, batch {batch}: {milliseconds:.2} ms\n{:<28} {:>7} {:>9} {:>5} {:>8} {:>7} {:>9}\n",
        "a step's", "calls", "ms", "%", "MB", "GB/s", "GFLOP/s"
    );
    for part in parts {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:<28} {:>7.0} {:>9.3} {:>5.1} {:>8.1} {:>7.1} {:>9.1}",
            part.name,
            part.calls,
            part.milliseconds,
            part.percent,
            part.megabytes,
            part.gb_per_s,
            part.gflop_per_s
        );
    }
    out
}
