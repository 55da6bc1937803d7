//! The periodic statistics line in the log, in the format of vLLM or SGLang, which log
//! scrapers parse.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::instruments::EngineSnapshot;
use crate::records::StepRecord;

/// The format of the statistics line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsLog {
    /// vLLM's line at a fixed interval, unless the engine is idle.
    Vllm,
    /// SGLang's line for each prefill batch, and every given number of decode steps.
    Sglang,
    Off,
}

/// Requests that the hit rate in vLLM's line covers: the latest ones.
const HIT_RATE_REQUESTS: u64 = 1000;

/// Makes statistics lines from steps and snapshots.
#[derive(Debug)]
pub struct StatsLogger {
    style: StatsLog,
    interval: Duration,
    decode_interval: u64,
    device: &'static str,
    /// The snapshot at vLLM's previous line.
    last: Option<(Instant, EngineSnapshot)>,
    /// Started requests, queried tokens and cached tokens of the last steps that started
    /// requests.
    hits: VecDeque<(u64, u64, u64)>,
    decode_steps: u64,
    /// The time of SGLang's previous decode line, and the value of `generated` then.
    decode_since: Option<(Instant, u64)>,
    generated: u64,
}

impl StatsLogger {
    pub fn new(
        style: StatsLog,
        interval: Duration,
        decode_interval: u64,
        device: &'static str,
    ) -> Self {
        Self {
            style,
            interval,
            decode_interval: decode_interval.max(1),
            device,
            last: None,
            hits: VecDeque::new(),
            decode_steps: 0,
            decode_since: None,
            generated: 0,
        }
    }

    /// Adds `step`, and returns SGLang's line if this step gets one.
    pub fn step(&mut self, step: &StepRecord) -> Option<String> {
        if step.started_requests > 0 && step.queried_tokens > 0 {
            self.hits.push_back((
                step.started_requests,
                step.queried_tokens,
                step.cached_tokens,
            ));
            let mut requests: u64 = self.hits.iter().map(|hit| hit.0).sum();
            while requests > HIT_RATE_REQUESTS && self.hits.len() > 1 {
                requests -= self.hits.pop_front().map_or(0, |hit| hit.0);
            }
        }
        if self.style != StatsLog::Sglang {
            return None;
        }
        let (running, queued, usage) = (step.running, step.waiting, step.kv_usage);
        if step.prefill_rows > 0 {
            let (sequences, tokens) = (step.started_requests, step.prefill_tokens);
            let cached = step.cached_tokens;
            let seconds = step.finished.duration_since(step.started).as_secs_f64();
            let throughput = tokens as f64 / seconds.max(1e-9);
            return Some(format!(
                "Prefill batch, #new-seq: {sequences}, #new-token: {tokens}, #cached-token: \
                 {cached}, token usage: {usage:.2}, #running-req: {running}, #queue-req: {queued}, \
                 input throughput (token/s): {throughput:.2}"
            ));
        }
        self.decode_steps += 1;
        self.generated += step.tokens as u64;
        let (since, before) = *self.decode_since.get_or_insert((step.started, 0));
        if !self.decode_steps.is_multiple_of(self.decode_interval) {
            return None;
        }
        let seconds = step.finished.duration_since(since).as_secs_f64();
        let throughput = (self.generated - before) as f64 / seconds.max(1e-9);
        self.decode_since = Some((step.finished, self.generated));
        let tokens = step.kv_used;
        Some(format!(
            "Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2}, \
             cuda graph: False, gen throughput (token/s): {throughput:.2}, #queue-req: {queued}"
        ))
    }

