//! Prefill/decode mode: a request goes to a prefill and a decode worker at once.
//!
//! Both get the same JSON, in which `bootstrap` names the place where they meet, so that the KV of
//! the prompt goes from one to the other without passing the router. The client gets decode's
//! response. A failure before the first byte to the client leads to another attempt, with another
//! pair and new rooms.
//!
//! - `plan`: what is the same in each attempt.
//! - `prefill`: the request to the prefill worker, in a task of its own.
//! - `alone`: a request without a prefill worker.
//! - `finish`: what of prefill's response goes into decode's.

mod alone;
mod finish;
mod plan;
mod prefill;

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header::HeaderValue;
use tokio::time::{sleep, timeout};

pub use plan::PdIncoming;

use crate::error::{ERROR_CODE, RouterError};
use crate::metrics::RouteLabels;
use crate::prompt::Prompt;
use crate::relay::{Exchange, respond};
use crate::retry::{Attempts, is_retryable};
use crate::select::Wanted;
use crate::state::Router;
use crate::token_prompt::token_prompt;
use crate::upstream::{Opened, Outgoing, Upstream, chain};
use crate::worker::Lease;
use alone::decode_alone;
use finish::{Answer, Paired, finish};
use plan::{Needed, Plan};
use prefill::Prefill;

/// The error codes of decode's responses, for clients that look at the header.
const DECODE_BAD_REQUEST: &str = "decode_bad_request";
const DECODE_INTERNAL_ERROR: &str = "decode_internal_error";

/// Why an attempt failed before the first byte to the client.
enum Failed {
    /// An error of the router's own, or one of prefill's.
    Error { error: RouterError, again: bool },
    /// Decode's response, which is no success.
    Decode { opened: Box<Opened>, lease: Lease },
}

/// Sends a request to a pair of workers, or to several one after the other, and relays decode's
/// response.
///
/// # Errors
/// The body is no JSON object, no pair is available, or all attempts fail.
pub async fn dispatch(
    router: &Router,
    upstream: &Upstream,
    incoming: PdIncoming,
) -> Result<HttpResponse, RouterError> {
    let permit = router.queue.enter().await?;
    let plan = Plan::new(router, &incoming)?;
    let reads = router.prefill.policy.needs_prompt() || router.decode.policy.needs_prompt();
    let mut prompt = Prompt::default();
    if reads {
        prompt = Prompt::read(incoming.prompt, &incoming.body);
        let (pools, endpoint) = ([&router.prefill, &router.decode], incoming.endpoint);
        let (headers, body) = (&incoming.headers, &incoming.body);
        prompt.known =
            token_prompt(router, upstream, &pools, endpoint, &prompt, headers, body).await;
    }
    let model: Option<String> = plan.fields.read("model");
    let wanted = Wanted {
        model: model.as_deref(),
        prompt: &prompt,
    };
    let mut labels = RouteLabels {
        backend: "pd",
        model: String::new(),
        endpoint: incoming.endpoint,
    };
    let mut attempts = Attempts::new(router.retry, &router.metrics, "pd", incoming.endpoint);
    let mut tried = Tried::default();
    let mut counted = false;
    let failed = loop {
        let failed = match lease_pair(router, wanted, &tried) {
            Err(Missing::Decode(error)) => Failed::Error { error, again: true },
            Err(Missing::Prefill(error)) => {
                let tried = &tried.decode;
                match decode_alone(router, upstream, &plan, wanted, tried, error).await {
                    Ok((opened, lease)) => {
                        labels.model = lease.worker().model();
                        if !counted {
                            router.metrics.routed(&labels, plan.streamed);
                        }
                        let exchange = Exchange {
                            metrics: Arc::clone(&router.metrics),
                            labels,
                            received: incoming.received,
                            _permit: permit,
                        };
                        return Ok(respond(opened, lease, exchange, None, None));
                    }
                    Err(failed) => failed,
                }
            }
            Ok((prefill, decode)) => {
                labels.model = decode.worker().model();
                if !std::mem::replace(&mut counted, true) {
                    router.metrics.routed(&labels, plan.streamed);
                }
                let ids = [prefill.worker().id.clone(), decode.worker().id.clone()];
                let pool = &router.prefill;
                let is_last = !pool.has_another(&router.registry, &tried.prefill, &ids[0]);
                match attempt(router, upstream, &plan, prefill, decode, is_last).await {
                    Ok(answer) => {
                        let exchange = Exchange {
                            metrics: Arc::clone(&router.metrics),
                            labels,
                            received: incoming.received,
                            _permit: permit,
                        };
                        return Ok(answer.respond(exchange));
                    }
                    Err(failed) => {
                        tried.add(ids);
                        failed
                    }
                }
            }
        };
        let again = match &failed {
            Failed::Error { again, .. } => *again,
            Failed::Decode { opened, .. } => is_retryable(opened.status.as_u16()),
        };
        match again.then(|| attempts.another()).flatten() {
            Some(pause) => {
                if let Failed::Decode { opened, lease } = failed {
                    lease.responded(opened.status.as_u16());
                }
                sleep(pause).await;
            }
            None => break failed,
        }
    };
    match failed {
        Failed::Error { error, .. } => {
            router.metrics.error(&labels, error.code);
            Err(error)
        }
        Failed::Decode { opened, lease } => {
            let code = match opened.status.is_client_error() {
                true => DECODE_BAD_REQUEST,
                false => DECODE_INTERNAL_ERROR,
            };
            let exchange = Exchange {
                metrics: Arc::clone(&router.metrics),
                labels,
                received: incoming.received,
                _permit: permit,
            };
            let mut response = respond(*opened, lease, exchange, None, None);
            let value = HeaderValue::from_static(code);
            response.headers_mut().insert(ERROR_CODE, value);
            Ok(response)
        }
    }
}

