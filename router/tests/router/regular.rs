use std::collections::BTreeSet;
use std::time::Duration;

use hearth_router::{PolicyKind, RouterConfig};
use serde_json::{Value, json};

use crate::fake::{Fake, Reply};
use crate::harness::{chat, code, config, regular};

#[actix_web::test]
async fn the_bytes_of_request_and_response_pass_unchanged() {
    let worker = Fake::start("tiny");
    let answer = "{\"x\":1.0, \"big\":123456789012345678901234567890,  \"f\":1e5}";
    worker.always(Reply {
        pieces: vec![answer.to_owned()],
        ..Reply::json(201, Value::Null)
    });
    let router = regular(&[&worker], config()).await;
    let body = "{ \"model\":\"tiny\", \"unknown\":{\"a\":[1.0,2e3]}, \"seed\":18446744073709551615,\n\"temperature\":0.70 }";
    for path in [
        "/generate",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/score",
        "/tokenize",
        "/detokenize",
        "/api/chat",
        "/api/generate?a=b",
    ] {
        let response = router.post_text(path, body).await;
        assert_eq!(response.status(), 201, "{path}");
        assert_eq!(response.headers()["x-worker"], "tiny");
        assert_eq!(
            response.headers()["content-length"],
            answer.len().to_string().as_str()
        );
        assert_eq!(response.text().await.unwrap(), answer);
        let seen = worker.seen().pop().unwrap();
        assert_eq!((seen.path.as_str(), seen.text.as_str()), (path, body));
    }
    // A body that is no JSON is the worker's to refuse.
    router.post_text("/generate", "{").await;
    assert_eq!(worker.seen().pop().unwrap().text, "{");
}

#[actix_web::test]
async fn a_stream_passes_unchanged_and_is_measured() {
    let worker = Fake::start("tiny");
    let events = [
        "data: {\"a\":1}\n\n",
        "data: {\"a\"",
        ":2}\n\n",
        "data: [DONE]\n\n",
    ];
    worker.always(Reply::sse(&events).slowly(Duration::from_millis(5)));
    let router = regular(&[&worker], config()).await;
    let response = router
        .post("/v1/chat/completions", &json!({"stream": true}))
        .await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.text().await.unwrap(), events.concat());
    let labels = "{backend_type=\"regular\",connection_mode=\"http\",\
                  endpoint=\"/v1/chat/completions\",model=\"tiny\",router_type=\"http\"}";
    let sample = async |name: &str| router.sample(&format!("{name}{labels}")).await.unwrap();
    assert_eq!(sample("smg_router_ttft_seconds_count").await, 1.0);
    assert!(sample("smg_router_ttft_seconds_sum").await >= 0.005);
    let pieces = sample("smg_router_tpot_seconds_count").await;
    assert!((1.0..=3.0).contains(&pieces), "{pieces}");
    assert_eq!(
        sample("smg_router_request_duration_seconds_count").await,
        1.0
    );
}

#[actix_web::test]
async fn headers_of_tracing_and_keys_pass_and_none_are_invented() {
    let worker = Fake::start("tiny");
    let router = regular(&[&worker], config()).await;
    router.who("a").await;
    let names: BTreeSet<String> = worker.seen()[0].headers.keys().cloned().collect();
    let expected = ["accept", "content-length", "content-type", "host"];
    assert_eq!(names, expected.map(str::to_owned).into());
    let given = [
        ("authorization", "Bearer k"),
        ("x-request-id", "my-req-1"),
        ("x-correlation-id", "c"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "a=b"),
        ("x-api-key", "k"),
        ("anthropic-version", "2023-06-01"),
    ];
    let mut request = router.client.post(format!("{}/v1/messages", router.url));
    for (name, value) in given {
        request = request.header(name, value);
    }
    request
        .header("user-agent", "me")
        .header("cookie", "secret")
        .json(&chat("a"))
        .send()
        .await
        .unwrap();
    let headers = &worker.seen()[1].headers;
    for (name, value) in given {
        assert_eq!(headers[name], value);
    }
    assert!(!headers.contains_key("user-agent") && !headers.contains_key("cookie"));
}

#[actix_web::test]
async fn policies_spread_requests() {
    let workers = [Fake::start("a"), Fake::start("b")];
    let all: Vec<&Fake> = workers.iter().collect();
    let with = |policy| RouterConfig { policy, ..config() };
    let router = regular(&all, with(PolicyKind::RoundRobin)).await;
    let turns = [
        router.who("x").await,
        router.who("x").await,
        router.who("x").await,
    ];
    assert_eq!(turns[0], turns[2]);
    assert_ne!(turns[0], turns[1]);
    for policy in [PolicyKind::Random, PolicyKind::PowerOfTwo] {
        let router = regular(&all, with(policy)).await;
        let mut who = BTreeSet::new();
        for _ in 0..60 {
            who.insert(router.who("x").await);
        }
        assert_eq!(who.len(), 2, "{policy:?}");
    }
}

