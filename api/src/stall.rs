//! Cuts off clients that stop reading in the middle of a stream.
//!
//! The model does not wait for such a client: its tokens are kept, at the most as many as it asked
//! for. This bounds for how long.

use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::rt::net::TcpStream;
use actix_web::rt::task::JoinHandle;
use actix_web::rt::{spawn, time};
use actix_web::web::Bytes;
use futures_util::Stream;

use crate::error::ApiError;

/// Has the operating system close a connection whose client acknowledges no bytes for `patience`.
/// Linux and its relatives can do that; elsewhere nothing happens.
pub fn bound_writes(io: &dyn Any, patience: Duration) {
    let plain = io.downcast_ref::<TcpStream>();
    let socket = plain.or_else(|| {
        let tls = io.downcast_ref::<TlsStream<TcpStream>>()?;
        Some(tls.get_ref().0)
    });
    #[cfg(any(target_os = "android", target_os = "linux"))]
    if let Some(socket) = socket {
        // An error means that the socket is closed already.
        let _ = socket2::SockRef::from(socket).set_tcp_user_timeout(Some(patience));
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    let _ = (socket, patience);
}

/// `stream`, but it is dropped when it is not polled for `patience` after it gave an item. The next
/// poll then gets an error, which closes the connection.
pub fn cut_off<S>(stream: S, patience: Duration) -> impl Stream<Item = Result<Bytes, ApiError>>
where
    S: Stream<Item = Result<Bytes, ApiError>> + 'static,
{
    let shared = Rc::new(RefCell::new(Shared {
        stream: Some(Box::pin(stream)),
        given: None,
    }));
    let watch = spawn(watch(Rc::clone(&shared), patience));
    Watched { shared, watch }
}

struct Shared<S> {
    /// None once it was cut off.
    stream: Option<Pin<Box<S>>>,
    /// When it gave an item that no poll has followed yet; none while a poll waits for an item.
    given: Option<Instant>,
}

struct Watched<S> {
    shared: Rc<RefCell<Shared<S>>>,
    watch: JoinHandle<()>,
}

/// Looks at regular times whether the stream is still polled, because a missing poll wakes no
/// task.
async fn watch<S>(shared: Rc<RefCell<Shared<S>>>, patience: Duration) {
    loop {
        let given = shared.borrow().given;
        let silent = given.map_or(Duration::ZERO, |given| given.elapsed());
        if silent >= patience {
            break;
        }
        time::sleep(patience - silent).await;
    }
    tracing::info!(
        seconds = patience.as_secs(),
        "a client that took nothing of its stream is cut off (--stall-timeout)"
    );
    let stalled = shared.borrow_mut().stream.take();
    drop(stalled);
}

impl<S> Stream for Watched<S>
where
    S: Stream<Item = Result<Bytes, ApiError>>,
{
    type Item = Result<Bytes, ApiError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut shared = self.shared.borrow_mut();
        let Some(stream) = &mut shared.stream else {
            let message = "the client took nothing of its stream for too long";
            return Poll::Ready(Some(Err(ApiError::internal(message))));
        };
        let next = stream.as_mut().poll_next(context);
        shared.given = matches!(next, Poll::Ready(Some(_))).then(Instant::now);
        next
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, stream};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(20);

    /// Endless; `alive` goes with it.
    fn endless(alive: Rc<()>) -> impl Stream<Item = Result<Bytes, ApiError>> {
        stream::repeat_with(move || {
            let _kept = &alive;
            Ok(Bytes::from_static(b"x"))
        })
    }

    #[actix_web::test]
    async fn a_stream_that_is_no_longer_read_is_dropped_and_ends_in_an_error() {
        let alive = Rc::new(());
        let stream = cut_off(endless(Rc::clone(&alive)), PATIENCE);
        let mut stream = std::pin::pin!(stream);
        assert!(stream.next().await.unwrap().is_ok());
        let deadline = Instant::now() + Duration::from_secs(30);
        while Rc::strong_count(&alive) > 1 {
            assert!(Instant::now() < deadline, "it is kept for ever");
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(stream.next().await.unwrap().is_err());
    }

    #[actix_web::test]
    async fn a_stream_that_has_nothing_to_give_is_not_its_readers_fault() {
        let alive = Rc::new(());
        let silent = endless(Rc::clone(&alive)).take(1).chain(stream::pending());
        let stream = cut_off(silent, PATIENCE);
        let mut stream = std::pin::pin!(stream);
        assert!(stream.next().await.unwrap().is_ok());
        assert!(stream.next().now_or_never().is_none(), "it gave something");
        time::sleep(5 * PATIENCE).await;
        assert!(stream.next().now_or_never().is_none(), "it was cut off");
    }

    #[actix_web::test]
    async fn a_stream_that_is_left_goes_at_once() {
        let alive = Rc::new(());
        let stream = cut_off(endless(Rc::clone(&alive)), Duration::from_secs(3600));
        drop(stream);
        let deadline = Instant::now() + Duration::from_secs(30);
        while Rc::strong_count(&alive) > 1 {
            assert!(Instant::now() < deadline, "the watch holds it");
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}
