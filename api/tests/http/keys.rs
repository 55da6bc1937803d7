//! Several API keys: names, limits, requests and caches of their own.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{CHAT, COMPLETIONS};

const KEYS: &str = r#"
[[key]]
name = "ann"
key = "key-of-ann"

[[key]]
name = "bob"
key = "key-of-bob"
max_requests = 2
tokens_per_minute = 600

[[key]]
name = "root"
key = "key-of-root"
admin = true
"#;

/// A file of keys, which is removed again.
struct KeysFile(PathBuf);

impl KeysFile {
    fn new(name: &str) -> Self {
        let file = format!("hearth-http-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, KEYS).unwrap();
        Self(path)
    }
}

impl Drop for KeysFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn server(file: &KeysFile, isolate_caches: bool) -> TestServer {
    let behaviour = Behaviour {
        endless: true,
        step: Duration::from_millis(2),
        max_model_len: 4000,
        ..Behaviour::default()
    };
    let config = HttpConfig {
        api_keys_file: Some(file.0.clone()),
        isolate_caches,
        ..HttpConfig::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), config)
}

async fn post(server: &TestServer, key: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = reqwest::Client::new()
        .post(format!("{}{path}", server.url))
        .bearer_auth(format!("key-of-{key}"))
        .json(body);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

fn generate(text: &str, tokens: usize, rid: &str) -> Value {
    let params = json!({"max_new_tokens": tokens, "temperature": 0});
    json!({"text": text, "rid": rid, "sampling_params": params})
}

#[tokio::test]
async fn each_key_of_the_file_is_served_and_no_other() {
    let file = KeysFile::new("served");
    let server = server(&file, false);
    for (key, status) in [("ann", 200), ("bob", 200), ("root", 200), ("eve", 401)] {
        let (given, answer) = post(&server, key, "/generate", &generate("a", 2, key)).await;
        assert_eq!(given, status, "{key}: {answer}");
    }
    let flush = async |key: &str| post(&server, key, "/pause_generation", &json!({})).await.0;
    assert_eq!(flush("ann").await, 401);
    assert_eq!(flush("root").await, 200);
    post(&server, "root", "/continue_generation", &json!({})).await;
    // The file is read again.
    fs::write(&file.0, "[[key]]\nname = \"eve\"\nkey = \"key-of-eve\"\n").unwrap();
    assert_eq!(server.state.clients.reload().unwrap(), 1);
    let status = async |key: &str| {
        post(&server, key, "/generate", &generate("a", 2, key))
            .await
            .0
    };
    assert_eq!(status("ann").await, 401);
    assert_eq!(status("eve").await, 200);
}

#[tokio::test]
async fn a_request_can_be_aborted_by_its_own_key_and_the_administrators() {
    let file = KeysFile::new("rids");
    let server = server(&file, false);
    let abort = async |key: &str, rid: &str| {
        let (status, answer) = post(&server, key, "/abort_request", &json!({"rid": rid})).await;
        assert_eq!(status, 200, "{answer}");
        answer["aborted"].as_u64().unwrap()
    };
    let others = async {
        while server.state.loaded().unwrap().engine.stats().running < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(abort("bob", "job-1").await, 0, "it is Ann's");
        assert_eq!(abort("bob", "job-").await, 0);
        assert_eq!(abort("ann", "job-").await, 0, "the whole name is needed");
        let (status, answer) = post(
            &server,
            "ann",
            "/abort_request",
            &json!({"abort_all": true}),
        )
        .await;
        assert_eq!((status, &answer["param"]), (403, &json!("abort_all")));
        assert_eq!(abort("ann", "job-1").await, 1);
        assert_eq!(abort("root", "job-").await, 2);
    };
    let (one, two) = (generate("a", 3000, "job-1"), generate("b", 3000, "job-2"));
    let answers = tokio::join!(
        post(&server, "ann", "/generate", &one),
        post(&server, "ann", "/generate", &two),
        // The same name is another one's with another key.
        post(&server, "root", "/generate", &one),
        others,
    );
    for (status, answer) in [answers.0, answers.1, answers.2] {
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    }
}

#[tokio::test]
async fn a_key_has_limits_which_others_do_not_feel() {
    let file = KeysFile::new("limits");
    let server = server(&file, false);
    let ask = |n: usize, tokens: usize| json!({"model": MODEL, "prompt": "abc", "max_tokens": tokens, "n": n});
    let (status, answer) = post(&server, "bob", COMPLETIONS, &ask(3, 1)).await;
    assert_eq!(status, 429, "{answer}");
    assert_eq!(answer["error"]["code"], "rate_limit_exceeded");
    assert_eq!(post(&server, "ann", COMPLETIONS, &ask(3, 1)).await.0, 200);
    assert_eq!(post(&server, "bob", COMPLETIONS, &ask(2, 1)).await.0, 200);
    // Two outputs of 400 tokens overdraw the account.
    assert_eq!(post(&server, "bob", COMPLETIONS, &ask(2, 400)).await.0, 200);
    let request = reqwest::Client::new()
        .post(format!("{}/v1/messages", server.url))
        .header("x-api-key", "key-of-bob")
        .json(&json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 429);
    let seconds: u64 = response.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["error"]["type"], "rate_limit_error");
    assert_eq!(post(&server, "ann", COMPLETIONS, &ask(1, 1)).await.0, 200);
}

