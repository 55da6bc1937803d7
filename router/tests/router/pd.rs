use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::fake::{End, Fake, Reply};
use crate::harness::{Router, code, config, pd, until};

fn data(text: &str) -> Vec<Value> {
    let events = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    let json = events.filter(|event| *event != "[DONE]");
    json.map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

#[actix_web::test]
async fn the_client_gets_decodes_response() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let events = [
        "data: {\"a\": 1.0}\n\n",
        "data: {\"a\"",
        ": 2}\n\ndata: [DONE]\n\n",
    ];
    prefill.always(Reply::sse(&["data: {\"secret\": 1}\n\n"]));
    decode.always(Reply::sse(&events).slowly(Duration::from_millis(3)));
    let router = pd(&[&prefill], &[&decode], config()).await;
    for path in ["/generate", "/v1/chat/completions", "/v1/completions"] {
        let response = router.post(path, &json!({"stream": true})).await;
        assert_eq!(response.headers()["x-worker"], "d");
        assert_eq!(response.text().await.unwrap(), events.concat());
    }
    assert_eq!((prefill.count(), decode.count()), (3, 3));
    let labels = "smg_router_ttft_seconds_count{backend_type=\"pd\",connection_mode=\"http\",endpoint=\"/generate\"";
    assert_eq!(router.sample(labels).await, Some(1.0));
    until("prefill's load is 0", async || {
        router.worker(&prefill).await["load"] == 0
    })
    .await;
}

#[actix_web::test]
async fn routes_without_bootstrap_fields_go_to_one_worker() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    let generating = [
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/score",
        "/api/chat",
        "/api/generate",
    ];
    for path in generating {
        let body: Value = router.post(path, &json!({})).await.json().await.unwrap();
        assert_eq!(body["worker"], "d");
        assert_eq!(decode.seen().pop().unwrap().text, "{}");
    }
    assert_eq!((prefill.count(), decode.count()), (0, generating.len()));
    for path in ["/tokenize", "/v1/messages/count_tokens"] {
        let body: Value = router.post(path, &json!({})).await.json().await.unwrap();
        assert_eq!(body["worker"], "p");
        assert_eq!(prefill.seen().pop().unwrap().text, "{}");
    }
    assert_eq!(router.get("/v1/models").await.status(), 200);
    assert_eq!(decode.count(), generating.len());
    for body in ["[]", "{", ""] {
        let response = router.post_text("/generate", body).await;
        assert_eq!(
            (response.status().as_u16(), code(&response)),
            (400, "invalid_request")
        );
    }
}

#[actix_web::test]
async fn logprobs_of_the_prompt_come_from_prefill() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let one = json!({"text": "", "meta_info": {"input_token_logprobs": [[null, 1, null], [-0.5, 2, null]]}});
    let two = json!({"text": "a", "meta_info": {"id": "x", "input_token_logprobs": [[-0.25, 3, null]], "output_token_logprobs": [[-1.0, 4, null]]}});
    let (prefill_events, decode_events) = (
        vec![format!("data: {one}\n\n"), "data: [DONE]\n\n".to_owned()],
        vec![
            format!("data: {two}\n\n"),
            "data: {\"text\":\"b\",\"meta_info\":{}}\n\n".to_owned(),
            "data: [DONE]\n\n".to_owned(),
        ],
    );
    let script = |plain: Value, events: Vec<String>| {
        move |seen: &crate::fake::Seen| match seen.json()["stream"] == true {
            true => Reply {
                pieces: events.clone(),
                ..Reply::sse(&[])
            },
            false => Reply::json(200, plain.clone()),
        }
    };
    prefill.answer(script(one, prefill_events));
    decode.answer(script(two, decode_events));
    let router = pd(&[&prefill], &[&decode], config()).await;
    let expected = json!([[null, 1, null], [-0.5, 2, null], [-0.25, 3, null]]);
    let plain = json!({"text": "x", "return_logprob": true});
    let body: Value = router.post("/generate", &plain).await.json().await.unwrap();
    assert_eq!(body["meta_info"]["input_token_logprobs"], expected);
    assert_eq!(
        body["meta_info"]["output_token_logprobs"],
        json!([[-1.0, 4, null]])
    );
    let streamed = json!({"text": "x", "return_logprob": true, "stream": true});
    let text = router
        .post("/generate", &streamed)
        .await
        .text()
        .await
        .unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"));
    let events = data(&text);
    assert_eq!(events[0]["meta_info"]["input_token_logprobs"], expected);
    assert_eq!(events[1], json!({"text": "b", "meta_info": {}}));
    // Without the flag nothing is merged.
    let body: Value = router
        .post("/generate", &json!({"text": "x"}))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        body["meta_info"]["input_token_logprobs"],
        json!([[-0.25, 3, null]])
    );
}

