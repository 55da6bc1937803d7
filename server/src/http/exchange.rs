//! What is known about the HTTP request at hand, wherever its handler calls.
//!
//! The routes of every API prepare and submit in ways of their own; what is measured
//! about them is measured in the places that all of them go through, which find their
//! request here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hearth_otel::{Clock, Compilation, SpanContext, Telemetry};

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

pub struct Exchange {
    pub telemetry: Telemetry,
    /// Started when the request came.
    pub clock: Clock,
    /// The span of the exchange, where traces are wanted.
    pub span: Option<SpanContext>,
    pub request_id: String,
    /// How long the client may take nothing of a stream.
    pub stall_timeout: Duration,
    /// OpenTelemetry's word for what the route does.
    pub operation: &'static str,
    streams: AtomicBool,
    tokenized: Mutex<Option<(Instant, Instant)>>,
    compiled: Mutex<Option<Compilation>>,
    labels: Mutex<Vec<(String, String)>>,
}

impl Exchange {
    pub fn new(
        telemetry: Telemetry,
        clock: Clock,
        span: Option<SpanContext>,
        request_id: String,
        stall_timeout: Duration,
        route: &str,
    ) -> Self {
        let is_chat = route.contains("chat") || route.contains("messages");
        Self {
            telemetry,
            clock,
            span,
            request_id,
            stall_timeout,
            operation: match route {
                "/v1/embeddings" | "/encode" => "embeddings",
                _ if is_chat => "chat",
                _ => "text_completion",
            },
            streams: AtomicBool::new(false),
            tokenized: Mutex::new(None),
            compiled: Mutex::new(None),
            labels: Mutex::default(),
        }
    }

    /// The exchange whose handler this is called in; none outside of HTTP.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Whether the answer is written while it is generated.
    pub fn streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
    }

    /// What the client calls the request by, as attributes of its span.
    pub fn labels(&self) -> Vec<(String, String)> {
        let labels = self.labels.lock();
        labels.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From the first text that was made into tokens to the last.
    pub fn tokenized(&self) -> Option<(Instant, Instant)> {
        *self
            .tokenized
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The grammar that its outputs follow, if they do.
    pub fn compiled(&self) -> Option<Compilation> {
        *self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Has `handler` find `exchange`.
pub async fn within<T>(exchange: Arc<Exchange>, handler: impl Future<Output = T>) -> T {
    CURRENT.scope(exchange, handler).await
}

/// Has `work` find it on another thread.
pub fn carried<T>(exchange: Option<Arc<Exchange>>, work: impl FnOnce() -> T) -> T {
    match exchange {
        Some(exchange) => CURRENT.sync_scope(exchange, work),
        None => work(),
    }
}

/// The user and the labels that a client gives a request go into its trace, where it has one.
pub fn note_labels<'a>(user: Option<&str>, labels: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let Some(exchange) = Exchange::current().filter(|exchange| exchange.span.is_some()) else {
        return;
    };
    // OpenAI's bound on labels; nothing bounds the user.
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

/// The answer of the exchange at hand is a stream.
pub fn note_stream() {
    if let Some(exchange) = Exchange::current() {
        exchange.streams.store(true, Ordering::Relaxed);
    }
}

/// The exchange at hand has its grammar.
pub fn note_grammar(compilation: Compilation) {
    if let Some(exchange) = Exchange::current() {
        let compiled = exchange.compiled.lock();
        *compiled.unwrap_or_else(PoisonError::into_inner) = Some(compilation);
    }
}

/// Measures `encode`, which makes text into tokens.
pub fn while_tokenizing<T>(encode: impl FnOnce() -> T) -> T {
    let from = Instant::now();
    let done = encode();
    if let Some(exchange) = Exchange::current() {
        exchange.add_tokenized(from, Instant::now());
    }
    done
}
