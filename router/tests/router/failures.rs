use std::time::Duration;

use futures_util::StreamExt;
use hearth_router::RouterConfig;
use serde_json::{Value, json};

use crate::fake::{End, Fake, Reply};
use crate::harness::{chat, code, config, regular, until};

#[actix_web::test]
async fn a_failed_request_is_tried_at_another_worker() {
    let (bad, good) = (Fake::start("bad"), Fake::start("good"));
    let router = regular(&[&bad, &good], config()).await;
    for status in [408, 429, 500, 502, 503, 504] {
        bad.always(Reply::json(status, json!({"error": "no"})));
        // Whichever comes first in turn, the good one answers.
        assert_eq!(router.who("a").await, "good");
        assert_eq!(router.who("a").await, "good");
    }
    assert!(bad.count() >= 6, "{}", bad.count());
    let retries =
        "smg_worker_retries_total{endpoint=\"/v1/chat/completions\",worker_type=\"regular\"}";
    assert!(router.sample(retries).await.unwrap() >= 6.0);
}

#[actix_web::test]
async fn a_worker_that_is_gone_or_breaks_off_before_its_first_byte_is_replaced() {
    let (bad, good) = (Fake::start("bad"), Fake::start("good"));
    let slow = RouterConfig {
        health_check_interval_secs: 60.0,
        ..config()
    };
    let router = regular(&[&bad, &good], slow).await;
    bad.always(Reply::sse(&[]).ending(End::Break));
    for _ in 0..2 {
        assert_eq!(router.who("a").await, "good");
    }
    bad.kill().await;
    for _ in 0..4 {
        assert_eq!(router.who("a").await, "good");
    }
    let errors = "smg_worker_errors_total{connection_mode=\"http\",error_type=\"transport\"";
    assert!(router.sample(errors).await.unwrap() >= 2.0);
}

#[actix_web::test]
async fn an_error_of_the_client_is_not_tried_again() {
    let worker = Fake::start("a");
    worker.always(Reply::json(400, json!({"error": {"message": "bad"}})));
    let router = regular(&[&worker], config()).await;
    let response = router.post("/generate", &json!({})).await;
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["message"], "bad");
    assert_eq!(worker.count(), 1);
}

#[actix_web::test]
async fn after_all_attempts_the_client_gets_the_last_response() {
    let worker = Fake::start("a");
    worker.always(Reply::json(503, json!({"full": true})));
    let router = regular(&[&worker], config()).await;
    let response = router.post("/generate", &json!({})).await;
    assert_eq!((response.status().as_u16(), code(&response)), (503, ""));
    assert_eq!(response.text().await.unwrap(), "{\"full\":true}");
    assert_eq!(worker.count(), 5);
    let once = RouterConfig {
        disable_retries: true,
        ..config()
    };
    let router = regular(&[&worker], once).await;
    router.post("/generate", &json!({})).await;
    assert_eq!(worker.count(), 6);
}

#[actix_web::test]
async fn a_stream_that_breaks_off_ends_with_an_error_event_and_is_not_tried_again() {
    let (one, two) = (Fake::start("a"), Fake::start("b"));
    for (pieces, before) in [
        (vec!["data: 1\n\n"], "data: 1\n\n"),
        (vec!["data: 1\n\n", "data: ha"], "data: 1\n\ndata: ha\n\n"),
    ] {
        for worker in [&one, &two] {
            let reply = Reply::sse(&pieces).slowly(Duration::from_millis(20));
            worker.always(reply.ending(End::Break));
        }
        let router = regular(&[&one, &two], config()).await;
        let count = one.count() + two.count();
        let response = router
            .post("/v1/chat/completions", &json!({"stream": true}))
            .await;
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        let event = text.strip_prefix(before).unwrap();
        let event = event
            .strip_prefix("data: ")
            .unwrap()
            .strip_suffix("\n\n")
            .unwrap();
        let event: Value = serde_json::from_str(event).unwrap();
        assert_eq!(event["error"]["code"], "upstream_broken");
        assert_eq!(one.count() + two.count(), count + 1);
    }
    one.always(Reply {
        content_type: "application/x-ndjson",
        ..Reply::sse(&["{\"a\":1}\n"])
            .slowly(Duration::from_millis(20))
            .ending(End::Break)
    });
    let router = regular(&[&one], config()).await;
    let text = router
        .post("/api/chat", &json!({}))
        .await
        .text()
        .await
        .unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["error"]["code"], "upstream_broken");
}

