//! Relays the body of a worker's response to the client.
//!
//! Pieces are passed on as they come. A stream that breaks off ends with an error in the stream's
//! own form. Dropping the relay, as happens when the client goes away, drops the connection to the
//! worker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::body::{BodyStream, SizedStream};
use actix_web::http::StatusCode;
use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt, stream};
use hearth_otel::ClientSpan;
use prometheus::Histogram;

use crate::error::RouterError;
use crate::headers;
use crate::merge::Rewriter;
use crate::metrics::{Metrics, RouteLabels};
use crate::queue::Permit;
use crate::sse::{Events, Framing, Tail};
use crate::upstream::{Opened, Rest, chain};
use crate::worker::Lease;

/// The measurements of an exchange with the client.
#[derive(Debug)]
pub struct Exchange {
    pub metrics: Arc<Metrics>,
    pub labels: RouteLabels,
    pub received: Instant,
    /// Held until the response has ended.
    pub _permit: Permit,
}

impl Exchange {
    /// The response has ended.
    pub fn finished(&self) {
        self.metrics.finished(&self.labels, self.received.elapsed());
    }

    /// The request gets this error.
    pub fn failed(&self, error: &str) {
        self.metrics.error(&self.labels, error);
    }
}

/// Measures a stream by when its pieces arrive.
#[derive(Debug)]
struct Timing {
    ttft: Histogram,
    tpot: Histogram,
    last: Option<Instant>,
    received: Instant,
}

impl Timing {
    fn piece(&mut self) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => self.ttft.observe((now - self.received).as_secs_f64()),
            Some(last) => self.tpot.observe((now - last).as_secs_f64()),
        }
    }
}

/// Ends a task when it is dropped, unless it was let go.
#[derive(Debug)]
pub struct AbortOnDrop(Option<actix_web::rt::task::JoinHandle<()>>);

impl AbortOnDrop {
    pub fn new(task: actix_web::rt::task::JoinHandle<()>) -> Self {
        Self(Some(task))
    }

    /// Lets the task run on.
    pub fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

struct Relay {
    first: Option<Bytes>,
    rest: Rest,
    framing: Framing,
    tail: Tail,
    timing: Option<Timing>,
    rewriter: Option<(Rewriter, Events)>,
    /// Rewritten events that are not sent yet.
    ready: VecDeque<Bytes>,
    ended: bool,
    lease: Lease,
    /// It ends with the relay.
    span: Option<ClientSpan>,
    /// The request to the prefill worker, in PD mode.
    prefill: Option<AbortOnDrop>,
    exchange: Exchange,
}

/// The response to the client. `prefill` runs for as long as the response does.
pub fn respond(
    opened: Opened,
    lease: Lease,
    exchange: Exchange,
    rewriter: Option<Rewriter>,
    prefill: Option<AbortOnDrop>,
) -> HttpResponse {
    let mut response = HttpResponse::build(client_status(opened.status));
    headers::to_client(&opened.headers, &mut response);
    let framing = Framing::of(opened.content_type());
    // A stream may end with an error that the worker did not announce.
    let length = opened
        .length()
        .filter(|_| framing == Framing::Whole && rewriter.is_none());
    if opened.status.is_client_error() || opened.status.is_server_error() {
        exchange.failed("upstream_error");
    }
    let timing = (framing != Framing::Whole).then(|| {
        let (ttft, tpot) = exchange.metrics.stream(&exchange.labels);
        Timing {
            ttft,
            tpot,
            last: None,
            received: exchange.received,
        }
    });
    let status = opened.status.as_u16();
    if status >= 400 {
        // A stream of success is counted when it has ended.
        lease.responded(status);
    }
    let relay = Relay {
        first: opened.first,
        rest: opened.rest,
        framing,
        tail: Tail::default(),
        timing,
        rewriter: rewriter.map(|rewriter| (rewriter, Events::default())),
        ready: VecDeque::new(),
        ended: false,
        lease,
        span: opened.span,
        prefill,
        exchange,
    };
    let counts = status < 400;
    let body = relay.into_stream(counts);
    match length {
        Some(length) => response.body(SizedStream::new(length, Box::pin(body))),
        None => response.body(BodyStream::new(Box::pin(body))),
    }
}

/// The same status in actix's type.
pub fn client_status(status: reqwest::StatusCode) -> StatusCode {
    StatusCode::from_u16(status.as_u16()).unwrap_or(StatusCode::BAD_GATEWAY)
}

impl Relay {
    fn into_stream(self, counts: bool) -> impl Stream<Item = Result<Bytes, RouterError>> {
        stream::unfold(self, move |mut relay| async move {
            let piece = relay.next(counts).await?;
            Some((piece, relay))
        })
    }

    /// The next piece for the client; `None` at the end.
    async fn next(&mut self, counts: bool) -> Option<Result<Bytes, RouterError>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Ok(piece));
            }
            if self.ended {
                return None;
            }
            let piece = match self.first.take() {
                Some(first) => Some(Ok(first)),
                None => self.rest.next().await,
            };
            match piece {
                Some(Ok(piece)) => {
                    if let Some(timing) = &mut self.timing {
                        timing.piece();
                    }
                    self.tail.add(&piece);
                    match &mut self.rewriter {
                        None => return Some(Ok(piece)),
                        Some((rewriter, events)) => {
                            for event in events.add(&piece) {
                                self.ready.push_back(rewriter.rewrite(event).await);
                            }
                        }
                    }
                }
                Some(Err(error)) => return self.broken(&error),
                None => {
                    self.end(counts);
                    let rest = self.rewriter.as_mut().and_then(|(_, events)| events.rest());
                    self.ready.extend(rest);
                }
            }
        }
    }

    fn end(&mut self, counts: bool) {
        self.ended = true;
        if counts {
            self.lease.succeeded();
        }
        if let Some(prefill) = &mut self.prefill {
            prefill.release();
        }
        self.exchange.finished();
    }

    /// The worker's response broke off after its first bytes: too late for another attempt.
    fn broken(&mut self, error: &reqwest::Error) -> Option<Result<Bytes, RouterError>> {
        self.ended = true;
        self.lease.failed("broken_stream");
        if let Some(span) = &mut self.span {
            span.failed("broken_stream", &chain(error));
        }
        self.exchange.failed("broken_stream");
        self.exchange.finished();
        let worker = self.lease.worker();
        let why = format!("the response broke off ({})", chain(error));
        tracing::warn!(worker = worker.url, error = why, "a response broke off");
        let error = RouterError::unreachable("upstream_broken", &worker.url, why);
        // The bytes that the rewriter held back are part of a broken event.
        if let Some((_, events)) = &mut self.rewriter
            && events.rest().is_some()
        {
            self.tail = Tail::default();
        }
        match self.framing.error(&self.tail, &error.body()) {
            Some(event) => Some(Ok(event)),
            // An error closes the connection, so that the client sees a broken response.
            None => Some(Err(error)),
        }
    }
}
