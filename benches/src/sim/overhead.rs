//! How long the device waits for the engine between two steps.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hearth_engine::{Engine, EngineConfig, PauseMode, Request, SamplingParams};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequests,
};

/// A small vocabulary, so that sampling is a small part of the measured time.
const VOCAB: usize = 64;

/// An executor that computes nothing. It measures how long it waits between two forward passes.
struct Gaps {
    limits: ExecutorLimits,
    /// How long a forward pass takes.
    takes: Duration,
    gaps: Arc<Mutex<Vec<Duration>>>,
    last: Option<Instant>,
    /// The first forward pass lasts until this receives a message or its sender is dropped.
    hold: Option<Receiver<()>>,
}

impl Executor for Gaps {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        let gap = self.last.map(|last| last.elapsed());
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.extend(gap);
        drop(gaps);
        if let Some(hold) = self.hold.take() {
            let _ = hold.recv();
        }
        if !self.takes.is_zero() {
            // The thread sleeps, like one that waits for a device.
            std::thread::sleep(self.takes);
        }
        let output = ForwardOutput {
            logits: vec![0.0; batch.logit_rows.len() * VOCAB],
            ..ForwardOutput::default()
        };
        self.last = Some(Instant::now());
        Ok(output)
    }
}

/// The time between two forward passes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    pub median: f64,
    pub p99: f64,
    pub worst: f64,
    /// The time before the first step that follows the arrival of the waiting requests.
    pub first: f64,
}

/// Measures 400 steps, each of which takes the device the time `takes`. In each of them `running`
/// requests decode with `context` tokens of context. Meanwhile `waiting` other requests find no
/// room; half of these share a prefix of 500 tokens.
///
/// # Errors
/// If the engine does not come up, or refuses a request.
pub fn measure(
    mut config: EngineConfig,
    running: usize,
    waiting: usize,
    context: usize,
    takes: Duration,
) -> anyhow::Result<Overhead> {
    const STEPS: usize = 400;
    config.max_running = running;
    config.max_queue = running + waiting + 1;
    // All running requests start in the first step.
    config.max_batch_tokens = running * context;
    config.prefill_chunk = context;
    let (release, hold) = channel();
    let gaps = Arc::new(Mutex::new(Vec::new()));
    let executor = Gaps {
        limits: ExecutorLimits {
            kv_slots: 4 * running * (context + STEPS) + 1_000_000,
            max_model_len: 1 << 20,
            vocab_size: VOCAB,
        },
        takes,
        gaps: Arc::clone(&gaps),
        last: None,
        hold: Some(hold),
    };
    let engine = Engine::spawn(config, move || Ok(executor))?;
    engine.pause(PauseMode::InPlace).wait_blocking()?;
    let mut seed = 1_u64;
    let mut tokens = |len: usize| -> Vec<u32> {
        (0..len)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                (seed >> 33) as u32 % VOCAB as u32
            })
            .collect()
    };
    let submit = |prompt: Vec<u32>, max_tokens| {
        engine.submit(Request {
            prompt,
            params: SamplingParams {
                max_tokens,
                temperature: 0.0,
                ..SamplingParams::default()
            },
            // No policy may preempt the running requests.
            priority: i32::try_from(max_tokens).unwrap_or(i32::MAX),
            ..Request::default()
        })
    };
    let decoding = (0..running)
        .map(|_| submit(tokens(context), STEPS))
        .collect::<Result<Vec<_>, _>>()?;
    engine.resume().wait_blocking()?;
    while engine.stats().running < running {
        std::thread::yield_now();
    }
    let shared = tokens(500);
    let queued = (0..waiting)
        .map(|i| match i % 2 {
            0 => submit([&shared[..], &tokens(100)].concat(), 1),
            _ => submit(tokens(600), 1),
        })
        .collect::<Result<Vec<_>, _>>()?;
    drop(release);
    for mut generation in decoding {
        while generation.next_blocking().is_some() {}
    }
    drop(queued);
    engine.shutdown(Duration::ZERO);
    let gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((first, steps)) = gaps.get(..STEPS - 1).and_then(<[_]>::split_first) else {
        anyhow::bail!("only {} of {STEPS} steps were seen", gaps.len());
    };
    let mut steps = steps.to_vec();
    steps.sort_unstable();
    let at = |share: f64| steps[((steps.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    Ok(Overhead {
        median: at(0.5),
        p99: at(0.99),
        worst: at(1.0),
        first: first.as_secs_f64() * 1e6,
    })
}
