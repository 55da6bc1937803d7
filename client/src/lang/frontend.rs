//! Runs programs on a back end, and says how its calls are made.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use crate::lang::backend::{Backend, Call, Completion, Prompt, Scores, Sink};
use crate::lang::error::Error;

/// A back end with the options of the programs that run on it. Cheap to clone.
#[derive(Clone)]
pub struct Frontend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) stream: bool,
    pub(crate) speculate: Option<u32>,
    /// Most bytes of a state's text.
    pub(crate) text_limit: usize,
}

impl std::fmt::Debug for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frontend")
            .field("backend", &self.backend.name())
            .field("stream", &self.stream)
            .field("speculate", &self.speculate)
            .finish()
    }
}

/// How often a call is repeated that the server had no room for (429 or 503).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Calls in all.
    pub attempts: u32,
    /// The wait before the second call. Each further wait is twice as long.
    pub first_wait: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
}

impl Default for Retry {
    /// Six calls within about six seconds.
    fn default() -> Self {
        Self {
            attempts: 6,
            first_wait: Duration::from_millis(200),
            longest_wait: Duration::from_secs(10),
        }
    }
}

impl Frontend {
    /// Programs on `backend`, with neither of the options below.
    pub fn new(backend: impl Backend) -> Self {
        Self {
            backend: Arc::new(backend),
            stream: false,
            speculate: None,
            text_limit: usize::MAX,
        }
    }

    /// Has the text of variables sent while it is generated, for
    /// [`stream`](crate::lang::Var::stream).
    #[must_use]
    pub fn streaming(self) -> Self {
        Self {
            stream: true,
            ..self
        }
    }

    /// Turns API-speculative execution on: a generation with stop strings is asked for `tokens`
    /// tokens, also past the stop, and the rest serves the program's next generations as long as
    /// it fits. It saves calls on APIs that are paid by the token. A speculated variable is not
    /// streamed, but comes at once.
    #[must_use]
    pub fn speculating(self, tokens: u32) -> Self {
        Self {
            speculate: Some(tokens),
            ..self
        }
    }

    /// Bounds the bytes of a state's text. A state fails where it would have more.
    #[must_use]
    pub fn text_limit(self, bytes: usize) -> Self {
        Self {
            text_limit: bytes,
            ..self
        }
    }

    /// Repeats calls that the server had no room for, with growing waits between them.
    #[must_use]
    pub fn retrying(self, retry: Retry) -> Self {
        self.limited(retry, Semaphore::MAX_PERMITS)
    }

    /// Bounds the calls that run at the same time, over all programs of this front end and its
    /// clones.
    #[must_use]
    pub fn in_flight(self, most: usize) -> Self {
        let once = Retry {
            attempts: 1,
            ..Retry::default()
        };
        self.limited(once, most.clamp(1, Semaphore::MAX_PERMITS))
    }

    fn limited(self, retry: Retry, most: usize) -> Self {
        let inner = self.backend;
        let turns = Semaphore::new(most);
        Self {
            backend: Arc::new(Limited {
                inner,
                retry,
                turns,
            }),
            ..self
        }
    }
}

/// Makes the calls of a back end in turns, and repeats them.
struct Limited {
    inner: Arc<dyn Backend>,
    retry: Retry,
    turns: Semaphore,
}

/// The calls that were made for one.
struct Attempts<'a> {
    retry: &'a Retry,
    made: u32,
}

impl Attempts<'_> {
    /// Says whether to try again after `error`; waits before.
    async fn again(&mut self, error: &Error) -> bool {
        self.made += 1;
        if !error.is_transient() || self.made >= self.retry.attempts {
            return false;
        }
        let doubled = 2u32.saturating_pow(self.made - 1);
        let wait = self.retry.first_wait.saturating_mul(doubled);
        tokio::time::sleep(wait.min(self.retry.longest_wait)).await;
        true
    }
}

impl Limited {
    fn attempts(&self) -> Attempts<'_> {
        Attempts {
            retry: &self.retry,
            made: 0,
        }
    }
}

#[async_trait]
impl Backend for Limited {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn continues_messages(&self) -> bool {
        self.inner.continues_messages()
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let mut attempts = self.attempts();
        loop {
            // Text that somebody has seen cannot be taken back.
            let mut seen = false;
            let mut watched = |text: &str| {
                seen = true;
                sink(text);
            };
            let turn = self.turns.acquire().await;
            let outcome = self.inner.generate(call, &mut watched).await;
            drop(turn);
            match outcome {
                Err(error) if !seen && attempts.again(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn score(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, Error> {
        let mut attempts = self.attempts();
        loop {
            let turn = self.turns.acquire().await;
            let outcome = self.inner.score(prompt, choices, unconditional).await;
            drop(turn);
            match outcome {
                Err(error) if attempts.again(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn cache(&self, prompt: &Prompt) -> Result<(), Error> {
        let _turn = self.turns.acquire().await;
        self.inner.cache(prompt).await
    }
}
