//! `/live`: the server as people watch it, in a stream of snapshots.
//!
//! One task makes the snapshots for all viewers ([`feed`]), and only while there are any.

mod feed;
mod snapshot;

use actix_web::http::Method;
use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::{Bytes, Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use serde_json::json;

use crate::error::ApiError;
use crate::respond::X_ACCEL_BUFFERING;
use crate::state::AppState;
use crate::{sse, stall};
pub use feed::Live;
use feed::Viewer;

/// Tokens of a prefix whose text is shown.
const PREFIX_TOKENS: usize = 400;

/// `/live`: server-sent events. `hello` comes once and describes the server, `tree` has the nodes of
/// the prefix cache whenever they have changed, and `snapshot` has everything else.
///
/// # Errors
/// 503 if too many watch.
pub async fn live(request: HttpRequest, state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    if request.method() == Method::HEAD {
        return Ok(HttpResponse::Ok().content_type(sse::CONTENT_TYPE).finish());
    }
    let viewer = feed::watch(&state)?;
    let hello = snapshot::hello(&state, shows_text(&state));
    let patience = std::time::Duration::from_secs(state.config.stall_timeout);
    Ok(HttpResponse::Ok()
        .content_type(sse::CONTENT_TYPE)
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header((X_ACCEL_BUFFERING, "no"))
        .streaming(stall::cut_off(events(hello, viewer), patience)))
}

fn events(hello: Vec<u8>, viewer: Viewer) -> impl Stream<Item = Result<Bytes, ApiError>> {
    stream::unfold((hello, viewer), |(first, mut viewer)| async move {
        let bytes = match first.is_empty() {
            true => viewer.next().await?,
            false => first.into(),
        };
        Some((Ok(bytes), (Vec::new(), viewer)))
    })
}

/// True if this server shows the text of prompts, which belong to other people: only where keys are
/// needed, and the routes take only an administrator's.
fn shows_text(state: &AppState) -> bool {
    state.config.admin_api_key.is_some() || state.clients.need_keys()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixQuery {
    /// The node's id in an event `tree`.
    node: Option<String>,
}

/// `/live/prefix`: the text of a cached prefix.
///
/// # Errors
/// 400 for an id that is none or of a node that is gone, 403 on a server without keys, 503 without a
/// model.
pub async fn prefix(
    state: Data<AppState>,
    query: Result<Query<PrefixQuery>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::field("node", error.to_string()))?;
    let invalid = || {
        let message = "must be the id of a node in an event `tree` of /live";
        ApiError::field("node", message)
    };
    let given = query.node.ok_or_else(invalid)?;
    let node = u64::from_str_radix(&given, 16).map_err(|_| invalid())?;
    let served = state.served()?;
    if !shows_text(&state) {
        return Err(ApiError::forbidden(
            "the text of prompts is shown to an administrator's key alone: start the server with \
             --admin-api-key or --api-key",
        )
        .code("key_required"));
    }
    let prefix = served.engine.cached_prefix(node, PREFIX_TOKENS).wait();
    let stopped = |_| ApiError::unavailable("engine_stopped", "the engine has stopped");
    let Some(prefix) = prefix.await.map_err(stopped)? else {
        return Err(ApiError::field(
            "node",
            format!("{given} is no longer cached"),
        ));
    };
    let text = served.text.decode(&prefix.tokens, false);
    Ok(HttpResponse::Ok().json(json!({
        "node": given,
        "tokens": prefix.own,
        "shown_tokens": prefix.tokens.len(),
        "text": text,
    })))
}
