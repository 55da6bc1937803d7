//! Programs of the front-end language, measured: calls, prompt tokens, those that were computed, the
//! best that any cache could have done, and the time.

mod best;
mod target;
mod texts;
mod workloads;

use std::time::Instant;

use anyhow::Result;
use hearth_client::lang::{Batch, Frontend};
use serde::Serialize;

pub use target::Target;
pub use workloads::Program;

use target::Opened;

/// One program on one back end.
#[derive(Serialize)]
struct Line {
    program: String,
    backend: &'static str,
    instances: usize,
    requests: usize,
    prompt_tokens: u64,
    /// Prompt tokens that went through the model, as the server counts them.
    computed_tokens: u64,
    output_tokens: u64,
    /// Share of the prompt tokens that were not computed.
    hit_rate: f64,
    /// The highest share that is possible; null for a model whose tokens are not bytes.
    best_hit_rate: Option<f64>,
    seconds: f64,
    output_tokens_per_s: f64,
}

/// Runs `programs` one after another on `target` and prints a line for each.
///
/// # Errors
/// The back end cannot be opened, or a program fails.
pub fn run(target: Target, programs: &[Program], instances: usize) -> Result<()> {
    let opened = target.open()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    for &program in programs {
        let line = runtime.block_on(measure(&opened, program, instances))?;
        println!("{}", serde_json::to_string(&line)?);
    }
    Ok(())
}

async fn measure(opened: &Opened, program: Program, instances: usize) -> Result<Line> {
    let before = opened.computed_tokens().await?;
    let (backend, log) = opened.measured();
    let frontend = Frontend::new(backend);
    let begun = Instant::now();
    let run = async |state: &mut _, instance| program.run(state, instance).await;
    let results = frontend
        .run_batch(run, 0..instances, Batch::default())
        .await;
    let seconds = begun.elapsed().as_secs_f64();
    results.into_iter().collect::<Result<Vec<()>, _>>()?;
    let computed = opened.computed_tokens().await? - before;
    let calls = log.lock().expect("no call panicked");
    let sum = |of: fn(&best::Done) -> u64| calls.iter().map(of).sum::<u64>();
    let (prompt, output) = (
        sum(|c| c.usage.prompt_tokens),
        sum(|c| c.usage.completion_tokens),
    );
    let bytes = calls
        .iter()
        .map(|call| call.prompt.len() as u64)
        .sum::<u64>();
    let share = |computed: u64| 1.0 - computed as f64 / prompt as f64;
    Ok(Line {
        program: program.name(),
        backend: opened.name(),
        instances,
        requests: calls.len(),
        prompt_tokens: prompt,
        computed_tokens: computed,
        output_tokens: output,
        hit_rate: share(computed),
        best_hit_rate: (bytes == prompt).then(|| share(best::fewest_computed(&calls))),
        seconds,
        output_tokens_per_s: output as f64 / seconds,
    })
}
