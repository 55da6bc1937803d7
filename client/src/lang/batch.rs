//! A program on many inputs.

use futures_util::stream::{self, StreamExt};

use crate::lang::backend::Prompt;
use crate::lang::error::Error;
use crate::lang::frontend::Frontend;
use crate::lang::state::State;
use crate::lang::trace::trace_program;

/// Inputs that are traced to find what all of them begin with.
const TRACED: usize = 3;

/// A function that is called with the inputs that are done and all inputs.
pub type OnProgress<'a> = Box<dyn FnMut(usize, usize) + 'a>;

/// How [`Frontend::run_batch`] runs.
pub struct Batch<'a> {
    in_flight: usize,
    precache: bool,
    on_progress: Option<OnProgress<'a>>,
}

impl Default for Batch<'_> {
    /// 64 requests in flight, with the common prefix computed first.
    fn default() -> Self {
        Self {
            in_flight: 64,
            precache: true,
            on_progress: None,
        }
    }
}

impl<'a> Batch<'a> {
    /// The most requests that run at a time. As many inputs are begun.
    #[must_use]
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self {
            in_flight: in_flight.max(1),
            ..self
        }
    }

    /// Does not trace the program to find the prefix that its inputs have in common. A trace calls
    /// the program without a model, up to its first reading; that is not wanted where the program
    /// has effects outside of its state before.
    #[must_use]
    pub fn without_trace(self) -> Self {
        Self {
            precache: false,
            ..self
        }
    }

    /// Calls `report` after each input with the number of inputs that are done, and of all inputs.
    #[must_use]
    pub fn on_progress(self, report: impl FnMut(usize, usize) + 'a) -> Self {
        Self {
            on_progress: Some(Box::new(report)),
            ..self
        }
    }

    /// Shows a progress bar on standard error, if that is a terminal.
    #[cfg(feature = "progress")]
    #[must_use]
    pub fn progress_bar(self) -> Self {
        let bar = indicatif::ProgressBar::new(0);
        self.on_progress(move |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            if done == all {
                bar.finish();
            }
        })
    }
}

impl Frontend {
    /// Runs `program` on each of `inputs`, several at a time. The results come in the order of the
    /// inputs; an error is the result of its own input alone.
    pub async fn run_batch<A: Clone, T>(
        &self,
        program: impl AsyncFn(&mut State, A) -> Result<T, Error>,
        inputs: impl IntoIterator<Item = A>,
        batch: Batch<'_>,
    ) -> Vec<Result<T, Error>> {
        let inputs: Vec<A> = inputs.into_iter().collect();
        let Batch {
            in_flight,
            precache,
            mut on_progress,
        } = batch;
        let frontend = self.clone().in_flight(in_flight);
        if precache && inputs.len() > 1 {
            let prefix = common_prefix(&program, &inputs).await;
            if !prefix.is_empty() {
                // This only saves time. An error comes again with the first request.
                let _ = frontend.backend.cache(&Prompt::Text(prefix)).await;
            }
        }
        let all = inputs.len();
        let mut results: Vec<Option<Result<T, Error>>> = (0..all).map(|_| None).collect();
        let (program, frontend) = (&program, &frontend);
        let runs = stream::iter(inputs.into_iter().enumerate()).map(|(index, input)| async move {
            let mut state = frontend.state();
            (index, program(&mut state, input).await)
        });
        let mut runs = std::pin::pin!(runs.buffer_unordered(in_flight));
        let mut done = 0;
        while let Some((index, result)) = runs.next().await {
            results[index] = Some(result);
            done += 1;
            if let Some(report) = &mut on_progress {
                report(done, all);
            }
        }
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or(Err(Error::Cancelled)))
            .collect()
    }
}

/// The text that the program begins with for the first, the last and the middle input.
async fn common_prefix<A: Clone, T>(
    program: &impl AsyncFn(&mut State, A) -> Result<T, Error>,
    inputs: &[A],
) -> String {
    let last = inputs.len() - 1;
    let mut common: Option<String> = None;
    for part in 0..TRACED {
        let input = inputs[last * part / (TRACED - 1)].clone();
        let prefix = trace_program(program, input).await.prefix();
        common = Some(match common {
            None => prefix,
            Some(common) => {
                let pairs = common.chars().zip(prefix.chars());
                let same = pairs.take_while(|(one, other)| one == other);
                same.map(|(one, _)| one).collect()
            }
        });
    }
    common.unwrap_or_default()
}