#[actix_web::test]
async fn a_client_that_goes_away_is_gone_for_the_worker_too() {
    let worker = Fake::start("a");
    let router = regular(&[&worker], config()).await;
    // Before the response, and in the middle of it.
    for reply in [
        Reply::hanging(),
        Reply::sse(&["data: 1\n\n"]).ending(End::Hang),
    ] {
        let abandoned = worker.abandoned();
        worker.always(reply.clone());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("{}/v1/chat/completions", router.url);
        let sending = client.post(url).json(&chat("a")).send();
        if reply.hangs_at_once {
            let gave_up = tokio::time::timeout(Duration::from_millis(200), sending).await;
            assert!(gave_up.is_err());
        } else {
            let mut stream = sending.await.unwrap().bytes_stream();
            assert_eq!(stream.next().await.unwrap().unwrap(), "data: 1\n\n");
        }
        drop(client);
        until("the worker sees it", async || {
            worker.abandoned() > abandoned
        })
        .await;
        until("the load is 0", async || {
            router.worker(&worker).await["load"] == 0
        })
        .await;
    }
    // The worker is not to blame.
    let failures = format!(
        "smg_worker_cb_consecutive_failures{{worker=\"{}\"}}",
        worker.url
    );
    assert_eq!(router.sample(&failures).await, Some(0.0));
}

#[actix_web::test]
async fn health_checks_take_workers_out_and_back() {
    let (one, two) = (Fake::start("a"), Fake::start("b"));
    let router = regular(&[&one, &two], config()).await;
    one.set_healthy(false);
    until("it is unhealthy", async || {
        router.worker(&one).await["is_healthy"] == false
    })
    .await;
    for _ in 0..4 {
        assert_eq!(router.who("x").await, "b");
    }
    assert_eq!(router.get("/readiness").await.status(), 200);
    two.set_healthy(false);
    until("both are", async || {
        router.get("/readiness").await.status() == 503
    })
    .await;
    let response = router.post("/generate", &json!({})).await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (503, "no_available_workers")
    );
    assert_eq!(router.get("/health").await.status(), 200);
    one.set_healthy(true);
    until("it is healthy", async || {
        router.worker(&one).await["is_healthy"] == true
    })
    .await;
    assert_eq!(router.who("x").await, "a");
    let health = format!("smg_worker_health{{worker=\"{}\"}}", two.url);
    assert_eq!(router.sample(&health).await, Some(0.0));
}

#[actix_web::test]
async fn a_breaker_opens_and_closes_again() {
    let (bad, good) = (Fake::start("bad"), Fake::start("good"));
    bad.always(Reply::json(500, json!({})));
    let quick = RouterConfig {
        cb_failure_threshold: 3,
        cb_timeout_duration_secs: 3.0,
        cb_success_threshold: 2,
        ..config()
    };
    let router = regular(&[&bad, &good], quick).await;
    let state = format!("smg_worker_cb_state{{worker=\"{}\"}}", bad.url);
    until("it is open", async || {
        assert_eq!(router.who("x").await, "good");
        router.worker(&bad).await["circuit_breaker"] == "open"
    })
    .await;
    assert_eq!(bad.count(), 3);
    assert_eq!(router.sample(&state).await, Some(1.0));
    for _ in 0..4 {
        router.who("x").await;
    }
    assert_eq!(bad.count(), 3);
    let answer = json!({"worker": "bad"});
    bad.always(Reply::json(200, answer));
    until("it is half-open", async || {
        router.worker(&bad).await["circuit_breaker"] == "half_open"
    })
    .await;
    for _ in 0..6 {
        router.who("x").await;
    }
    assert_eq!(router.worker(&bad).await["circuit_breaker"], "closed");
    assert_eq!(router.worker(&good).await["circuit_breaker"], "closed");
    let outcomes = format!(
        "smg_worker_cb_outcomes_total{{outcome=\"failure\",worker=\"{}\"}}",
        bad.url
    );
    assert_eq!(router.sample(&outcomes).await, Some(3.0));
}
