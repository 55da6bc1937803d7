//! Questions to all workers at once.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::{Bytes, Data};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::exposition::merge;
use crate::state::Router;
use crate::upstream::{Outgoing, Upstream, chain};
use crate::worker::Worker;

/// Longest time of one such question.
const TIMEOUT: Duration = Duration::from_secs(10);

async fn get(router: &Router, upstream: &Upstream, worker: &Worker, path: &str) -> Option<Bytes> {
    let url = format!("{}{path}", worker.url);
    let body = upstream.get(url, router.own_headers(), TIMEOUT).await;
    body.ok()
}

/// `GET /get_load` of every worker: the sum of its tokens, or -1 if it does not say.
pub async fn loads(router: Data<Router>, upstream: Data<Upstream>) -> HttpResponse {
    let (router, upstream) = (&router, &upstream);
    let workers = router.registry.all();
    let each = workers.iter().map(|worker| async move {
        let body = get(router, upstream, worker, "/get_load").await;
        let body = body.and_then(|body| serde_json::from_slice(&body).ok());
        json!({"worker": worker.url, "load": body.map_or(-1, |body: Value| tokens(&body))})
    });
    HttpResponse::Ok().json(json!({"workers": join_all(each).await}))
}

/// SGLang answers with a list that has an object for each data-parallel rank.
fn tokens(body: &Value) -> i64 {
    let one = std::slice::from_ref(body);
    let ranks = body.as_array().map_or(one, Vec::as_slice);
    let counts: Option<Vec<i64>> = ranks
        .iter()
        .map(|rank| rank["num_tokens"].as_i64())
        .collect();
    counts.map_or(-1, |counts| counts.iter().sum())
}

/// `POST /flush_cache` to every worker. 200 if all have done it, else 502 with the failures.
pub async fn flush_cache(router: Data<Router>, upstream: Data<Upstream>) -> HttpResponse {
    let workers = router.registry.all();
    let each = workers
        .iter()
        .map(|worker| flush(&router, &upstream, worker));
    let failures: Vec<Value> = join_all(each).await.into_iter().flatten().collect();
    let flushed = workers.len() - failures.len();
    let (status, message) = match failures.is_empty() {
        true => (StatusCode::OK, "All workers have flushed their caches."),
        false => (
            StatusCode::BAD_GATEWAY,
            "Some workers have not flushed their caches.",
        ),
    };
    HttpResponse::build(status).json(json!({
        "message": message,
        "workers_flushed": flushed,
        "total_workers": workers.len(),
        "failures": failures,
    }))
}

async fn flush(router: &Router, upstream: &Upstream, worker: &Arc<Worker>) -> Option<Value> {
    let outgoing = Outgoing {
        method: Method::POST,
        url: format!("{}/flush_cache", worker.url),
        headers: router.own_headers(),
        body: None,
        leg: None,
    };
    let sent = tokio::time::timeout(TIMEOUT, upstream.send(outgoing)).await;
    let error = match sent {
        Ok(Ok(response)) if response.status().is_success() => return None,
        Ok(Ok(response)) => format!("status {}", response.status().as_u16()),
        Ok(Err(error)) => chain(&error),
        Err(_) => format!("no response within {} s", TIMEOUT.as_secs()),
    };
    Some(json!({"worker": worker.url, "error": error}))
}

/// The metrics of all workers in one text. A worker that does not answer is left out.
pub async fn engine_metrics(router: Data<Router>, upstream: Data<Upstream>) -> HttpResponse {
    let (router, upstream) = (&router, &upstream);
    let workers = router.registry.all();
    let each = workers.iter().map(|worker| async move {
        let body = get(router, upstream, worker, "/metrics").await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        Some((worker.url.clone(), text))
    });
    let texts: Vec<_> = join_all(each).await.into_iter().flatten().collect();
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(merge(&texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_the_sum_over_ranks() {
        assert_eq!(tokens(&json!([{"num_tokens": 3}, {"num_tokens": 4}])), 7);
        assert_eq!(tokens(&json!({"num_tokens": 5})), 5);
        assert_eq!(tokens(&json!({"error": "x"})), -1);
    }
}
