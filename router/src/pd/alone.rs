//! A request without a prefill worker: decode computes the prompt itself, as Hearth's can.

use std::time::Duration;

use tokio::time::timeout;

use super::plan::{Needed, Plan};
use super::{Failed, transport};
use crate::error::RouterError;
use crate::select::Wanted;
use crate::state::Router;
use crate::upstream::{Opened, Upstream};
use crate::worker::Lease;

/// Sends a request to a decode worker alone, after `error`: no prefill worker is available.
///
/// # Errors
/// `error`, if decode may not work alone, does not answer in time, or is not available either.
/// Otherwise decode's failure.
pub async fn decode_alone(
    router: &Router,
    upstream: &Upstream,
    plan: &Plan<'_>,
    wanted: Wanted<'_>,
    tried: &[String],
    error: RouterError,
) -> Result<(Opened, Lease), Failed> {
    let seconds = router.config.decode_alone_timeout_secs;
    let failed = Failed::Error { error, again: true };
    // Without prefill's response there are no log-probabilities of the prompt.
    if seconds == 0.0 || plan.needed == Needed::Logprobs {
        return Err(failed);
    }
    let pool = &router.decode;
    let Ok(lease) = pool.lease(&router.registry, &router.metrics, wanted, tried) else {
        return Err(failed);
    };
    let outgoing = plan.outgoing(&lease, plan.body_alone());
    let opening = upstream.open(outgoing);
    let Ok(opened) = timeout(Duration::from_secs_f64(seconds), opening).await else {
        return Err(failed);
    };
    let opened = opened.map_err(|error| transport(&lease, "decode_unavailable", &error))?;
    router.metrics.upstream_response(opened.status.as_u16(), "");
    if opened.status.is_success() {
        return Ok((opened, lease));
    }
    let opened = Box::new(opened);
    Err(Failed::Decode { opened, lease })
}
