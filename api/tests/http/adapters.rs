//! Adapters over HTTP: selected in the words of each API, loaded and unloaded while the server runs.

use std::path::PathBuf;
use std::sync::Arc;

use hearth_api::adapters::{AdapterError, AdapterSource, Adapters, LoraDir, Registration};
use hearth_api::config::HttpConfig;
use hearth_engine::{Adapter, EngineConfig};
use serde_json::{Value, json};

use crate::fake::{Behaviour, MODEL, TestServer};
use crate::{CHAT, COMPLETIONS, chunks, ok, post};

/// The adapter at a path that ends in a digit leaves out so many letters.
struct Digits;

impl AdapterSource for Digits {
    fn read(&self, path: &str) -> Result<Adapter, AdapterError> {
        let digit = path.chars().last().filter(char::is_ascii_digit);
        let refused = || AdapterError::Refused(format!("{path}: `use_qalora` is not supported"));
        Ok(adapter(digit.ok_or_else(refused)?.to_string()))
    }

    fn combined(&self, parts: &[(Arc<Adapter>, f32)]) -> Result<Adapter, AdapterError> {
        let each = parts
            .iter()
            .map(|(adapter, scale)| adapter.digest.parse::<f32>().unwrap() * scale);
        let sum = each.sum::<f32>();
        match sum > 9.0 {
            true => Err(AdapterError::Refused("the sum is too large".to_owned())),
            false => Ok(adapter(sum.to_string())),
        }
    }
}

fn adapter(digest: String) -> Adapter {
    Adapter {
        digest,
        ..Adapter::default()
    }
}

fn lora_dir() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("hearth-http-lora-{}", std::process::id()));
    for name in ["skip-3", "bad-x"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    dir
}

/// Two adapters, which leave out one and two letters.
pub fn registered() -> Adapters {
    let dir = LoraDir::new(&lora_dir()).unwrap();
    let adapters = Adapters::new(Arc::new(Digits), 2, 8, Some(dir));
    for (name, path) in [("one", "/x/1"), ("two", "/x/2")] {
        let given = Registration {
            name: name.to_owned(),
            path: path.to_owned(),
            ..Registration::default()
        };
        adapters.register(given, MODEL, false).unwrap();
    }
    adapters
}

fn server() -> TestServer {
    with_config(HttpConfig::default())
}

fn with_config(config: HttpConfig) -> TestServer {
    let behaviour = Behaviour {
        adapters: Some(registered),
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), config)
}

