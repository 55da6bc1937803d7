//! A request goes to one worker, and its response to the client: in regular mode, and in PD mode on
//! routes without bootstrap fields.

use std::sync::Arc;
use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::Bytes;
use hearth_otel::Trace;
use reqwest::Method;
use reqwest::header::HeaderMap;
use tokio::time::sleep;

use crate::body::Fields;
use crate::error::RouterError;
use crate::metrics::RouteLabels;
use crate::prompt::{Prompt, PromptField};
use crate::relay::{Exchange, respond};
use crate::retry::{Attempts, is_retryable};
use crate::select::{Pool, Wanted};
use crate::state::Router;
use crate::token_prompt::token_prompt;
use crate::upstream::{Leg, Outgoing, Upstream, chain};
use crate::worker::{Lease, Worker};

/// A request of a client.
#[derive(Debug)]
pub struct Incoming {
    pub method: Method,
    /// The path with the query.
    pub path: String,
    /// The route's pattern, for metrics.
    pub endpoint: &'static str,
    pub prompt: PromptField,
    /// The headers that workers get.
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    pub received: Instant,
    /// The trace of the request, if traces are recorded.
    pub trace: Option<Trace>,
}

impl Incoming {
    /// The same request to a worker.
    fn outgoing(&self, worker: &Worker) -> Outgoing {
        Outgoing {
            method: self.method.clone(),
            url: format!("{}{}", worker.url, self.path),
            headers: self.headers.clone(),
            body: self.body.clone(),
            leg: self.trace.clone().map(|trace| Leg {
                trace,
                role: worker.role.name(),
                endpoint: self.endpoint,
            }),
        }
    }
}

/// The fields that the router reads of a body whose bytes it passes on.
#[derive(Debug, Default)]
struct Glance {
    model: Option<String>,
    stream: bool,
    previous_response: Option<String>,
}

impl Glance {
    fn of(body: &[u8]) -> Self {
        // A body that is not an object is passed on, too: the worker says what is wrong with it.
        let fields = Fields::parse(body).unwrap_or_default();
        Self {
            model: fields.read("model"),
            stream: fields.is_true("stream"),
            previous_response: fields.read("previous_response_id"),
        }
    }
}

/// Sends a request to a worker of `pool`, or to several one after the other, and relays the response.
///
/// # Errors
/// No worker is available, none responds, or too many requests run.
pub async fn dispatch(
    router: &Router,
    upstream: &Upstream,
    pool: &Pool,
    incoming: Incoming,
) -> Result<HttpResponse, RouterError> {
    let permit = router.queue.enter().await?;
    let body = incoming.body.as_deref().unwrap_or_default();
    let glance = Glance::of(body);
    let mut prompt = Prompt::default();
    if pool.policy.needs_prompt() {
        prompt = Prompt::read(incoming.prompt, body);
        let endpoint = incoming.endpoint;
        let headers = &incoming.headers;
        prompt.known =
            token_prompt(router, upstream, &[pool], endpoint, &prompt, headers, body).await;
    }
    let keeper = glance
        .previous_response
        .and_then(|id| router.stored.worker(&id))
        .and_then(|worker| router.registry.get(&worker));
    let mut labels = RouteLabels {
        backend: "regular",
        model: String::new(),
        endpoint: incoming.endpoint,
    };
    let mut attempts = Attempts::new(
        router.retry,
        &router.metrics,
        pool.role.name(),
        incoming.endpoint,
    );
    let mut tried = Vec::new();
    let mut counted = false;
    loop {
        let wanted = Wanted {
            model: glance.model.as_deref(),
            prompt: &prompt,
        };
        let lease = match keeper.as_ref().and_then(Worker::lease) {
            Some(lease) => Ok(lease),
            None => pool.lease(&router.registry, &router.metrics, wanted, &tried),
        };
        let failed = match lease {
            Err(error) => error,
            Ok(lease) => {
                labels.model = lease.worker().model();
                if !std::mem::replace(&mut counted, true) {
                    router.metrics.routed(&labels, glance.stream);
                }
                let sent = upstream.open(incoming.outgoing(lease.worker())).await;
                match sent {
                    Err(error) => {
                        tried.push(lease.worker().id.clone());
                        let (error, again) = unreachable(&lease, &error);
                        if !again {
                            router.metrics.error(&labels, error.code);
                            return Err(error);
                        }
                        error
                    }
                    Ok(opened) => {
                        let status = opened.status.as_u16();
                        router.metrics.upstream_response(status, "");
                        if is_retryable(status)
                            && let Some(pause) = attempts.another()
                        {
                            lease.responded(status);
                            tried.push(lease.worker().id.clone());
                            drop((opened, lease));
                            sleep(pause).await;
                            continue;
                        }
                        if let ("/v1/responses", Some(first)) = (incoming.endpoint, &opened.first) {
                            router.stored.learn(first, &lease.worker().id);
                        }
                        let exchange = Exchange {
                            metrics: Arc::clone(&router.metrics),
                            labels,
                            received: incoming.received,
                            _permit: permit,
                        };
                        return Ok(respond(opened, lease, exchange, None, None));
                    }
                }
            }
        };
        match attempts.another() {
            Some(pause) => sleep(pause).await,
            None => {
                router.metrics.error(&labels, failed.code);
                return Err(failed);
            }
        }
    }
}

/// The error of a worker that did not respond, and whether another attempt makes sense.
fn unreachable(lease: &Lease, error: &reqwest::Error) -> (RouterError, bool) {
    let worker = lease.worker();
    lease.failed("transport");
    let why = chain(error);
    tracing::warn!(worker = worker.url, error = why, "a worker did not respond");
    let mut failed = RouterError::unreachable("upstream_unavailable", &worker.url, why);
    // The time of the whole request is over, not that of making a connection.
    let over = error.is_timeout() && !error.is_connect();
    if over {
        failed.status = StatusCode::GATEWAY_TIMEOUT;
        failed.code = "upstream_timeout";
    }
    (failed, !over)
}

/// Sends a request to one certain worker, once.
///
/// # Errors
/// The worker does not respond, or drains.
pub async fn to_worker(
    router: &Router,
    upstream: &Upstream,
    incoming: Incoming,
    worker: &Arc<Worker>,
) -> Result<HttpResponse, RouterError> {
    let permit = router.queue.enter().await?;
    let lease = worker
        .lease()
        .ok_or_else(|| RouterError::no_worker("worker"))?;
    let opened = upstream.open(incoming.outgoing(worker)).await;
    let opened = opened.map_err(|error| unreachable(&lease, &error).0)?;
    let labels = RouteLabels {
        backend: "regular",
        model: worker.model(),
        endpoint: incoming.endpoint,
    };
    let exchange = Exchange {
        metrics: Arc::clone(&router.metrics),
        labels,
        received: incoming.received,
        _permit: permit,
    };
    Ok(respond(opened, lease, exchange, None, None))
}
