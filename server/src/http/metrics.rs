//! `GET /metrics`.

use std::io::Write;
use std::time::Duration;

use actix_web::http::header::{
    self, Accept, AcceptEncoding, ContentEncoding, Encoding, Header, Quality, QualityItem,
};
use actix_web::web::{self, Data};
use actix_web::{HttpRequest, HttpResponse};
use flate2::Compression;
use flate2::write::GzEncoder;
use hearth_otel::TextFormat;
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
pub async fn metrics(
    request: HttpRequest,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (format, gzip) = (format(&request), takes_gzip(&request));
    let telemetry = state.telemetry.clone();
    let turn = tokio::time::timeout(PATIENCE, TURN.lock()).await;
    let turn = turn.map_err(|_| ApiError::unavailable("busy", "too many scrapes at a time"))?;
    // Off the threads that serve connections, whatever the page's size.
    let page = web::block(move || {
        let page = telemetry.scrape(format).into_bytes();
        if gzip { compressed(&page) } else { Ok(page) }
    });
    let page = page.await;
    drop(turn);
    let Ok(Ok(page)) = page else {
        return Err(ApiError::internal("writing the metrics failed"));
    };
    let mut response = HttpResponse::Ok();
    response
        .content_type(format.content_type())
        .insert_header((header::VARY, "accept, accept-encoding"));
    if gzip {
        response.insert_header(ContentEncoding::Gzip);
    }
    Ok(response.body(page))
}

fn compressed(page: &[u8]) -> std::io::Result<Vec<u8>> {
    // Names repeat: the fastest level already leaves a tenth.
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    encoder.write_all(page)?;
    encoder.finish()
}

/// OpenMetrics where it is asked for by name and the text that everything reads is not liked
/// better; what Prometheus asks for, and a browser does not.
fn format(request: &HttpRequest) -> TextFormat {
    let Ok(accept) = Accept::parse(request) else {
        return TextFormat::Prometheus;
    };
    let (mut openmetrics, mut plain) = (Quality::ZERO, Quality::ZERO);
    for QualityItem { item, quality } in accept.iter() {
        let version = item.get_param("version").map(|version| version.as_str());
        match item.essence_str() {
            "application/openmetrics-text" if version.is_none_or(|v| v == "1.0.0") => {
                openmetrics = openmetrics.max(*quality);
            }
            "text/plain" => plain = plain.max(*quality),
            _ => {}
        }
    }
    if openmetrics > Quality::ZERO && openmetrics >= plain {
        TextFormat::OpenMetrics
    } else {
        TextFormat::Prometheus
    }
}

fn takes_gzip(request: &HttpRequest) -> bool {
    let supported = [Encoding::gzip(), Encoding::identity()];
    AcceptEncoding::parse(request)
        .ok()
        .and_then(|accepted| accepted.negotiate(supported.iter()))
        .is_some_and(|chosen| chosen == Encoding::gzip())
}
