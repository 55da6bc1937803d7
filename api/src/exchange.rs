//! The HTTP exchange that the running code belongs to, as a task-local value.
//!
//! Each dialect prepares its requests in its own way. The places that all of them pass
//! (tokenising, compiling a grammar, submitting to the engine) measure, and find here which
//! exchange they measure for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hearth_otel::{Clock, Compilation, SpanContext, Telemetry};

use crate::routes::Operation;

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

pub struct Exchange {
    pub telemetry: Telemetry,
    /// Started when the head of the request was read.
    pub clock: Clock,
    /// The span of the exchange, if traces are exported.
    pub span: Option<SpanContext>,
    pub request_id: String,
    /// For how long a client may read nothing of a stream before its connection is closed.
    pub stall_timeout: Duration,
    /// OpenTelemetry's name for what the route does (`gen_ai.operation.name`).
    pub operation: &'static str,
    /// Prompt tokens of requests that were submitted and have not started, over all exchanges.
    pub waiting_tokens: Arc<AtomicUsize>,
    streams: AtomicBool,
    tokenized: Mutex<Option<(Instant, Instant)>>,
    compiled: Mutex<Option<Compilation>>,
    labels: Mutex<Vec<(String, String)>>,
    ignored: Mutex<Vec<String>>,
}

impl Exchange {
    pub fn new(
        telemetry: Telemetry,
        clock: Clock,
        span: Option<SpanContext>,
        request_id: String,
        stall_timeout: Duration,
        operation: Operation,
        waiting_tokens: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            telemetry,
            clock,
            span,
            request_id,
            stall_timeout,
            operation: operation.name(),
            waiting_tokens,
            streams: AtomicBool::new(false),
            tokenized: Mutex::new(None),
            compiled: Mutex::new(None),
            labels: Mutex::default(),
            ignored: Mutex::default(),
        }
    }

    /// The exchange of the running handler; none outside of HTTP.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Whether the answer is written while it is generated.
    pub fn streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
    }

    /// The labels that the client gave the request, as attributes of its span.
    pub fn labels(&self) -> Vec<(String, String)> {
        let labels = self.labels.lock();
        labels.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When tokenising began and when it ended, from the request's first text to its last.
    pub fn tokenized(&self) -> Option<(Instant, Instant)> {
        *self
            .tokenized
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How the grammar of its outputs was compiled, if it has one.
    pub fn compiled(&self) -> Option<Compilation> {
        *self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The words of its schemas that had no effect.
    pub fn ignored(&self) -> Vec<String> {
        let ignored = self.ignored.lock();
        ignored.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add_tokenized(&self, from: Instant, to: Instant) {
        let mut tokenized = self
            .tokenized
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let since = tokenized.map_or(from, |(since, _)| since);
        *tokenized = Some((since, to));
        if let Some(engine) = self.telemetry.engine() {
            engine.tokenized(to.duration_since(from).as_secs_f64());
        }
    }
}

/// Runs `handler` with `exchange` as its current exchange.
pub async fn within<T>(exchange: Arc<Exchange>, handler: impl Future<Output = T>) -> T {
    CURRENT.scope(exchange, handler).await
}

/// Runs `work` with the exchange of another thread, from which the work was handed over.
pub fn carried<T>(exchange: Option<Arc<Exchange>>, work: impl FnOnce() -> T) -> T {
    match exchange {
        Some(exchange) => CURRENT.sync_scope(exchange, work),
        None => work(),
    }
}

/// Puts the user and the labels that a client gave its request into the trace, if there is one.
pub fn note_labels<'a>(user: Option<&str>, labels: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let Some(exchange) = Exchange::current().filter(|exchange| exchange.span.is_some()) else {
        return;
    };
    // 512 is OpenAI's bound on labels. It is applied to the user too, which has none.
    let short = |text: &str| text.chars().take(512).collect::<String>();
    let user = user.map(|user| ("user.id".to_owned(), short(user)));
    let labels = labels.into_iter();
    let labels = labels.map(|(name, label)| (short(&format!("metadata.{name}")), short(label)));
    let noted: Vec<_> = user.into_iter().chain(labels).collect();
    let mut labels = exchange
        .labels
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    *labels = noted;
}

/// Notes that the answer of the current exchange is a stream.
pub fn note_stream() {
    if let Some(exchange) = Exchange::current() {
        exchange.streams.store(true, Ordering::Relaxed);
    }
}

/// Notes how the grammar of the current exchange was compiled.
pub fn note_grammar(compilation: Compilation) {
    if let Some(exchange) = Exchange::current() {
        let compiled = exchange.compiled.lock();
        *compiled.unwrap_or_else(PoisonError::into_inner) = Some(compilation);
    }
}

/// Notes words of schemas that have no effect on the answer of the current exchange.
pub fn note_ignored(words: Vec<String>) {
    if let Some(exchange) = Exchange::current() {
        let ignored = exchange.ignored.lock();
        *ignored.unwrap_or_else(PoisonError::into_inner) = words;
    }
}

/// Runs `encode`, which makes tokens out of text, and measures it.
pub fn while_tokenizing<T>(encode: impl FnOnce() -> T) -> T {
    let from = Instant::now();
    let done = encode();
    if let Some(exchange) = Exchange::current() {
        exchange.add_tokenized(from, Instant::now());
    }
    done
}