/// The text of a completion of "a" with the given fields.
async fn said(server: &TestServer, fields: Value) -> String {
    let mut body = json!({"prompt": "a", "max_tokens": 4, "temperature": 0});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    let answer = ok(server, COMPLETIONS, &body).await;
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[actix_web::test]
async fn each_api_selects_an_adapter_in_its_own_words() {
    let server = server();
    for (fields, text) in [
        (json!({}), "bcde"),
        (json!({"model": MODEL}), "bcde"),
        (json!({"model": "one"}), "cegi"),
        (json!({"model": "two"}), "dgjm"),
        (json!({"model": "fake:two"}), "dgjm"),
        (json!({"lora_path": "one"}), "cegi"),
        (json!({"lora_path": "one", "model": "fake:two"}), "dgjm"),
        (json!({"lora": [{"id": 1, "scale": 1.0}]}), "dgjm"),
        (
            json!({"lora": [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}]}),
            "eimq",
        ),
        (json!({"lora": []}), "bcde"),
    ] {
        assert_eq!(said(&server, fields.clone()).await, text, "{fields}");
    }
    let generate = |path: Value| {
        json!({
            "text": ["a", "a"], "lora_path": path,
            "sampling_params": {"max_new_tokens": 2, "temperature": 0},
        })
    };
    let each = ok(&server, "/generate", &generate(json!(["one", ""]))).await;
    assert_eq!(
        (&each[0]["text"], &each[1]["text"]),
        (&json!("ce"), &json!("bc"))
    );
    let all = ok(&server, "/generate", &generate(json!("two"))).await;
    assert_eq!(
        (&all[0]["text"], &all[1]["text"]),
        (&json!("dg"), &json!("dg"))
    );
    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"model": "one", "messages": messages, "max_tokens": 3, "temperature": 0});
    let chat = ok(&server, CHAT, &body).await;
    assert_eq!(chat["model"], "one");
    let base = json!({"model": MODEL, "messages": messages, "max_tokens": 3, "temperature": 0});
    let base = ok(&server, CHAT, &base).await;
    assert_eq!(base["model"], MODEL);
    assert_ne!(chat["choices"][0]["message"], base["choices"][0]["message"]);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    for chunk in chunks(&server, CHAT, &streamed).await {
        assert_eq!(chunk["model"], "one");
    }
    let anthropic = ok(&server, "/v1/messages", &body).await;
    assert_eq!(anthropic["model"], "one");
    assert_eq!(
        anthropic["content"][0]["text"],
        chat["choices"][0]["message"]["content"]
    );
    let options = json!({"num_predict": 3, "temperature": 0});
    let ollama = json!({
        "model": "one:latest", "messages": messages, "stream": false, "options": options,
    });
    let ollama = ok(&server, "/api/chat", &ollama).await;
    assert_eq!(
        ollama["message"]["content"],
        chat["choices"][0]["message"]["content"]
    );
    let response = json!({
        "model": "one", "input": "x", "max_output_tokens": 3, "temperature": 0, "store": false,
    });
    let response = ok(&server, "/v1/responses", &response).await;
    assert_eq!(response["model"], "one");
    let text = &response["output"][0]["content"][0]["text"];
    assert_eq!(*text, chat["choices"][0]["message"]["content"]);
    server.wait_until_idle().await;
}

#[actix_web::test]
async fn models_list_adapters_with_their_parent() {
    let server = server();
    let get = |path: &str| reqwest::get(format!("{}{path}", server.url));
    let list: Value = get("/v1/models").await.unwrap().json().await.unwrap();
    let ids: Vec<&Value> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(ids, [MODEL, "one", "two"]);
    assert_eq!(list["data"][0]["parent"], Value::Null);
    let one = &list["data"][1];
    assert_eq!(
        (&one["parent"], &one["root"]),
        (&json!(MODEL), &json!("/x/1"))
    );
    let card: Value = get("/v1/models/one").await.unwrap().json().await.unwrap();
    assert_eq!(card, *one);
    assert_eq!(get("/v1/models/three").await.unwrap().status(), 404);
}

#[actix_web::test]
async fn ollamas_list_has_adapters_as_models_with_their_parent() {
    let server = server();
    let tags = reqwest::get(format!("{}/api/tags", server.url)).await;
    let tags: Value = tags.unwrap().json().await.unwrap();
    let models = tags["models"].as_array().unwrap().iter();
    let models: Vec<[&Value; 3]> = models
        .map(|m| [&m["name"], &m["model"], &m["details"]["parent_model"]])
        .collect();
    let want = [
        [MODEL, MODEL, ""],
        ["one", "one", MODEL],
        ["two", "two", MODEL],
    ];
    assert_eq!(models, want);
    for (model, parent) in [(MODEL, ""), ("one", MODEL), ("two:latest", MODEL)] {
        let shown = ok(&server, "/api/show", &json!({"model": model})).await;
        assert_eq!(shown["details"]["parent_model"], parent, "{model}");
    }
    let (status, answer) = post(&server, "/api/show", &json!({"model": "three"})).await;
    assert_eq!(status, 404, "{answer}");
}

