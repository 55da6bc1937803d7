//! Middleware that measures each HTTP exchange as a whole: from the head of the request to the
//! last byte of its answer, or to the moment when the client goes away.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use actix_web::http::uri::Authority;
use actix_web::middleware::Next;
use actix_web::web::{Bytes, Data};
use actix_web::{Error, HttpRequest};
use hearth_otel::{Clock, HttpOutcome, ServerAddress, ServerSpan, Telemetry};

use crate::exchange::{self, Exchange};
use crate::middleware::request_id::RequestId;
use crate::routes::{self, Observation, Operation};
use crate::state::AppState;

/// The words of a request's schemas that had no effect on the answer.
const SCHEMA_IGNORED: HeaderName = HeaderName::from_static("x-hearth-schema-ignored");
/// The most bytes of that header.
const MAX_LISTED: usize = 1024;
/// nginx's status for a client that closed the connection before the answer was complete.
const CLIENT_CLOSED: u16 = 499;
/// The name in metrics of every path that no route has.
const NO_ROUTE: &str = "none";

/// Middleware.
///
/// # Errors
/// The route's errors.
pub async fn observe(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let route = routes::find(request.match_info().as_str());
    let observed = route.is_none_or(|route| route.observation == Observation::Observed);
    let state = request.app_data::<Data<AppState>>().filter(|_| observed);
    let Some(state) = state.cloned() else {
        return Ok(next.call(request).await?.map_into_boxed_body());
    };
    let name = route.map_or(NO_ROUTE, |route| route.path);
    let mut watch = Watch::start(&state.telemetry, request.request(), name);
    let exchange = Arc::new(Exchange::new(
        state.telemetry.clone(),
        watch.clock,
        watch.span.as_ref().map(ServerSpan::context),
        RequestId::of(request.request()),
        watch.server.take(),
        Duration::from_secs(state.config.stall_timeout),
        route.map_or(Operation::None, |route| route.operation),
        Arc::clone(&state.waiting_tokens),
        state.config.isolate_caches,
        request.peer_addr().map(|peer| peer.ip()),
    ));
    // A client that goes away drops this future, and the watch with it.
    match exchange::within(Arc::clone(&exchange), next.call(request)).await {
        Ok(mut response) => {
            if let Some(words) = listed(&exchange.ignored()) {
                response.headers_mut().insert(SCHEMA_IGNORED, words);
            }
            watch.status = Some(response.status().as_u16());
            Ok(response.map_body(|_, body| {
                let body = body.boxed();
                watch.expects(body.size());
                BoxBody::new(ObservedBody { body, watch })
            }))
        }
        Err(error) => {
            watch.status = Some(error.as_response_error().status_code().as_u16());
            watch.complete = true;
            Err(error)
        }
    }
}

/// The words as a header with commas between them; characters that a header cannot have become
/// `?`, and words that do not fit become `...`.
fn listed(words: &[String]) -> Option<HeaderValue> {
    let mut text = String::new();
    for word in words {
        if text.len() + word.len() > MAX_LISTED {
            text.push_str(", ...");
            break;
        }
        if !text.is_empty() {
            text.push_str(", ");
        }
        let plain = |letter: char| letter.is_ascii_graphic() && letter != ',';
        text.extend(
            word.chars()
                .map(|letter| if plain(letter) { letter } else { '?' }),
        );
    }
    HeaderValue::from_str(&text)
        .ok()
        .filter(|text| !text.is_empty())
}

/// One exchange. Its outcome is recorded when the watch is dropped.
struct Watch {
    telemetry: Telemetry,
    clock: Clock,
    span: Option<ServerSpan>,
    /// Where the client reached this server, if traces are exported.
    server: Option<ServerAddress>,
    method: &'static str,
    route: &'static str,
    received: u64,
    /// The answer's status, once there is an answer.
    status: Option<u16>,
    sent: u64,
    /// The answer's declared length in bytes, if it has one.
    declared: Option<u64>,
    complete: bool,
}

impl Watch {
    fn start(telemetry: &Telemetry, request: &HttpRequest, route: &'static str) -> Self {
        let clock = Clock::now();
        let method = known(request.method());
        let headers = request.headers();
        // HTTP/2 has the host in the target of the request.
        let authority = request.uri().authority().map(Authority::as_str);
        let header = |name: &str| match headers.get(name) {
            None if name == "host" => authority,
            value => value?.to_str().ok(),
        };
        if let Some(http) = telemetry.http() {
            http.begin(method, route);
        }
        Self {
            server: header("host")
                .filter(|_| telemetry.traces())
                .and_then(ServerAddress::parse),
            span: telemetry.server_span(clock, method, route, request.path(), &header),
            telemetry: telemetry.clone(),
            clock,
            method,
            route,
            received: headers
                .get(CONTENT_LENGTH)
                .and_then(|length| length.to_str().ok()?.parse().ok())
                .unwrap_or(0),
            status: None,
            sent: 0,
            declared: None,
            complete: false,
        }
    }

    fn expects(&mut self, size: BodySize) {
        match size {
            BodySize::None => self.declared = Some(0),
            BodySize::Sized(bytes) => self.declared = Some(bytes),
            BodySize::Stream => {}
        }
        // The answer to HEAD declares the length of a body that it does not have.
        self.complete |= self.method == "HEAD" || self.declared == Some(0);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let now = Instant::now();
        let complete = self.complete || self.declared.is_some_and(|bytes| self.sent >= bytes);
        let status = self.status.filter(|_| complete).unwrap_or(CLIENT_CLOSED);
        let outcome = HttpOutcome {
            status,
            error: match status {
                CLIENT_CLOSED => Some("client_disconnect".to_owned()),
                500.. => Some(status.to_string()),
                _ => None,
            },
            duration: now.duration_since(self.clock.start()),
            request_bytes: self.received,
            response_bytes: self.sent,
        };
        if let Some(http) = self.telemetry.http() {
            let trace = self.span.as_ref().and_then(ServerSpan::trace);
            http.end(self.method, self.route, &outcome, trace);
        }
        if let Some(span) = self.span.take() {
            span.end(self.clock, now, &outcome);
        }
    }
}

/// The method as a label of metrics. Each label value is a time series, so that all methods which
/// a client makes up share one.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "PATCH" => "PATCH",
        "OPTIONS" => "OPTIONS",
        "CONNECT" => "CONNECT",
        "TRACE" => "TRACE",
        _ => "_OTHER",
    }
}

struct ObservedBody {
    body: BoxBody,
    watch: Watch,
}

impl MessageBody for ObservedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_next(context);
        match &next {
            Poll::Ready(Some(Ok(bytes))) => self.watch.sent += bytes.len() as u64,
            Poll::Ready(None) => self.watch.complete = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        next
    }
}
