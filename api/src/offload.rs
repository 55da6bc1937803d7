//! Keeps long computations off the threads that serve connections.

use std::num::NonZero;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use actix_web::HttpRequest;
use actix_web::web::Payload;
use tokio::sync::Semaphore;

use crate::body::{self, Body};
use crate::error::ApiError;
use crate::exchange::{self, Exchange};
use crate::served::Served;
use crate::state::AppState;

/// A body of this size is parsed, rendered and tokenised in well under a millisecond. Handing it to
/// another thread would cost more than it saves.
const INLINE_BYTES: usize = 4 * 1024;

/// One permit for each piece of work that may run at a time: half of the cores, because the model's
/// threads wait for the slowest among them, and every stream waits for the model.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(1, NonZero::get);
    Semaphore::new((cores / 2).max(1))
});

/// Reads the body of a request and runs `work` on it, as [`when_large`] does. Gives the model and
/// the result.
///
/// # Errors
/// 503 without a model, 4xx for a body that does not arrive whole, the errors of `work`, and 500
/// when it panics.
pub async fn prepare<T: Send + 'static>(
    request: &HttpRequest,
    payload: Payload,
    state: &AppState,
    work: impl FnOnce(&Served, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(Served, T), ApiError> {
    let served = state.served()?.clone();
    let body = body::read(request, payload, state.config.max_body_bytes).await?;
    prepare_read(served, body, work).await
}

/// [`prepare`] for a body that was read already.
///
/// # Errors
/// The errors of `work`, and a 500 when it panics.
pub async fn prepare_read<T: Send + 'static>(
    served: Served,
    body: Body,
    work: impl FnOnce(&Served, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(Served, T), ApiError> {
    // Reading an adapter takes longer than any body.
    let reads = served.adapters.may_read();
    let size = if reads { usize::MAX } else { body.len() };
    when_large(size, move || {
        let prepared = work(&served, &body)?;
        Ok((served, prepared))
    })
    .await?
}

/// Runs `work` here if its input is small, else on the blocking pool when its turn comes.
///
/// # Errors
/// 500 when `work` panics on the pool.
pub async fn when_large<T: Send + 'static>(
    input_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if input_bytes <= INLINE_BYTES {
        return Ok(work());
    }
    let exchange = Exchange::current();
    let turn = TURNS.acquire().await.expect("nothing closes the semaphore");
    let done = actix_web::web::block(move || {
        // The permit is held until the work ends, even if the client has gone by then.
        let _turn = turn;
        exchange::carried(exchange, work)
    })
    .await;
    done.map_err(|_| ApiError::internal("preparing the prompt or writing the answer failed"))
}
