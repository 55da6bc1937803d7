//! Health checks: one task per worker asks `GET /health` until the worker is removed.
//!
//! A new worker is asked often until it answers for the first time. Each time a worker becomes
//! healthy it is asked for the ids of its models.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::state::Router;
use crate::worker::{HealthThresholds, Worker};

/// Checks `worker` until it is removed from the registry.
pub fn watch(router: &Arc<Router>, worker: Arc<Worker>) {
    let router = Arc::clone(router);
    router.background.clone().spawn(async move {
        if router.config.disable_health_check {
            worker.assume_healthy();
            learn_models(&router, &worker).await;
            return;
        }
        let started = Instant::now();
        while router.registry.get(&worker.id).is_some() {
            check(&router, &worker).await;
            let config = &router.config;
            let starting = !worker.has_answered()
                && started.elapsed().as_secs_f64() < config.worker_startup_timeout_secs;
            let pause = if starting {
                config
                    .worker_startup_check_interval
                    .min(config.health_check_interval_secs)
            } else {
                config.health_check_interval_secs
            };
            tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        }
    });
}

async fn check(router: &Router, worker: &Worker) {
    let config = &router.config;
    let result = get(router, worker, &config.health_check_endpoint).await;
    let thresholds = HealthThresholds {
        failures: config.health_failure_threshold,
        successes: config.health_success_threshold,
    };
    match worker.checked(result.is_ok(), thresholds) {
        Some(true) => {
            learn_models(router, worker).await;
            tracing::info!(
                worker = worker.url,
                role = worker.role.name(),
                model = worker.model(),
                "the worker is healthy"
            );
        }
        Some(false) => {
            let error = result.err().map(|error| error.to_string());
            tracing::warn!(worker = worker.url, error, "the worker is unhealthy");
        }
        None => {}
    }
}

async fn get(router: &Router, worker: &Worker, path: &str) -> reqwest::Result<Vec<u8>> {
    let timeout = Duration::from_secs_f64(router.config.health_check_timeout_secs);
    let url = format!("{}{path}", worker.url);
    let body = router.probe.get(url, router.own_headers(), timeout).await?;
    Ok(body.to_vec())
}

/// Asks for the ids of a worker's models, OpenAI's way and then SGLang's. A worker that has neither
/// route still gets requests.
async fn learn_models(router: &Router, worker: &Worker) {
    for path in ["/v1/models", "/server_info"] {
        let Ok(body) = get(router, worker, path).await else {
            continue;
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let models = models(&body);
        if !models.is_empty() {
            worker.set_models(models);
            return;
        }
    }
}

fn models(body: &Value) -> Vec<String> {
    let listed = body["data"].as_array().into_iter().flatten();
    let ids = listed.map(|model| &model["id"]);
    let ids = ids.chain([&body["served_model_name"]]);
    ids.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_are_read_from_either_answer() {
        let openai = json!({"object": "list", "data": [{"id": "a"}, {"id": "b"}, {}]});
        assert_eq!(models(&openai), ["a", "b"]);
        assert_eq!(models(&json!({"served_model_name": "c"})), ["c"]);
        assert!(models(&json!({"error": {}})).is_empty());
        assert!(models(&Value::Null).is_empty());
    }
}