#[tokio::test]
async fn a_stored_response_is_its_keys_own() {
    let file = KeysFile::new("stored");
    let server = server(&file, false);
    let ask = |more: Value| {
        let mut body = json!({"model": MODEL, "input": "abc", "max_output_tokens": 2});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let bodies = [
        json!({}),
        json!({"background": true}),
        json!({"stream": true}),
    ];
    for body in bodies {
        let request = reqwest::Client::new()
            .post(format!("{}/v1/responses", server.url))
            .bearer_auth("key-of-ann")
            .json(&ask(body.clone()));
        let text = request.send().await.unwrap().text().await.unwrap();
        let (_, id) = text.split_once("\"id\":\"resp_").unwrap();
        let id = format!("resp_{}", id.split('"').next().unwrap());
        server.wait_until_idle().await;
        let call = async |key: &str, method: reqwest::Method, path: &str| {
            let url = format!("{}/v1/responses/{id}{path}", server.url);
            let request = reqwest::Client::new().request(method, url);
            let response = request.bearer_auth(format!("key-of-{key}")).send().await;
            response.unwrap().status().as_u16()
        };
        use reqwest::Method;
        for key in ["bob", "root"] {
            assert_eq!(call(key, Method::GET, "").await, 404, "{body}");
            assert_eq!(call(key, Method::POST, "/cancel").await, 404, "{body}");
            assert_eq!(call(key, Method::DELETE, "").await, 404, "{body}");
            let next = ask(json!({"previous_response_id": id}));
            let (status, answer) = post(&server, key, "/v1/responses", &next).await;
            assert_eq!(status, 404, "{answer}");
        }
        assert_eq!(call("ann", Method::GET, "").await, 200, "{body}");
        let next = ask(json!({"previous_response_id": id}));
        let (status, answer) = post(&server, "ann", "/v1/responses", &next).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(call("ann", Method::DELETE, "").await, 200, "{body}");
        assert_eq!(call("ann", Method::GET, "").await, 404, "{body}");
    }
}

#[tokio::test]
async fn keys_share_no_prefixes_where_caches_are_isolated() {
    let file = KeysFile::new("isolated");
    let cached = async |server: &TestServer, key: &str, salt: Option<&str>| {
        let body =
            json!({"model": MODEL, "prompt": "abcdefgh", "max_tokens": 1, "cache_salt": salt});
        let (status, answer) = post(server, key, COMPLETIONS, &body).await;
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0)
    };
    let shared = server(&file, false);
    assert_eq!(cached(&shared, "ann", None).await, 0);
    assert!(cached(&shared, "root", None).await > 0, "this is the leak");
    let isolated = server(&file, true);
    assert_eq!(cached(&isolated, "ann", None).await, 0);
    assert!(cached(&isolated, "ann", None).await > 0);
    for salt in [None, Some("3:ann:"), Some("key:3:ann:")] {
        assert_eq!(cached(&isolated, "root", salt).await, 0, "{salt:?}");
    }
    assert_eq!(cached(&isolated, "ann", Some("salt")).await, 0);
}