/// The workers that have failed this request.
#[derive(Debug, Default)]
struct Tried {
    prefill: Vec<String>,
    decode: Vec<String>,
}

impl Tried {
    fn add(&mut self, [prefill, decode]: [String; 2]) {
        self.prefill.push(prefill);
        self.decode.push(decode);
    }
}

/// The kind of worker of which none is available.
enum Missing {
    Prefill(RouterError),
    Decode(RouterError),
}

fn lease_pair(
    router: &Router,
    wanted: Wanted<'_>,
    tried: &Tried,
) -> Result<(Lease, Lease), Missing> {
    let (registry, metrics) = (&router.registry, &router.metrics);
    let prefill = router
        .prefill
        .lease(registry, metrics, wanted, &tried.prefill)
        .map_err(Missing::Prefill)?;
    let decode = router
        .decode
        .lease(registry, metrics, wanted, &tried.decode)
        .map_err(Missing::Decode)?;
    Ok((prefill, decode))
}

async fn attempt(
    router: &Router,
    upstream: &Upstream,
    plan: &Plan<'_>,
    prefill: Lease,
    decode: Lease,
    is_last: bool,
) -> Result<Answer, Failed> {
    let (prefill_body, decode_body) = plan.bodies(&prefill);
    let to_prefill = plan.outgoing(&prefill, prefill_body);
    let to_decode = plan.outgoing(&decode, decode_body);
    let keep = plan.needed != Needed::Nothing;
    let metrics = Arc::clone(&router.metrics);
    let prefill = Prefill::start(upstream.clone(), to_prefill, prefill, metrics, keep);
    // Without prefill's response there are no log-probabilities of the prompt.
    let may_decode_alone = is_last && plan.needed != Needed::Logprobs;
    let seconds = router.config.decode_alone_timeout_secs;
    let alone = may_decode_alone.then(|| Duration::from_secs_f64(seconds));
    let paired = pair(router, upstream, to_decode, prefill, decode, alone).await?;
    finish(plan.needed, paired).await
}

/// Waits for decode's first bytes, unless prefill fails before. With `alone`, there is no other
/// prefill worker to try, and decode is waited for so long nevertheless: it may compute the prompt
/// itself.
async fn pair(
    router: &Router,
    upstream: &Upstream,
    to_decode: Outgoing,
    mut prefill: Prefill,
    decode: Lease,
    alone: Option<Duration>,
) -> Result<Paired, Failed> {
    let mut opening = std::pin::pin!(upstream.open(to_decode));
    let failed = tokio::select! {
        biased;
        failed = prefills_failure(&mut prefill) => failed,
        opened = &mut opening => return opened_by(router, opened, prefill, decode),
    };
    let (error, again) = failed;
    match alone.filter(|_| again) {
        Some(patience) => match timeout(patience, opening).await {
            Ok(opened) => opened_by(router, opened, prefill, decode),
            Err(_) => Err(Failed::Error { error, again }),
        },
        None => Err(Failed::Error { error, again }),
    }
}

/// Resolves when prefill has failed, and never if it has not.
async fn prefills_failure(prefill: &mut Prefill) -> (RouterError, bool) {
    match (&mut prefill.head).await {
        Ok(Err(failed)) => failed,
        // The task ends only after it has reported.
        Ok(Ok(())) | Err(_) => std::future::pending().await,
    }
}

/// Decode's first bytes, or its failure.
fn opened_by(
    router: &Router,
    opened: Result<Opened, reqwest::Error>,
    prefill: Prefill,
    decode: Lease,
) -> Result<Paired, Failed> {
    match opened {
        Ok(opened) => {
            router.metrics.upstream_response(opened.status.as_u16(), "");
            if opened.status.is_success() {
                return Ok(Paired {
                    decode: opened,
                    lease: decode,
                    prefill,
                });
            }
            Err(Failed::Decode {
                opened: Box::new(opened),
                lease: decode,
            })
        }
        Err(error) => Err(transport(&decode, "decode_unavailable", &error)),
    }
}

fn transport(lease: &Lease, code: &'static str, error: &reqwest::Error) -> Failed {
    lease.failed("transport");
    let why = chain(error);
    let worker = lease.worker();
    tracing::warn!(worker = worker.url, error = why, "a worker did not respond");
    Failed::Error {
        error: RouterError::unreachable(code, &worker.url, why),
        again: !error.is_timeout() || error.is_connect(),
    }
}
