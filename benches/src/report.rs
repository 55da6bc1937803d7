//! Rates and percentiles of a run.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::cli::Cli;
use crate::load::{Run, Sample};

/// The summary of a run. Times are in milliseconds; rates are tokens per second of the whole run.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub requests: usize,
    pub failed: usize,
    pub concurrency: u32,
    pub elapsed_s: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
    /// Time to the first token.
    pub ttft_ms: Percentiles,
    /// Mean time per output token after the first, per request.
    pub tpot_ms: Percentiles,
    /// Time between chunks, over all requests.
    pub itl_ms: Percentiles,
}

/// Percentiles of times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Percentiles {
    fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = times
            .into_iter()
            .map(|time| time.as_secs_f64() * 1e3)
            .collect();
        ms.sort_by(f64::total_cmp);
        // Nearest rank, so that each percentile is a measured value.
        let at = |share: f64| {
            let rank = (share * ms.len() as f64).ceil() as usize;
            ms.get(rank.max(1) - 1).copied().unwrap_or(0.0)
        };
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
        }
    }
}

impl Summary {
    /// Summarises `run`.
    pub fn of(cli: &Cli, run: &Run) -> Self {
        let sum = |tokens: fn(&Sample) -> u64| run.samples.iter().map(tokens).sum::<u64>();
        let prompt_tokens = sum(|sample| sample.prompt_tokens);
        let output_tokens = sum(|sample| sample.output_tokens);
        let elapsed_s = run.elapsed.as_secs_f64();
        let tpot = |sample: &Sample| {
            let after_first = u32::try_from(sample.output_tokens).ok()?.checked_sub(1)?;
            (sample.last_token - sample.first_token).checked_div(after_first)
        };
        Self {
            requests: run.samples.len(),
            failed: run.errors.len(),
            concurrency: cli.concurrency,
            elapsed_s,
            prompt_tokens,
            cached_tokens: sum(|sample| sample.cached_tokens),
            output_tokens,
            output_tokens_per_s: output_tokens as f64 / elapsed_s,
            total_tokens_per_s: (prompt_tokens + output_tokens) as f64 / elapsed_s,
            ttft_ms: Percentiles::of(run.samples.iter().map(|sample| sample.first_token)),
            tpot_ms: Percentiles::of(run.samples.iter().filter_map(tpot)),
            itl_ms: Percentiles::of(run.samples.iter().flat_map(|sample| sample.gaps.clone())),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} requests, {} failed, {} at a time, {:.2} s",
            self.requests, self.failed, self.concurrency, self.elapsed_s
        )?;
        writeln!(
            f,
            "prompt tokens {} (cached {}), output tokens {}",
            self.prompt_tokens, self.cached_tokens, self.output_tokens
        )?;
        writeln!(
            f,
            "output {:.1} tok/s, total {:.1} tok/s",
            self.output_tokens_per_s, self.total_tokens_per_s
        )?;
        writeln!(f, "{:<8}{:>10}{:>10}{:>10}", "ms", "p50", "p90", "p99")?;
        let rows = [
            ("TTFT", self.ttft_ms),
            ("TPOT", self.tpot_ms),
            ("ITL", self.itl_ms),
        ];
        for (index, (name, p)) in rows.into_iter().enumerate() {
            let end = if index + 1 < rows.len() { "\n" } else { "" };
            write!(
                f,
                "{name:<8}{:>10.1}{:>10.1}{:>10.1}{end}",
                p.p50, p.p90, p.p99
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn percentiles_are_measured_values() {
        let p = Percentiles::of((1..=10).map(Duration::from_millis));
        assert_eq!(
            p,
            Percentiles {
                p50: 5.0,
                p90: 9.0,
                p99: 10.0
            }
        );
        assert_eq!(Percentiles::of([]), Percentiles::default());
    }

    #[test]
    fn the_time_per_output_token_excludes_the_first_token() {
        let ms = Duration::from_millis;
        let sample = Sample {
            prompt_tokens: 10,
            output_tokens: 5,
            first_token: ms(100),
            last_token: ms(140),
            gaps: vec![ms(10); 4],
            ..Sample::default()
        };
        let run = Run {
            samples: vec![sample],
            elapsed: ms(200),
            ..Run::default()
        };
        let summary = Summary::of(&Cli::parse_from(["x"]), &run);
        assert_eq!((summary.tpot_ms.p50, summary.ttft_ms.p50), (10.0, 100.0));
        assert_eq!(summary.output_tokens_per_s, 25.0);
        assert_eq!(summary.total_tokens_per_s, 75.0);
    }
}
