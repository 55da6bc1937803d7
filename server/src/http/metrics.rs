//! `GET /metrics`.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Data;
use hearth_otel::CONTENT_TYPE;
use tokio::sync::Mutex;

use super::error::ApiError;
use super::state::AppState;

/// One page is written at a time, however many ask.
static TURN: Mutex<()> = Mutex::const_new(());
/// Scrapes that wait longer are told to come again.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is measured, as Prometheus reads it; there from the first moment to the last.
///
/// # Errors
/// 503 while too many others ask.
pub async fn metrics(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let telemetry = state.telemetry.clone();
    let turn = tokio::time::timeout(PATIENCE, TURN.lock()).await;
    let turn = turn.map_err(|_| ApiError::unavailable("busy", "too many scrapes at a time"))?;
    // Off the threads that serve connections, whatever the page's size.
    let page = actix_web::web::block(move || telemetry.scrape()).await;
    drop(turn);
    let page = page.map_err(|_| ApiError::internal("writing the metrics failed"))?;
    Ok(HttpResponse::Ok().content_type(CONTENT_TYPE).body(page))
}
