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

use crate::error::ApiError;
use crate::state::AppState;

/// One page is written at a time, however many scrapes arrive.
static TURN: Mutex<()> = Mutex::const_new(());
/// Scrapes that wait longer for their turn get 503.
const PATIENCE: Duration = Duration::from_secs(5);

/// All metrics in a format that Prometheus reads, from the start of the process to its end.
///
/// # Errors
/// 404 if no metrics are recorded, 503 while too many other scrapes wait.
pub async fn metrics(
    request: HttpRequest,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (format, gzip) = (format(&request), takes_gzip(&request));
    let telemetry = state.telemetry.clone();
    let turn = tokio::time::timeout(PATIENCE, TURN.lock()).await;
    let turn = turn.map_err(|_| ApiError::unavailable("busy", "too many scrapes at a time"))?;
    // The page is written outside of the threads that serve connections, whatever its size.
    let page = web::block(move || {
        let page = telemetry.scrape(format).map(String::into_bytes);
        page.map(|page| if gzip { compressed(&page) } else { Ok(page) })
    });
    let page = page.await;
    drop(turn);
    let page = match page {
        Ok(Some(Ok(page))) => page,
        Ok(None) => return Err(ApiError::metrics_disabled()),
        Ok(Some(Err(_))) | Err(_) => {
            return Err(ApiError::internal("writing the metrics failed"));
        }
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
    // Names repeat, so that the fastest level already leaves a tenth of the bytes.
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    encoder.write_all(page)?;
    encoder.finish()
}

/// OpenMetrics if the request accepts it by name and does not prefer plain text. Prometheus asks
/// for it, and a browser does not.
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
