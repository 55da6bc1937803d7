//! The request to the prefill worker. It runs in a task of its own, because decode may answer the
//! client before prefill's response has ended; dropping it closes the connection.

use std::sync::Arc;

use actix_web::rt;
use actix_web::web::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::error::RouterError;
use crate::metrics::Metrics;
use crate::relay::{AbortOnDrop, client_status};
use crate::retry::is_retryable;
use crate::upstream::{Opened, Outgoing, Upstream, chain};
use crate::worker::Lease;

/// Longest response that is kept in memory to be merged.
pub const MOST_BYTES: usize = 256 << 20;
/// Longest error response that is read.
const MOST_ERROR_BYTES: usize = 64 << 10;
/// Longest text of an error that is shown.
const MOST_ERROR_CHARS: usize = 2000;

/// Success, or the error for the client and whether another attempt makes sense.
pub type Head = Result<(), (RouterError, bool)>;

/// A request in flight at the prefill worker.
pub struct Prefill {
    pub task: AbortOnDrop,
    /// Reports the status of the response.
    pub head: oneshot::Receiver<Head>,
    /// The body, if it is kept; closed without a message if the response broke off.
    pub body: oneshot::Receiver<Bytes>,
}

impl Prefill {
    /// Sends the request. The body of the response is read to its end, and kept if `keep`.
    pub fn start(
        upstream: Upstream,
        outgoing: Outgoing,
        lease: Lease,
        metrics: Arc<Metrics>,
        keep: bool,
    ) -> Self {
        let (report_head, head) = oneshot::channel();
        let (report_body, body) = oneshot::channel();
        let task = rt::spawn(async move {
            let result = open(&upstream, outgoing, &lease, &metrics).await;
            // A receiver that is gone has lost its interest: decode has answered already.
            let opened = match result {
                Ok(opened) => opened,
                Err(error) => return drop(report_head.send(Err(error))),
            };
            let _ = report_head.send(Ok(()));
            let most = if keep { MOST_BYTES } else { 0 };
            match read(opened, most).await {
                Ok(kept) => {
                    lease.succeeded();
                    if keep {
                        let _ = report_body.send(kept);
                    }
                }
                Err(error) => {
                    lease.failed("broken_stream");
                    let worker = &lease.worker().url;
                    tracing::warn!(worker, error, "prefill's response broke off");
                }
            }
        });
        Self {
            task: AbortOnDrop::new(task),
            head,
            body,
        }
    }
}

async fn open(
    upstream: &Upstream,
    outgoing: Outgoing,
    lease: &Lease,
    metrics: &Metrics,
) -> Result<Opened, (RouterError, bool)> {
    let worker = lease.worker();
    let opened = upstream.open(outgoing).await.map_err(|error| {
        lease.failed("transport");
        let why = chain(&error);
        tracing::warn!(worker = worker.url, error = why, "a worker did not respond");
        let again = !error.is_timeout() || error.is_connect();
        let error = RouterError::unreachable("prefill_unavailable", &worker.url, why);
        (error, again)
    })?;
    let status = opened.status.as_u16();
    metrics.upstream_response(status, "");
    if opened.status.is_success() {
        return Ok(opened);
    }
    lease.responded(status);
    let code = match opened.status.is_client_error() {
        true => "prefill_bad_request",
        false => "prefill_internal_error",
    };
    let own = client_status(opened.status);
    let body = opened.collect(MOST_ERROR_BYTES).await.unwrap_or_default();
    let message = format!(
        "The prefill worker at {} answered with status {status}: {}",
        worker.url,
        message(&body)
    );
    Err((RouterError::new(own, code, message), is_retryable(status)))
}

/// The text of an error response: its message, or the beginning of its body.
fn message(body: &[u8]) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = match (&json["error"]["message"], &json["message"]) {
        (Value::String(text), _) | (_, Value::String(text)) => text.clone(),
        _ => String::from_utf8_lossy(body).into_owned(),
    };
    text.chars().take(MOST_ERROR_CHARS).collect()
}

/// Reads a body to its end and keeps it, if it may have bytes.
async fn read(mut opened: Opened, most: usize) -> Result<Bytes, String> {
    if most > 0 {
        let body = opened.collect(most).await;
        return body.map(Bytes::from).map_err(|error| error.to_string());
    }
    while let Some(piece) = opened.next().await {
        piece.map_err(|error| chain(&error))?;
    }
    Ok(Bytes::new())
}
