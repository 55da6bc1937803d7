//! Cancels requests over HTTP/2 whose client has gone.
//!
//! Over HTTP/1.1 actix drops a handler when the connection closes. Over HTTP/2 a client leaves by
//! resetting the stream of its request. Actix notices that only when it writes, and an answer that
//! is no stream is written after all of it was computed. The request's body shows it earlier:
//! polled again after its end, it gives an error if the stream was reset.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::http::Version;
use actix_web::middleware::Next;
use actix_web::rt::time;
use actix_web::web::Bytes;
use actix_web::{Error, HttpMessage};
use futures_util::{FutureExt, Stream, StreamExt};

use crate::error::ApiError;

/// How often the body is polled.
const INTERVAL: Duration = Duration::from_millis(250);

/// Middleware.
///
/// # Errors
/// The route's errors, and one for the log when the client has disconnected.
pub async fn watch(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if request.version() != Version::HTTP_2 {
        return next.call(request).await;
    }
    let body = Rc::new(RefCell::new(Body {
        payload: request.take_payload(),
        ended: false,
    }));
    let payload = Box::pin(Reader(Rc::clone(&body)));
    request.set_payload(Payload::Stream { payload });
    tokio::select! {
        biased;
        response = next.call(request) => response,
        () = gone(&body) => Err(ApiError::client_gone().into()),
    }
}

struct Body {
    payload: Payload,
    /// True if the handler has read all of it.
    ended: bool,
}

/// The body as the handler reads it.
struct Reader(Rc<RefCell<Body>>);

impl Stream for Reader {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut body = self.0.borrow_mut();
        let next = body.payload.poll_next_unpin(context);
        body.ended = matches!(next, Poll::Ready(None));
        next
    }
}

/// Waits until the client has gone.
async fn gone(body: &RefCell<Body>) {
    loop {
        time::sleep(INTERVAL).await;
        let mut body = body.borrow_mut();
        if body.ended && matches!(body.payload.next().now_or_never(), Some(Some(Err(_)))) {
            return;
        }
    }
}
