//! The bodies that workers get in PD mode are those that sglang-router 0.3.2 sends, which were
//! captured, apart from random values, `rid` and the ranks.

use serde_json::{Value, json};

use crate::fake::Fake;
use crate::harness::{config, pd};

/// (path, the client's body, the captured body), the room and the port left out.
const CAPTURED: [(&str, &str, &str); 7] = [
    (
        "/generate",
        r#"{"text": "Once upon a time", "sampling_params": {"temperature": 0.0, "max_new_tokens": 8}}"#,
        r#"{"text": "Once upon a time", "model": null, "sampling_params": {"temperature": 0.0, "max_new_tokens": 8}, "return_text_in_logprobs": false, "stream": false, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
    (
        "/generate",
        r#"{"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}, "stream": true}"#,
        r#"{"text": "Once upon a time", "model": null, "sampling_params": {"max_new_tokens": 8}, "return_text_in_logprobs": false, "stream": true, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
    (
        "/generate",
        r#"{"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}, "return_logprob": true}"#,
        r#"{"model": null, "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}, "return_logprob": true, "return_text_in_logprobs": false, "stream": false, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}"#,
        r#"{"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "logprobs": false, "max_completion_tokens": 8, "stream": false, "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": true}"#,
        r#"{"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "logprobs": false, "max_completion_tokens": 8, "stream": true, "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
    (
        "/v1/completions",
        r#"{"model": "tiny", "prompt": "Once upon", "max_tokens": 8}"#,
        r#"{"model": "tiny", "prompt": "Once upon", "max_tokens": 8, "stream": false, "echo": false, "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
    (
        "/v1/completions",
        r#"{"model": "tiny", "prompt": "Once upon", "max_tokens": 8, "n": 2}"#,
        r#"{"model": "tiny", "prompt": "Once upon", "max_tokens": 8, "n": 2, "stream": false, "echo": false, "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1"}"#,
    ),
];

fn take(body: &mut Value, name: &str) -> Value {
    let fields = body.as_object_mut().unwrap();
    fields.remove(name).unwrap_or_else(|| panic!("no {name}"))
}

#[actix_web::test]
async fn forwarded_bodies_equal_the_captured_ones() {
    let (prefill, decode) = (Fake::start("tiny"), Fake::start("tiny"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    for (number, (path, given, captured)) in CAPTURED.into_iter().enumerate() {
        router.post_text(path, given).await.text().await.unwrap();
        let (prefill, decode) = (prefill.request(number).await, decode.request(number).await);
        assert_eq!([&prefill.path, &decode.path], [path, path]);
        let (mut prefill, mut decode) = (prefill.json(), decode.json());
        assert_eq!(take(&mut decode, "data_parallel_rank"), Value::Null);
        assert_eq!(take(&mut decode, "data_parallel_rank_decode"), Value::Null);
        assert_eq!(prefill, decode);
        let room = take(&mut prefill, "bootstrap_room");
        assert!(room.as_i64().is_some_and(|room| room >= 0), "{room}");
        assert_eq!(take(&mut prefill, "bootstrap_port"), 8998);
        take(&mut prefill, "rid");
        let captured: Value = serde_json::from_str(captured).unwrap();
        assert_eq!(prefill, captured, "{path} {given}");
    }
}

#[actix_web::test]
async fn batches_have_arrays_as_the_mini_load_balancer_sends_them() {
    let (prefill, decode) = (Fake::start("tiny"), Fake::start("tiny"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    let batches = [
        ("/generate", json!({"text": ["x", "y"]}), 2),
        ("/generate", json!({"input_ids": [[1], [2], [3]]}), 3),
        ("/v1/completions", json!({"prompt": ["a", "b"]}), 2),
        ("/v1/chat/completions", json!({"messages": [], "n": 2}), 2),
    ];
    for (number, (path, given, count)) in batches.into_iter().enumerate() {
        router.post(path, &given).await.text().await.unwrap();
        let (prefill, decode) = (prefill.request(number).await, decode.request(number).await);
        let (prefill, decode) = (prefill.json(), decode.json());
        assert_eq!(prefill["bootstrap_host"], json!(vec!["127.0.0.1"; count]));
        assert_eq!(prefill["bootstrap_port"], json!(vec![8998; count]));
        let rooms = prefill["bootstrap_room"].as_array().unwrap();
        assert_eq!(rooms.len(), count);
        assert_ne!(rooms[0], rooms[1]);
        assert_eq!(prefill["bootstrap_room"], decode["bootstrap_room"]);
    }
    let n = json!({"messages": [], "n": 1_000_000_000});
    let response = router.post("/v1/chat/completions", &n).await;
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["param"], "n");
}

#[actix_web::test]
async fn ids_have_a_prefix_by_route_and_the_clients_own_stay() {
    let (prefill, decode) = (Fake::start("tiny"), Fake::start("tiny"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    let prefixes = [
        ("/generate", "gnt-"),
        ("/v1/chat/completions", "chatcmpl-"),
        ("/v1/completions", "cmpl-"),
    ];
    for (number, (path, prefix)) in prefixes.into_iter().enumerate() {
        router.post(path, &json!({})).await.text().await.unwrap();
        let seen = prefill.request(2 * number).await.json();
        let rid = seen["rid"].as_str().unwrap();
        let (random, address) = rid.strip_prefix(prefix).unwrap().split_once('-').unwrap();
        assert!(random.len() == 24 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert!(address.parse::<std::net::IpAddr>().is_ok(), "{rid}");
        assert_eq!(decode.request(2 * number).await.json()["rid"], rid);
        router
            .post(path, &json!({"rid": "mine"}))
            .await
            .text()
            .await
            .unwrap();
        assert_eq!(decode.request(2 * number + 1).await.json()["rid"], "mine");
    }
}

#[actix_web::test]
async fn what_the_client_sent_is_there_in_its_own_spelling() {
    let (prefill, decode) = (Fake::start("tiny"), Fake::start("tiny"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    let given = r#"{"model":"tiny","prompt":"a","temperature":1.0,"top_p":5e-1,"seed":123456789012345678901,"unknown":{"x":[0.10,"é\u00e9"]},"data_parallel_rank":3}"#;
    router
        .post_text("/v1/completions", given)
        .await
        .text()
        .await
        .unwrap();
    for worker in [&prefill, &decode] {
        let text = worker.request(0).await.text;
        assert!(text.starts_with(given.strip_suffix('}').unwrap()), "{text}");
        assert_eq!(text.matches("\"data_parallel_rank\"").count(), 1);
    }
}

#[actix_web::test]
async fn headers_are_forwarded_as_captured() {
    let (prefill, decode) = (Fake::start("tiny"), Fake::start("tiny"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    let given = [
        ("authorization", "Bearer k"),
        ("x-request-id", "my-req-1"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    let mut request = router
        .client
        .post(format!("{}/v1/chat/completions", router.url));
    for (name, value) in given {
        request = request.header(name, value);
    }
    let request = request
        .header("user-agent", "curl")
        .json(&json!({"messages": []}));
    request.send().await.unwrap().text().await.unwrap();
    for worker in [&prefill, &decode] {
        let headers = worker.request(0).await.headers;
        let mut expected: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
        expected.extend(["content-type", "accept", "host", "content-length"]);
        expected.sort_unstable();
        assert_eq!(headers.keys().collect::<Vec<_>>(), expected);
        for (name, value) in given {
            assert_eq!(headers[name], value);
        }
    }
}
