//! The span of an exchange with a client: from the head of the request to the last byte of the
//! response, or to the moment when the client goes away.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::ServiceResponse;
use actix_web::http::header::CONTENT_LENGTH;
use actix_web::web::Bytes;
use actix_web::{Error, HttpMessage, HttpRequest};
use hearth_otel::{Clock, HttpOutcome, ServerSpan, Traces};

/// nginx's status for a client that closed the connection before the response was complete.
const CLIENT_CLOSED: u16 = 499;

/// An exchange. Its span ends when this is dropped.
pub struct Traced {
    clock: Clock,
    span: Option<ServerSpan>,
    received: u64,
    sent: u64,
    status: Option<u16>,
    complete: bool,
}

impl Traced {
    /// Begins the span. The handlers find its trace in the request's extensions.
    pub fn begin(
        traces: &Traces,
        method: &'static str,
        route: &str,
        request: &HttpRequest,
    ) -> Self {
        let clock = Clock::now();
        let headers = request.headers();
        let header = |name: &str| headers.get(name)?.to_str().ok();
        let (span, trace) = traces.server_span(clock, method, route, request.path(), &header);
        request.extensions_mut().insert(trace);
        let length = headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        Self {
            clock,
            span: Some(span),
            received: length.unwrap_or(0),
            sent: 0,
            status: None,
            // The response to HEAD has no body, whatever length it declares.
            complete: method == "HEAD",
        }
    }

    /// Follows the response to its last byte.
    ///
    /// # Errors
    /// The error of the response.
    pub fn follow(
        mut self,
        response: Result<ServiceResponse<impl MessageBody + 'static>, Error>,
    ) -> Result<ServiceResponse<BoxBody>, Error> {
        match response {
            Ok(response) => {
                self.status = Some(response.status().as_u16());
                Ok(response.map_body(|_, body| {
                    let body = body.boxed();
                    self.complete |= body.size().is_eof();
                    BoxBody::new(TracedBody { body, traced: self })
                }))
            }
            Err(error) => {
                self.status = Some(error.as_response_error().status_code().as_u16());
                self.complete = true;
                Err(error)
            }
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let now = Instant::now();
        let status = self.status.filter(|_| self.complete);
        let status = status.unwrap_or(CLIENT_CLOSED);
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
        if let Some(span) = self.span.take() {
            span.end(self.clock, now, &outcome);
        }
    }
}

struct TracedBody {
    body: BoxBody,
    traced: Traced,
}

impl MessageBody for TracedBody {
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
            Poll::Ready(Some(Ok(bytes))) => {
                self.traced.sent += bytes.len() as u64;
                // A body of a known length is not asked again after its last byte.
                if let BodySize::Sized(length) = self.body.size() {
                    self.traced.complete |= self.traced.sent >= length;
                }
            }
            Poll::Ready(None) => self.traced.complete = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        next
    }
}