#[actix_web::test]
async fn cache_aware_keeps_conversations_at_their_worker() {
    let workers = [Fake::start("a"), Fake::start("b"), Fake::start("c")];
    let all: Vec<&Fake> = workers.iter().collect();
    let router = regular(
        &all,
        RouterConfig {
            policy: PolicyKind::CacheAware,
            ..config()
        },
    )
    .await;
    for talk in 0..6 {
        let mut content = format!("{talk} begins this conversation in its own way");
        let first = router.who(&content).await;
        for turn in 0..5 {
            content.push_str(&format!(" and then comes turn {turn}"));
            assert_eq!(router.who(&content).await, first, "{content}");
        }
    }
    // Token ids have a prefix of their own.
    let ids = |last: u32| json!({"input_ids": [[1, 2, 3, 4, last]]});
    let who = async |body: Value| {
        let body: Value = router.post("/generate", &body).await.json().await.unwrap();
        body["worker"].clone()
    };
    let first = who(ids(5)).await;
    for last in 6..12 {
        assert_eq!(who(ids(last)).await, first);
    }
}

#[actix_web::test]
async fn a_model_goes_to_the_workers_that_serve_it() {
    let (one, two) = (Fake::start("one"), Fake::start("two"));
    let router = regular(&[&one, &two], config()).await;
    for model in ["one", "two", "one", "one"] {
        let body = json!({"model": model, "prompt": "a"});
        let answer: Value = router
            .post("/v1/completions", &body)
            .await
            .json()
            .await
            .unwrap();
        assert_eq!(answer["worker"], model);
    }
    // An unknown name is the workers' to refuse.
    let response = router
        .post("/v1/completions", &json!({"model": "three"}))
        .await;
    assert_eq!(response.status(), 200);
}

#[actix_web::test]
async fn stored_responses_are_found_where_they_were_made() {
    let workers = [Fake::start("a"), Fake::start("b")];
    for (worker, id) in workers.iter().zip(["resp_a", "resp_b"]) {
        worker.answer(move |seen| {
            Reply::json(
                200,
                json!({"object": "response", "id": id, "saw": seen.path}),
            )
        });
    }
    let router = regular(&[&workers[0], &workers[1]], config()).await;
    router.post("/v1/responses", &json!({"input": "x"})).await;
    router.post("/v1/responses", &json!({"input": "x"})).await;
    for (worker, id) in workers.iter().zip(["resp_a", "resp_b"]) {
        let count = worker.count();
        for _ in 0..3 {
            let path = format!("/v1/responses/{id}?include=a");
            let body: Value = router.get(&path).await.json().await.unwrap();
            assert_eq!([&body["id"], &body["saw"]], [&json!(id), &json!(path)]);
            // So is the response that follows it.
            let next = json!({"input": "y", "previous_response_id": id});
            let body: Value = router
                .post("/v1/responses", &next)
                .await
                .json()
                .await
                .unwrap();
            assert_eq!(body["id"], id);
        }
        assert_eq!(worker.count(), count + 6);
        let url = format!("{}/v1/responses/{id}", router.url);
        assert_eq!(
            router.client.delete(url).send().await.unwrap().status(),
            200
        );
        assert_eq!(worker.seen().pop().unwrap().method, "DELETE");
    }
    let response = router.get("/v1/responses/resp_x").await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (404, "response_not_found")
    );
    let body: Value = response.json().await.unwrap();
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("resp_x")
    );
}

#[actix_web::test]
async fn routes_about_models_and_the_router_answer() {
    let worker = Fake::start("tiny");
    let router = regular(&[&worker], config()).await;
    let models: Value = router.get("/v1/models").await.json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    for path in ["/get_model_info", "/model_info"] {
        assert_eq!(router.get(path).await.status(), 200);
        assert_eq!(worker.seen().pop().unwrap().path, path);
    }
    let count = worker.count();
    for path in ["/server_info", "/get_server_info"] {
        let info: Value = router.get(path).await.json().await.unwrap();
        assert_eq!(
            [&info["router_type"], &info["policy"]],
            ["regular", "round_robin"]
        );
    }
    assert_eq!(worker.count(), count);
    for path in ["/health", "/liveness"] {
        assert_eq!(router.get(path).await.status(), 200);
    }
    let response = router.get("/nowhere").await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (404, "not_found")
    );
    let response = router.get("/generate").await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (405, "method_not_allowed")
    );
}
