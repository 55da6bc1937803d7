//! Requests that a worker answers.

use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::web::{Bytes, Data, Path};
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse};
use hearth_otel::Trace;
use reqwest::Method;

use crate::defaults::PdRoute;
use crate::dispatch::{self, Incoming};
use crate::error::RouterError;
use crate::headers::to_worker;
use crate::pd::{self, PdIncoming};
use crate::prompt::PromptField;
use crate::state::Router;
use crate::upstream::Upstream;

/// How a route's requests reach workers.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    pub path: &'static str,
    pub prompt: PromptField,
    pub pd: Pd,
}

/// The treatment of a route in PD mode.
#[derive(Clone, Copy, Debug)]
pub enum Pd {
    /// It goes to a prefill and a decode worker.
    Both(PdRoute),
    /// It needs no decoding: one prefill worker answers it.
    Prefill,
    /// The exchange of bootstrap fields is not defined for it: one decode worker answers it, and
    /// computes the prompt itself.
    Decode,
}

fn incoming(
    request: &HttpRequest,
    endpoint: &'static str,
    prompt: PromptField,
    body: Option<Bytes>,
    received: Instant,
) -> Incoming {
    let method = Method::from_bytes(request.method().as_str().as_bytes());
    Incoming {
        method: method.unwrap_or(Method::GET),
        path: path_and_query(request),
        endpoint,
        prompt,
        headers: to_worker(request.headers()),
        body,
        received,
        trace: trace(request),
    }
}

/// The trace that the middleware has begun.
fn trace(request: &HttpRequest) -> Option<Trace> {
    request.extensions().get::<Trace>().cloned()
}

fn path_and_query(request: &HttpRequest) -> String {
    let uri = request.uri().path_and_query();
    uri.map_or_else(|| request.path().to_owned(), ToString::to_string)
}

/// A request with a body.
///
/// # Errors
/// See [`dispatch::dispatch`] and [`pd::dispatch`].
pub async fn pass(
    route: Passed,
    request: HttpRequest,
    router: Data<Router>,
    upstream: Data<Upstream>,
    body: Result<Bytes, Error>,
) -> Result<HttpResponse, RouterError> {
    let received = Instant::now();
    let body = body.map_err(|error| unread(&router, &error))?;
    match (router.is_pd(), route.pd) {
        (true, Pd::Both(pd)) => {
            let incoming = PdIncoming {
                route: pd,
                path: path_and_query(&request),
                endpoint: route.path,
                prompt: route.prompt,
                headers: to_worker(request.headers()),
                body,
                received,
                trace: trace(&request),
            };
            pd::dispatch(&router, &upstream, incoming).await
        }
        (is_pd, pd) => {
            let pool = match (is_pd, pd) {
                (true, Pd::Decode) => &router.decode,
                _ => router.single(),
            };
            let incoming = incoming(&request, route.path, route.prompt, Some(body), received);
            dispatch::dispatch(&router, &upstream, pool, incoming).await
        }
    }
}

/// Why a body could not be read.
fn unread(router: &Router, error: &Error) -> RouterError {
    let status = error.as_response_error().status_code();
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!(
            "The body must have at most max_payload_size = {} bytes.",
            router.config.max_payload_size
        );
        return RouterError::new(status, "payload_too_large", message);
    }
    RouterError::bad_request(format!("The body could not be read: {error}."))
}

/// A request for something that every worker knows, such as the list of models.
///
/// # Errors
/// See [`dispatch::dispatch`].
pub async fn proxy(
    endpoint: &'static str,
    request: HttpRequest,
    router: Data<Router>,
    upstream: Data<Upstream>,
) -> Result<HttpResponse, RouterError> {
    let received = Instant::now();
    let incoming = incoming(&request, endpoint, PromptField::None, None, received);
    dispatch::dispatch(&router, &upstream, router.single(), incoming).await
}

/// A request about a stored response, which goes to the worker that keeps it.
///
/// # Errors
/// 404 if the router does not know the response; else see [`dispatch::to_worker`].
pub async fn stored(
    request: HttpRequest,
    id: Path<String>,
    router: Data<Router>,
    upstream: Data<Upstream>,
    body: Bytes,
) -> Result<HttpResponse, RouterError> {
    let received = Instant::now();
    let all = router.registry.all();
    let keeper = router
        .stored
        .worker(&id)
        .and_then(|worker| router.registry.get(&worker));
    let keeper = match (&keeper, &all[..]) {
        (Some(worker), _) => worker,
        (None, [only]) => only,
        (None, _) => {
            let message = format!(
                "The router does not know which worker keeps the response {:?}: it was not made \
                 through this router, it was forgotten, or its worker is gone.",
                id.as_str()
            );
            let status = StatusCode::NOT_FOUND;
            return Err(RouterError::new(status, "response_not_found", message));
        }
    };
    let body = (!body.is_empty()).then_some(body);
    let endpoint = "/v1/responses/{id}";
    let incoming = incoming(&request, endpoint, PromptField::None, body, received);
    dispatch::to_worker(&router, &upstream, incoming, keeper).await
}
