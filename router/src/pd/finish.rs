//! Merges what is needed of prefill's response into decode's.

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Failed;
use super::plan::Needed;
use super::prefill::{Head, MOST_BYTES, Prefill};
use crate::error::RouterError;
use crate::merge::{Details, InputLogprobs, Rewriter, prompt_details, with_details};
use crate::relay::{AbortOnDrop, Exchange, client_status, respond};
use crate::sse::{Framing, PATIENCE};
use crate::upstream::Opened;
use crate::worker::Lease;

/// A response whose first bytes can go to the client.
pub struct Answer {
    opened: Opened,
    lease: Lease,
    rewriter: Option<Rewriter>,
    prefill: AbortOnDrop,
}

impl Answer {
    pub fn respond(self, exchange: Exchange) -> HttpResponse {
        respond(
            self.opened,
            self.lease,
            exchange,
            self.rewriter,
            Some(self.prefill),
        )
    }
}

/// An attempt that succeeded so far.
pub struct Paired {
    pub decode: Opened,
    pub lease: Lease,
    pub prefill: Prefill,
}

/// The answer to the client.
///
/// # Errors
/// A response that is needed as a whole broke off.
pub async fn finish(needed: Needed, paired: Paired) -> Result<Answer, Failed> {
    let Paired {
        decode,
        lease,
        prefill,
    } = paired;
    let streamed = Framing::of(decode.content_type()) != Framing::Whole;
    let Prefill { task, head, body } = prefill;
    let (opened, rewriter) = match (needed, streamed) {
        (Needed::Nothing, _) => (decode, None),
        (Needed::Details, true) => (decode, Some(Rewriter::Usage(Details::Pending(body)))),
        (Needed::Logprobs, true) => {
            let body = prefill_body(head, body).await?;
            let logprobs = InputLogprobs::read(&body, true);
            (decode, Some(Rewriter::Logprobs(logprobs)))
        }
        (Needed::Details | Needed::Logprobs, false) => {
            let (status, headers) = (decode.status, decode.headers.clone());
            let own = match decode.collect(MOST_BYTES).await {
                Ok(own) => own,
                Err(error) => {
                    lease.failed("broken_stream");
                    let url = &lease.worker().url;
                    let error = RouterError::unreachable("decode_unavailable", url, error);
                    return Err(Failed::Error { error, again: true });
                }
            };
            let merged = if needed == Needed::Logprobs {
                let body = prefill_body(head, body).await?;
                InputLogprobs::read(&body, false).merged(&own)
            } else {
                let body = timeout(PATIENCE, body).await.ok().and_then(Result::ok);
                let details = body.and_then(|body| prompt_details(&body, false));
                details.and_then(|details| with_details(&own, &details))
            };
            let own = merged.map_or_else(|| Bytes::from(own), Bytes::from);
            (Opened::whole(status, headers, own), None)
        }
    };
    Ok(Answer {
        opened,
        lease,
        rewriter,
        prefill: task,
    })
}

/// The whole of prefill's response.
///
/// # Errors
/// Prefill answered with an error, which decode's first bytes may have preceded, or its response
/// broke off.
async fn prefill_body(
    head: oneshot::Receiver<Head>,
    body: oneshot::Receiver<Bytes>,
) -> Result<Bytes, Failed> {
    // A head that was received before was a success: a failure ends the attempt at once.
    if !head.is_terminated()
        && let Ok(Err((error, again))) = head.await
    {
        return Err(Failed::Error { error, again });
    }
    body.await.map_err(|_| {
        let message = "The prefill worker's response broke off, and with it the log-probabilities \
                       of the prompt.";
        let status = client_status(reqwest::StatusCode::BAD_GATEWAY);
        Failed::Error {
            error: RouterError::new(status, "prefill_unavailable", message),
            again: true,
        }
    })
}