#[actix_web::test]
async fn what_is_no_adapter_is_refused_by_its_field() {
    let server = server();
    let refused = |fields: Value| {
        let server = &server;
        async move {
            let mut body = json!({"prompt": "a"});
            body.as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            let (status, answer) = post(server, COMPLETIONS, &body).await;
            (
                status,
                answer["error"]["param"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            )
        }
    };
    let of = |status: u16, param: &str| (status, param.to_owned());
    assert_eq!(refused(json!({"model": "three"})).await, of(404, "model"));
    assert_eq!(
        refused(json!({"model": "fake:three"})).await,
        of(404, "model")
    );
    assert_eq!(
        refused(json!({"lora_path": "three"})).await,
        of(400, "lora_path")
    );
    let lora = |id: i64, scale: f64| json!({"lora": [{"id": id, "scale": scale}]});
    assert_eq!(refused(lora(5, 1.0)).await, of(400, "lora[0].id"));
    assert_eq!(refused(lora(-1, 1.0)).await, of(400, "lora[0].id"));
    assert_eq!(refused(lora(0, 1e300)).await, of(400, "lora[0].scale"));
    assert_eq!(refused(lora(1, 100.0)).await, of(400, "lora"));
    let body = json!({"prompt": "a", "lora": [{"id": 0, "scale": 1e300}]});
    let (_, answer) = post(&server, COMPLETIONS, &body).await;
    let message = answer["error"]["message"].as_str().unwrap();
    let bound = "between -3.4028235e38 and 3.4028235e38, got 1e300";
    assert!(message.contains(bound), "{message}");
    let both = json!({"model": "one", "lora": [{"id": 0, "scale": 1.0}]});
    assert_eq!(refused(both).await, of(400, "lora"));
    let plain = TestServer::plain();
    for field in ["lora_path", "lora"] {
        let value = if field == "lora" {
            json!([{"id": 0, "scale": 1.0}])
        } else {
            json!("one")
        };
        let mut body = json!({"prompt": "a"});
        body[field] = value;
        let (status, answer) = post(&plain, COMPLETIONS, &body).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(field)),
            "{answer}"
        );
    }
}

#[actix_web::test]
async fn adapters_are_loaded_and_unloaded_as_in_vllm() {
    let server = server();
    let post_text = |path: &'static str, body: Value| {
        let request = reqwest::Client::new()
            .post(format!("{}{path}", server.url))
            .json(&body);
        async move {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        }
    };
    let load = |name: &str, path: &str| {
        post_text(
            "/v1/load_lora_adapter",
            json!({"lora_name": name, "lora_path": path}),
        )
    };
    let (status, text) = load("three", "skip-3").await;
    let added = "Success: LoRA adapter 'three' added successfully.";
    assert_eq!((status, text.as_str()), (200, added));
    assert_eq!(said(&server, json!({"model": "three"})).await, "eimq");
    for (name, path, status, word) in [
        ("three", "skip-3", 400, "already been loaded"),
        (MODEL, "skip-3", 400, "base model"),
        ("", "skip-3", 400, "must be provided"),
        ("four", "", 400, "must be provided"),
        ("four", "nothing", 404, "no adapter"),
        ("four", "/etc", 400, "not below --lora-dir"),
        ("four", "../hearth", 400, "not below --lora-dir"),
        ("four", "bad-x", 400, "use_qalora"),
    ] {
        let (given, text) = load(name, path).await;
        assert_eq!(given, status, "{text}");
        assert!(text.contains(word), "{text}");
    }
    let unload = |name: &str| post_text("/v1/unload_lora_adapter", json!({"lora_name": name}));
    let (status, text) = unload("three").await;
    let removed = "Success: LoRA adapter 'three' removed successfully.";
    assert_eq!((status, text.as_str()), (200, removed));
    let (status, text) = unload("three").await;
    assert_eq!(status, 404);
    assert!(
        text.contains("The lora adapter 'three' cannot be found."),
        "{text}"
    );
    let body = json!({"prompt": "a", "model": "three"});
    assert_eq!(post(&server, COMPLETIONS, &body).await.0, 404);
    for _ in 0..200 {
        assert_eq!(load("three", "skip-3").await.0, 200);
        assert_eq!(unload("three").await.0, 200);
    }
}