    /// Returns vLLM's line if its interval is over and the engine was not idle.
    pub fn tick(&mut self, now: Instant, snapshot: &EngineSnapshot) -> Option<String> {
        if self.style != StatsLog::Vllm {
            return None;
        }
        let (since, before) = *self.last.get_or_insert((now, *snapshot));
        let elapsed = now.duration_since(since);
        if elapsed < self.interval {
            return None;
        }
        self.last = Some((now, *snapshot));
        let computed = |s: &EngineSnapshot| s.prompt_tokens - s.cached_tokens;
        let prompts = computed(snapshot).saturating_sub(computed(&before));
        let generated = snapshot
            .generated_tokens
            .saturating_sub(before.generated_tokens);
        let idle = prompts + generated == 0 && snapshot.running + snapshot.waiting == 0;
        if idle {
            return None;
        }
        let per_second = |tokens: u64| tokens as f64 / elapsed.as_secs_f64();
        let mut line = format!(
            "Engine 000: Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {:.1} \
             tokens/s, Running: {} reqs, Waiting: {} reqs, ",
            per_second(prompts),
            per_second(generated),
            snapshot.running,
            snapshot.waiting,
        );
        let preemptions = snapshot.preemptions - before.preemptions;
        if preemptions > 0 {
            line += &format!("Preemptions: {preemptions}, ");
        }
        line += &format!(
            "{} KV cache usage: {:.1}%",
            self.device,
            snapshot.kv_usage() * 100.0
        );
        let queried: u64 = self.hits.iter().map(|hit| hit.1).sum();
        if queried > 0 {
            let found: u64 = self.hits.iter().map(|hit| hit.2).sum();
            let rate = found as f64 / queried as f64 * 100.0;
            line += &format!(", Prefix cache hit rate: {rate:.1}%");
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(prefill_rows: usize) -> StepRecord {
        let now = Instant::now();
        StepRecord {
            finished: now + Duration::from_millis(10),
            tokens: 2 + 8 * prefill_rows,
            prefill_rows,
            prefill_tokens: 8 * prefill_rows,
            decode_rows: 2,
            started_requests: prefill_rows as u64,
            queried_tokens: 16 * prefill_rows as u64,
            cached_tokens: 8 * prefill_rows as u64,
            running: 2,
            waiting: 1,
            kv_used: 25,
            kv_usage: 0.25,
            ..StepRecord::empty(now)
        }
    }

    #[test]
    fn vllms_line_is_written_at_its_interval_but_not_when_idle() {
        let second = Duration::from_secs(1);
        let mut log = StatsLogger::new(StatsLog::Vllm, 10 * second, 40, "CPU");
        let start = Instant::now();
        let busy = EngineSnapshot {
            running: 2,
            prompt_tokens: 200,
            cached_tokens: 100,
            generated_tokens: 50,
            kv_total: 100,
            kv_held: 25,
            ..EngineSnapshot::default()
        };
        assert_eq!(log.step(&step(1)), None);
        assert_eq!(log.tick(start, &EngineSnapshot::default()), None);
        assert_eq!(log.tick(start + 9 * second, &busy), None);
        assert_eq!(
            log.tick(start + 10 * second, &busy).unwrap(),
            "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 \
             tokens/s, Running: 2 reqs, Waiting: 0 reqs, CPU KV cache usage: 25.0%, Prefix cache \
             hit rate: 50.0%"
        );
        let idle = EngineSnapshot {
            running: 0,
            kv_held: 0,
            ..busy
        };
        assert_eq!(log.tick(start + 20 * second, &idle), None);
    }

    #[test]
    fn sglangs_line_is_written_for_each_prefill_batch_and_at_an_interval_of_decode_steps() {
        let mut log = StatsLogger::new(StatsLog::Sglang, Duration::from_secs(10), 2, "CPU");
        let line = log.step(&step(1)).unwrap();
        assert!(
            line.starts_with(
                "Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 8, token usage: 0.25, \
                 #running-req: 2, #queue-req: 1, "
            ),
            "{line}"
        );
        assert_eq!(log.step(&step(0)), None);
        let line = log.step(&step(0)).unwrap();
        assert!(
            line.starts_with("Decode batch, #running-req: 2, #token: 25, "),
            "{line}"
        );
        assert!(line.contains("gen throughput (token/s): ") && line.ends_with("#queue-req: 1"));
    }
}
