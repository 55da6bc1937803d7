use std::time::Duration;

use hearth_router::{ApiKey, RouterConfig, bind};
use serde_json::{Value, json};

use crate::fake::{End, Fake, Reply};
use crate::harness::{code, config, regular, start, until};

#[actix_web::test]
async fn the_queue_is_bounded_in_length_and_time() {
    let worker = Fake::start("a");
    worker.always(Reply::sse(&["data: 1\n\n"]).ending(End::Hang));
    let bounded = RouterConfig {
        max_concurrent_requests: 1,
        queue_size: 1,
        queue_timeout_secs: 0.5,
        ..config()
    };
    let router = regular(&[&worker], bounded).await;
    let running = router.post("/generate", &json!({"stream": true})).await;
    let (waits, refused) =
        futures_util::future::join(router.post("/generate", &json!({})), async {
            until("one waits", async || {
                router.sample("smg_http_queue_waiting").await == Some(1.0)
            })
            .await;
            router.post("/generate", &json!({})).await
        })
        .await;
    assert_eq!(
        (refused.status().as_u16(), code(&refused)),
        (429, "queue_full")
    );
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(
        (waits.status().as_u16(), code(&waits)),
        (503, "queue_timeout")
    );
    // Routes that no worker answers do not wait.
    assert_eq!(router.get("/workers").await.status(), 200);
    // The end of the first request lets the next one run.
    worker.always(Reply::json(200, json!({"worker": "a"})));
    let (next, ()) = futures_util::future::join(router.post("/generate", &json!({})), async {
        until("one waits", async || {
            router.sample("smg_http_queue_waiting").await == Some(1.0)
        })
        .await;
        drop(running);
    })
    .await;
    assert_eq!(next.status(), 200);
    assert_eq!(router.sample("smg_http_queue_waiting").await, Some(0.0));
}

#[actix_web::test]
async fn clients_need_the_key_and_workers_get_it() {
    let worker = Fake::start("a");
    let keyed = RouterConfig {
        api_key: Some(ApiKey::new("secret")),
        worker_urls: vec![worker.url.clone()],
        ..config()
    };
    let running = bind(keyed, None, None).unwrap();
    let url = format!("http://{}", running.addresses[0]);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let get = async |path: &str, name: &str, value: &str| {
        let request = client.get(format!("{url}{path}")).header(name, value);
        request.send().await.unwrap()
    };
    until("it is ready", async || {
        get("/readiness", "a", "b").await.status() == 200
    })
    .await;
    for path in ["/health", "/liveness", "/metrics"] {
        assert_eq!(get(path, "a", "b").await.status(), 200, "{path}");
    }
    for (name, value) in [
        ("a", "b"),
        ("authorization", "Bearer wrong"),
        ("authorization", "secret"),
    ] {
        let response = get("/workers", name, value).await;
        assert_eq!(
            (response.status().as_u16(), code(&response)),
            (401, "invalid_api_key")
        );
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["type"], "authentication_error");
    }
    assert_eq!(worker.count(), 0);
    for (name, value) in [("authorization", "Bearer secret"), ("x-api-key", "secret")] {
        assert_eq!(get("/model_info", name, value).await.status(), 200);
        assert_eq!(worker.seen().pop().unwrap().headers[name], value);
    }
    assert_eq!(
        get("/get_loads", "authorization", "bearer secret")
            .await
            .status(),
        200
    );
    assert_eq!(
        worker.seen().pop().unwrap().headers["authorization"],
        "Bearer secret"
    );
}

#[actix_web::test]
async fn a_body_may_not_be_longer_than_the_bound() {
    let worker = Fake::start("a");
    let small = RouterConfig {
        max_payload_size: 100,
        ..config()
    };
    let router = regular(&[&worker], small).await;
    let text = json!({"text": "x".repeat(200)});
    let response = router.post("/generate", &text).await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (413, "payload_too_large")
    );
    assert_eq!(worker.count(), 0);
}

#[actix_web::test]
async fn a_stop_lets_requests_finish() {
    let worker = Fake::start("a");
    worker.always(Reply::sse(&["data: 1\n\n", "data: 2\n\n"]).slowly(Duration::from_millis(300)));
    let router = regular(&[&worker], config()).await;
    let response = router.post("/generate", &json!({"stream": true})).await;
    let url = router.url.clone();
    let (text, ()) = futures_util::future::join(response.text(), router.running.stop()).await;
    assert_eq!(text.unwrap(), "data: 1\n\ndata: 2\n\n");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    assert!(
        client
            .get(format!("{url}/health"))
            .send()
            .await
            .unwrap_err()
            .is_connect()
    );
}

#[actix_web::test]
async fn a_router_that_cannot_start_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = bind(RouterConfig { port, ..config() }, None, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on 127.0.0.1:{port}")
    );
    let error = bind(
        RouterConfig {
            cache_threshold: 7.0,
            ..config()
        },
        None,
        None,
    );
    assert!(error.unwrap_err().to_string().contains("`cache_threshold`"));
}

#[actix_web::test]
async fn the_metrics_have_a_listener_of_their_own() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let prometheus_port = free.local_addr().unwrap().port();
    drop(free);
    let router = start(RouterConfig {
        prometheus_port,
        ..config()
    })
    .await;
    router.get("/nowhere").await;
    let own = format!("http://{}", router.running.metrics_addresses[0]);
    let response = router
        .client
        .get(format!("{own}/metrics"))
        .send()
        .await
        .unwrap();
    let text = response.text().await.unwrap();
    let expected = "smg_http_responses_total{error_code=\"not_found\",status_code=\"404\"} 1";
    assert!(text.contains(expected), "{text}");
    assert!(
        text.contains("smg_http_requests_total{method=\"GET\",path=\"unmatched\"} 1"),
        "{text}"
    );
    let other = router
        .client
        .get(format!("{own}/workers"))
        .send()
        .await
        .unwrap();
    assert_eq!(other.status(), 404);
}
