//! The HTTP exchange that the running code belongs to, as a task-local value.
//!
//! Each dialect prepares its requests in its own way. The places that all of them pass
//! (tokenising, compiling a grammar, submitting to the engine) measure, and find here which
//! exchange they measure for.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hearth_otel::{Clock, Compilation, MessageContent, ServerAddress, SpanContext, Telemetry};

use crate::clients::Client;
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
    /// Where the client reached this server, if traces are exported.
    pub server: Option<ServerAddress>,
    /// For how long a client may read nothing of a stream before its connection is closed.
    pub stall_timeout: Duration,
    /// OpenTelemetry's name for what the route does (`gen_ai.operation.name`).
    pub operation: &'static str,
    /// Prompt tokens of requests that were submitted and have not started, over all exchanges.
    pub waiting_tokens: Arc<AtomicUsize>,
    /// True if requests with different API keys share no cached prefixes.
    isolate_caches: bool,
    /// The address that the request came from.
    peer: Option<IpAddr>,
    streams: AtomicBool,
    tokenized: Mutex<Option<(Instant, Instant)>>,
    compiled: Mutex<Option<Compilation>>,
    labels: Mutex<Vec<(String, String)>>,
    ignored: Mutex<Vec<String>>,
    /// The messages of a chat, where traces are to have them.
    content: Mutex<Option<MessageContent>>,
    /// True if the output must be JSON.
    json: AtomicBool,
    /// Whose API key the request has; set at most once.
    client: OnceLock<Arc<Client>>,
}

impl Exchange {
    #[expect(clippy::too_many_arguments, reason = "each is a part of the exchange")]
    pub fn new(
        telemetry: Telemetry,
        clock: Clock,
        span: Option<SpanContext>,
        request_id: String,
        server: Option<ServerAddress>,
        stall_timeout: Duration,
        operation: Operation,
        waiting_tokens: Arc<AtomicUsize>,
        isolate_caches: bool,
        peer: Option<IpAddr>,
    ) -> Self {
        Self {
            telemetry,
            clock,
            span,
            request_id,
            server,
            stall_timeout,
            operation: operation.name(),
            waiting_tokens,
            isolate_caches,
            peer,
            streams: AtomicBool::new(false),
            tokenized: Mutex::new(None),
            compiled: Mutex::new(None),
            labels: Mutex::default(),
            ignored: Mutex::default(),
            content: Mutex::default(),
            json: AtomicBool::new(false),
            client: OnceLock::new(),
        }
    }

    /// The exchange of the running handler; none outside of HTTP.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// True if the answer is written while it is generated.
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

    /// True if the trace of this exchange is to have the content of messages.
    pub fn captures_content(&self) -> bool {
        self.telemetry.captures_content() && self.operation != Operation::Embeddings.name()
    }

    /// The messages of the chat, where traces are to have them.
    pub fn content(&self) -> Option<MessageContent> {
        let content = self.content.lock();
        content.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// OpenTelemetry's `gen_ai.output.type`; `None` where there is no output.
    pub fn output_type(&self) -> Option<&'static str> {
        match self.operation == Operation::Embeddings.name() {
            true => None,
            false if self.json.load(Ordering::Relaxed) => Some("json"),
            false => Some("text"),
        }
    }

    /// The one with whom the client shares what is divided fairly: its API key, or else its address.
    pub fn party(&self) -> String {
        match (self.client(), self.peer) {
            (Some(client), _) => client.name.clone(),
            (None, Some(peer)) => peer.to_string(),
            (None, None) => String::new(),
        }
    }

    /// The namespace of the prefix cache for a request that asks for `namespace`: with isolated
    /// caches each API key has namespaces of its own.
    pub fn own_namespace(&self, namespace: Option<String>) -> Option<String> {
        match self.client().filter(|_| self.isolate_caches) {
            None => namespace,
            // The length keeps names and salts apart.
            Some(client) => Some(format!(
                "key:{}:{}:{}",
                client.name.len(),
                client.name,
                namespace.unwrap_or_default()
            )),
        }
    }

    /// Whose API key the request has, if it needs one.
    pub fn client(&self) -> Option<&Arc<Client>> {
        self.client.get()
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

/// Notes whose API key the current request has.
pub fn note_client(client: Arc<Client>) {
    if let Some(exchange) = Exchange::current() {
        // It is noted once, by the middleware that checks keys.
        let _ = exchange.client.set(client);
    }
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

/// Notes that the output of the current exchange must be JSON.
pub fn note_json() {
    if let Some(exchange) = Exchange::current() {
        exchange.json.store(true, Ordering::Relaxed);
    }
}

/// Notes the messages of the current exchange, if traces are to have them.
pub fn note_content(content: impl FnOnce() -> MessageContent) {
    if let Some(exchange) = Exchange::current().filter(|exchange| exchange.captures_content()) {
        let noted = exchange.content.lock();
        *noted.unwrap_or_else(PoisonError::into_inner) = Some(content());
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
