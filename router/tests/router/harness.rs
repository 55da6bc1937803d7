//! Starts routers and asks them.

use std::time::{Duration, Instant};

use hearth_router::{PolicyKind, RouterConfig, Running, bind};
use reqwest::Response;
use serde_json::{Value, json};

use crate::fake::Fake;

/// Longest time that something may take which has to happen soon.
pub const SOON: Duration = Duration::from_secs(20);

pub struct Router {
    pub url: String,
    pub running: Running,
    pub client: reqwest::Client,
}

/// Settings with short times and free ports.
pub fn config() -> RouterConfig {
    RouterConfig {
        port: 0,
        prometheus_port: 0,
        http_workers: 1,
        policy: PolicyKind::RoundRobin,
        health_check_interval_secs: 0.05,
        worker_startup_check_interval: 0.02,
        retry_initial_backoff_ms: 2,
        shutdown_grace_period_secs: 10.0,
        decode_alone_timeout_secs: 0.0,
        ..RouterConfig::default()
    }
}

/// A router in front of `workers` in regular mode, once all are healthy.
pub async fn regular(workers: &[&Fake], config: RouterConfig) -> Router {
    let worker_urls = workers.iter().map(|worker| worker.url.clone()).collect();
    start(RouterConfig {
        worker_urls,
        ..config
    })
    .await
}

/// A router in PD mode. Prefill worker `i` has the bootstrap port `8998 + i`.
pub async fn pd(prefill: &[&Fake], decode: &[&Fake], config: RouterConfig) -> Router {
    let with_port =
        |(index, worker): (usize, &&Fake)| [worker.url.clone(), (8998 + index).to_string()];
    start(RouterConfig {
        pd_disaggregation: true,
        prefill: prefill.iter().enumerate().flat_map(with_port).collect(),
        decode: decode.iter().map(|worker| worker.url.clone()).collect(),
        ..config
    })
    .await
}

pub async fn start(config: RouterConfig) -> Router {
    let running = bind(config, None, None).unwrap();
    let url = format!("http://{}", running.addresses[0]);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let router = Router {
        url,
        running,
        client,
    };
    until("all workers are healthy", async || {
        let workers = router.workers().await;
        workers.iter().all(|worker| worker["is_healthy"] == true)
    })
    .await;
    router
}

/// Waits until `holds`.
pub async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(
            started.elapsed() < SOON,
            "it does not come true that {what}"
        );
        actix_web::rt::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Router {
    pub async fn post(&self, path: &str, body: &Value) -> Response {
        let url = format!("{}{path}", self.url);
        let request = self.client.post(url).json(body);
        request.send().await.unwrap()
    }

    pub async fn post_text(&self, path: &str, body: &str) -> Response {
        let url = format!("{}{path}", self.url);
        let request = self.client.post(url).body(body.to_owned());
        let request = request.header("content-type", "application/json");
        request.send().await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Response {
        let url = format!("{}{path}", self.url);
        self.client.get(url).send().await.unwrap()
    }

    /// The worker that answered a chat, by its `{"worker": ...}`.
    pub async fn who(&self, content: &str) -> String {
        let response = self.post("/v1/chat/completions", &chat(content)).await;
        assert_eq!(response.status(), 200);
        let body: Value = response.json().await.unwrap();
        body["worker"].as_str().unwrap().to_owned()
    }

    pub async fn workers(&self) -> Vec<Value> {
        let body: Value = self.get("/workers").await.json().await.unwrap();
        body["workers"].as_array().unwrap().clone()
    }

    /// The description of a worker in `/workers`.
    pub async fn worker(&self, fake: &Fake) -> Value {
        let workers = self.workers().await;
        let mut own = workers
            .into_iter()
            .filter(|worker| worker["url"] == fake.url);
        own.next().unwrap_or(Value::Null)
    }

    /// The value of a sample of `/metrics` whose line begins so.
    pub async fn sample(&self, begins: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text().await.unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with(begins));
        let line = lines.next()?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

pub fn chat(content: &str) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": content}]})
}

/// The header with the code of the router's errors.
pub fn code(response: &Response) -> &str {
    let code = response.headers().get("x-smg-error-code");
    code.map_or("", |code| code.to_str().unwrap())
}
