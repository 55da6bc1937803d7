//! `GET /debug/trace`: the steps that the engine made lately.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::{self, Data, Query};
use hearth_otel::STEPS_KEPT;
use serde::Deserialize;

use crate::error::{ApiError, out_of_bounds};
use crate::state::AppState;

const DEFAULT_SECONDS: f64 = 10.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// How far back the trace goes, in seconds.
    seconds: Option<f64>,
}

/// A trace that Perfetto and `chrome://tracing` show.
///
/// # Errors
/// 400 for a time that is not kept, 503 without a model.
pub async fn trace(
    state: Data<AppState>,
    query: Result<Query<TraceQuery>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::field("seconds", error.to_string()))?;
    let seconds = query.seconds.unwrap_or(DEFAULT_SECONDS);
    let most = STEPS_KEPT.as_secs_f64();
    if !(0.0..=most).contains(&seconds) {
        let bound = format!("between 0 and {most} seconds");
        return Err(out_of_bounds("seconds", &bound, seconds));
    }
    let telemetry = state.telemetry.clone();
    let last = Duration::from_secs_f64(seconds);
    // A minute of short steps is megabytes of JSON, which no connection should wait for.
    let trace = web::block(move || telemetry.step_trace(last)).await;
    match trace {
        Ok(Some(trace)) => Ok(HttpResponse::Ok()
            .content_type("application/json")
            .body(trace)),
        Ok(None) => Err(state.served().err().unwrap_or_else(|| {
            ApiError::unavailable("not_recorded", "the steps of the engine are not recorded")
        })),
        Err(_) => Err(ApiError::internal("writing the trace failed")),
    }
}