#[actix_web::test]
async fn adapters_are_loaded_and_unloaded_as_in_sglang() {
    let server = server();
    let load = json!({"lora_name": "three", "lora_path": "skip-3"});
    let answer = ok(&server, "/load_lora_adapter", &load).await;
    assert_eq!(
        (&answer["success"], &answer["error_message"]),
        (&json!(true), &json!(""))
    );
    let names: Vec<&String> = answer["loaded_adapters"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(names, ["one", "two", "three"]);
    let (status, answer) = post(&server, "/load_lora_adapter", &load).await;
    assert_eq!((status, &answer["success"]), (400, &json!(false)));
    let unload = json!({"lora_name": "three"});
    let answer = ok(&server, "/unload_lora_adapter", &unload).await;
    assert_eq!(answer["loaded_adapters"].as_object().unwrap().len(), 2);
    let (status, answer) = post(&server, "/unload_lora_adapter", &unload).await;
    assert_eq!(status, 400);
    assert!(
        answer["error_message"]
            .as_str()
            .unwrap()
            .contains("does not exist"),
        "{answer}"
    );
}

#[actix_web::test]
async fn factors_for_all_requests_are_set_as_in_llama_server() {
    let server = server();
    let list = || async {
        let response = reqwest::get(format!("{}/lora-adapters", server.url))
            .await
            .unwrap();
        response.json::<Value>().await.unwrap()
    };
    let before = list().await;
    let want = json!({
        "id": 1, "path": "/x/2", "scale": 0.0, "task_name": "", "prompt_prefix": "", "name": "two",
    });
    assert_eq!(before[1], want);
    let answer = ok(&server, "/lora-adapters", &json!([{"id": 1, "scale": 0.5}])).await;
    assert_eq!(answer, json!({"success": true}));
    assert_eq!(said(&server, json!({})).await, "cegi");
    assert_eq!(said(&server, json!({"lora": []})).await, "bcde");
    assert_eq!(said(&server, json!({"model": "two"})).await, "dgjm");
    let (status, answer) = post(&server, "/lora-adapters", &json!([{"id": 9, "scale": 1}])).await;
    assert_eq!(status, 400, "{answer}");
    ok(&server, "/lora-adapters", &json!([])).await;
    assert_eq!(said(&server, json!({})).await, "bcde");
}

#[actix_web::test]
async fn the_routes_of_adapters_ask_for_the_admin_key() {
    let server = with_config(HttpConfig {
        api_key: "user".parse().ok(),
        admin_api_key: "admin".parse().ok(),
        ..HttpConfig::default()
    });
    for path in [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/load_lora_adapter",
        "/unload_lora_adapter",
        "/lora-adapters",
    ] {
        let status = |key: &str| {
            let request = reqwest::Client::new()
                .post(format!("{}{path}", server.url))
                .bearer_auth(key)
                .json(&json!({}));
            async move { request.send().await.unwrap().status().as_u16() }
        };
        assert!([401, 403].contains(&status("user").await), "{path}");
        assert_eq!(status("admin").await, 400, "{path}");
    }
}

#[actix_web::test]
async fn a_request_finishes_with_an_adapter_that_is_unloaded_or_replaced_meanwhile() {
    let behaviour = Behaviour {
        adapters: Some(registered),
        endless: true,
        step: std::time::Duration::from_millis(5),
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let body = json!({"prompt": "a", "model": "one", "max_tokens": 100, "temperature": 0});
    let url = format!("{}{COMPLETIONS}", server.url);
    let running = actix_web::rt::spawn(async move {
        let response = reqwest::Client::new()
            .post(url)
            .json(&body)
            .send()
            .await
            .unwrap();
        response.json::<Value>().await.unwrap()
    });
    let served = server.state.loaded().unwrap();
    while served.adapters.in_use()[0].is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(served.adapters.in_use()[0], ["one"]);
    // SGLang's way waits for the request.
    ok(
        &server,
        "/unload_lora_adapter",
        &json!({"lora_name": "one"}),
    )
    .await;
    let answer = running.await.unwrap();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(
        text.starts_with("cegikmoqsuwy") && text.len() == 100,
        "{text}"
    );
    server.wait_until_idle().await;
}