#[tokio::test]
async fn every_api_takes_a_salt() {
    let server = TestServer::plain();
    let text = "abcdefgh";
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body) in [
        (CHAT, json!({"messages": messages, "max_tokens": 1})),
        (COMPLETIONS, json!({"prompt": text, "max_tokens": 1})),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 1}),
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 1}),
        ),
        (
            "/api/chat",
            json!({"messages": messages, "stream": false, "options": {"num_predict": 1}}),
        ),
        (
            "/api/generate",
            json!({"prompt": text, "raw": true, "stream": false, "options": {"num_predict": 1}}),
        ),
        ("/completion", json!({"prompt": text, "n_predict": 1})),
        (
            "/v1/score",
            json!({"query": text, "items": ["i"], "label_token_ids": [97]}),
        ),
    ] {
        let ask = async |salt: Value| {
            let mut body = body.clone();
            body["model"] = json!(MODEL);
            body["cache_salt"] = salt;
            let before = server.state.loaded().unwrap().engine.stats().cached_tokens;
            let (status, answer) = super::post(&server, path, &body).await;
            server.wait_until_idle().await;
            let after = server.state.loaded().unwrap().engine.stats().cached_tokens;
            (status, answer, after - before)
        };
        let salt = json!(format!("salt of {path}"));
        let (status, answer, cached) = ask(salt.clone()).await;
        assert_eq!((status, cached), (200, 0), "{path}: {answer}");
        let (status, _, cached) = ask(salt).await;
        assert!(status == 200 && cached > 0, "{path}: {cached}");
        let (status, _, cached) = ask(json!("another")).await;
        assert_eq!((status, cached), (200, 0), "{path}");
        let (status, answer, _) = ask(json!("")).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(
            answer.to_string().contains("cache_salt"),
            "{path}: {answer}"
        );
        let flush = reqwest::Client::new().post(format!("{}/flush_cache", server.url));
        assert_eq!(flush.send().await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_long_rid_is_not_repeated() {
    let server = TestServer::plain();
    let body = generate("a", 1, &"r".repeat(1_000_000));
    let (status, answer) = super::post(&server, "/generate", &body).await;
    assert_eq!(status, 400);
    assert!(answer.to_string().len() < 2000);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("of 1000000 bytes"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_page_that_rebinds_its_name_is_refused() {
    let server = TestServer::plain();
    let ask = async |host: &str| {
        let request = reqwest::Client::new()
            .get(format!("{}/v1/models", server.url))
            .header("host", host);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    for host in ["localhost:8000", "127.0.0.1", "[::1]:1"] {
        assert_eq!(ask(host).await.0, 200, "{host}");
    }
    let (status, text) = ask("evil.example:8000").await;
    assert_eq!(status, 403);
    assert!(
        text.contains("host_not_allowed") && text.contains("--allowed-hosts"),
        "{text}"
    );
    // Programs behind it, such as a proxy, are told apart by the flag.
    let named = HttpConfig {
        allowed_hosts: Some("llm.example".to_owned()),
        ..HttpConfig::default()
    };
    let named = TestServer::start(Behaviour::default(), EngineConfig::default(), named);
    let request = reqwest::Client::new()
        .get(format!("{}/v1/models", named.url))
        .header("host", "llm.example");
    assert_eq!(request.send().await.unwrap().status(), 200);
}
