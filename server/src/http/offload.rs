//! Keeps long computations off the threads that serve connections.

use super::error::ApiError;

/// A body of this size is parsed, templated and tokenised in well under a
/// millisecond; handing it to another thread would cost more than it spares.
const INLINE_BYTES: usize = 4 * 1024;

/// Runs `work` here if its input is small, else on the blocking pool.
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
    let done = actix_web::web::block(work).await;
    done.map_err(|_| ApiError::internal("preparing the prompt failed"))
}