#[actix_web::test]
async fn prompt_tokens_details_come_from_prefill() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let usage = |details: Value| json!({"id": "a", "choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": details}});
    let of_prefill = usage(json!({"cached_tokens": 4}));
    let of_decode = usage(json!(null));
    let script = |last: Value| {
        move |seen: &crate::fake::Seen| {
            match seen.json()["stream"] == true {
            true => Reply {
                pieces: vec![
                    "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\"}}],\"usage\":null}\n\n".to_owned(),
                    format!("data: {last}\n\n"),
                    "data: [DONE]\n\n".to_owned(),
                ],
                ..Reply::sse(&[])
            },
            false => Reply::json(200, last.clone()),
        }
        }
    };
    prefill.answer(script(of_prefill.clone()));
    decode.answer(script(of_decode.clone()));
    let router = pd(&[&prefill], &[&decode], config()).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body: Value = router.post(path, &json!({})).await.json().await.unwrap();
        assert_eq!(body, of_prefill);
        let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = data(&router.post(path, &asked).await.text().await.unwrap());
        assert_eq!(events.len(), 2);
        assert_eq!(events[0]["usage"], Value::Null);
        assert_eq!(events[1], of_prefill);
        let not_asked = json!({"stream": true});
        let events = data(&router.post(path, &not_asked).await.text().await.unwrap());
        assert_eq!(events[1], of_decode);
    }
    // Where prefill has none, decode's stay.
    prefill.always(Reply::json(200, json!({"usage": {"prompt_tokens": 9}})));
    let body: Value = router
        .post("/v1/completions", &json!({}))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(body, of_decode);
}

async fn both_see_that_the_client_is_gone(router: &Router, workers: [&Fake; 2], first: bool) {
    let before = workers.map(Fake::abandoned);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/generate", router.url);
    let sending = client
        .post(url)
        .json(&json!({"text": "a", "stream": true}))
        .send();
    if first {
        let mut stream = sending.await.unwrap().bytes_stream();
        assert_eq!(stream.next().await.unwrap().unwrap(), "data: 1\n\n");
    } else {
        let gave_up = tokio::time::timeout(Duration::from_millis(300), sending).await;
        assert!(gave_up.is_err());
    }
    drop(client);
    for (worker, before) in workers.iter().zip(before) {
        until("the worker sees it", async || worker.abandoned() > before).await;
        until("the load is 0", async || {
            router.worker(worker).await["load"] == 0
        })
        .await;
        let shown = router.worker(worker).await;
        assert_eq!(shown["circuit_breaker"], "closed");
    }
}

#[actix_web::test]
async fn a_client_that_goes_away_is_gone_for_both_workers() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    prefill.always(Reply::hanging());
    decode.always(Reply::hanging());
    both_see_that_the_client_is_gone(&router, [&prefill, &decode], false).await;
    prefill.always(Reply::sse(&["data: p\n\n"]).ending(End::Hang));
    decode.always(Reply::sse(&["data: 1\n\n"]).ending(End::Hang));
    both_see_that_the_client_is_gone(&router, [&prefill, &decode], true).await;
}

#[actix_web::test]
async fn readiness_needs_a_worker_of_each_kind() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    assert_eq!(router.get("/readiness").await.status(), 200);
    decode.set_healthy(false);
    until("it is not ready", async || {
        router.get("/readiness").await.status() == 503
    })
    .await;
    let response = router.post("/generate", &json!({})).await;
    assert_eq!(code(&response), "no_available_workers");
    let body: Value = response.json().await.unwrap();
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("decode worker")
    );
}
