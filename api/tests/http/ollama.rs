//! Ollama's API.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{ok, post};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyz";

fn chat(extra: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": MODEL, "messages": messages, "options": {"temperature": 0}});
    with(body, extra)
}

fn generate(extra: Value) -> Value {
    let body = json!({"model": MODEL, "prompt": "hello", "options": {"temperature": 0}});
    with(body, extra)
}

fn with(mut body: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The lines of a stream.
async fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let request = reqwest::Client::new().post(format!("{}{path}", server.url));
    // As curl sends it: the content type is not that of JSON.
    let response = request.body(body.to_string()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn answers_are_streamed_as_lines_unless_asked_otherwise() {
    let behaviour = Behaviour {
        step: Duration::from_millis(2),
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    for (path, body) in [(CHAT, chat(json!({}))), (GENERATE, generate(json!({})))] {
        let text_of = |line: &Value| {
            let text = if path == CHAT {
                &line["message"]["content"]
            } else {
                &line["response"]
            };
            text.as_str().unwrap().to_owned()
        };
        let lines = lines(&server, path, &body).await;
        let (last, rest) = lines.split_last().unwrap();
        assert!(rest.len() > 3 && rest.iter().all(|line| line["done"] == false));
        let text: String = lines.iter().map(text_of).collect();
        assert_eq!(text, ALPHABET);
        assert_eq!(
            (&last["done"], &last["done_reason"]),
            (&json!(true), &json!("stop"))
        );
        assert_eq!(last["prompt_eval_count"], "user: hello\nassistant: ".len());
        assert_eq!(last["eval_count"], 27);
        for time in ["total_duration", "prompt_eval_duration", "eval_duration"] {
            assert!(last[time].as_u64().unwrap() > 0, "{last}");
        }
        let created = last["created_at"].as_str().unwrap();
        assert!(
            created.starts_with("20") && created.ends_with('Z'),
            "{created}"
        );
        let whole = ok(&server, path, &with(body, json!({"stream": false}))).await;
        assert_eq!(
            (text_of(&whole), &whole["done"]),
            (ALPHABET.to_owned(), &json!(true))
        );
    }
}

#[tokio::test]
async fn options_are_honoured() {
    let server = TestServer::plain();
    let text = async |options: Value| {
        let body = generate(json!({"stream": false, "raw": true, "options": options}));
        let answer = ok(&server, GENERATE, &body).await;
        let text = answer["response"].as_str().unwrap().to_owned();
        (text, answer["done_reason"].as_str().unwrap().to_owned())
    };
    let pair = |text: &str, reason: &str| (text.to_owned(), reason.to_owned());
    // In raw mode the answer continues the prompt "hello" itself.
    assert_eq!(
        text(json!({"temperature": 0})).await,
        pair("pqrstuvwxyz", "stop")
    );
    assert_eq!(
        text(json!({"top_k": 1, "num_predict": 2})).await,
        pair("pq", "length")
    );
    assert_eq!(
        text(json!({"top_k": 1, "num_predict": -1})).await,
        pair("pqrstuvwxyz", "stop")
    );
    assert_eq!(
        text(json!({"top_k": 1, "stop": "st"})).await,
        pair("pqr", "stop")
    );
    assert_eq!(
        text(json!({"top_k": 1, "stop": ["tu", "st"]})).await,
        pair("pqr", "stop")
    );
    // A smaller context: the prompt has 6 tokens.
    assert_eq!(
        text(json!({"top_k": 1, "num_ctx": 9})).await,
        pair("pqr", "length")
    );
    assert_eq!(
        text(json!({"top_k": 1, "num_ctx": 99_999})).await,
        pair("pqrstuvwxyz", "stop")
    );
    let hot = json!({"temperature": 2, "seed": 5, "num_predict": 40});
    assert_eq!(text(hot.clone()).await, text(hot).await);
    let boolean = generate(json!({"stream": false, "format": {"type": "boolean"}}));
    let answer = ok(&server, GENERATE, &boolean).await;
    assert!(
        ["true", "false"].contains(&answer["response"].as_str().unwrap()),
        "{answer}"
    );
    let system = generate(json!({"stream": false, "system": "Spell."}));
    let answer = ok(&server, GENERATE, &system).await;
    let prompt = "system: Spell.\nuser: hello\nassistant: ";
    assert_eq!(answer["prompt_eval_count"], prompt.len());
}

#[tokio::test]
async fn a_request_without_a_prompt_loads_the_model_which_is_loaded() {
    let server = TestServer::plain();
    let answer = ok(
        &server,
        GENERATE,
        &json!({"model": MODEL, "keep_alive": "5m"}),
    )
    .await;
    assert_eq!(
        (&answer["done"], &answer["done_reason"]),
        (&json!(true), &json!("load"))
    );
    let answer = ok(
        &server,
        CHAT,
        &json!({"model": MODEL, "messages": [], "keep_alive": -1}),
    )
    .await;
    assert_eq!(
        answer["message"],
        json!({"role": "assistant", "content": ""})
    );
}

async fn get(server: &TestServer, path: &str) -> Value {
    let response = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.json().await.unwrap()
}

#[tokio::test]
async fn the_model_is_listed_and_shown() {
    let server = TestServer::plain();
    for path in ["/api/tags", "/api/ps"] {
        let models = get(&server, path).await["models"].clone();
        assert_eq!(
            (&models[0]["name"], &models[0]["model"]),
            (&json!(MODEL), &json!(MODEL))
        );
        assert_eq!(models[0]["details"]["format"], "safetensors");
    }
    assert!(get(&server, "/api/version").await["version"].is_string());
    for name in [MODEL.to_owned(), format!("{MODEL}:latest")] {
        let shown = ok(&server, "/api/show", &json!({"model": name})).await;
        assert_eq!(shown["capabilities"], json!(["completion"]));
        assert_eq!(shown["model_info"]["general.parameter_count"], 0);
    }
    let shown = ok(&server, "/api/show", &json!({"name": MODEL})).await;
    assert_eq!(shown["model_info"][".context_length"], 512);
    // Tools ask for `/` to see whether a server is running.
    let root = reqwest::get(&server.url).await.unwrap();
    assert_eq!(root.status(), 200);
    let head = reqwest::Client::new()
        .head(&server.url)
        .send()
        .await
        .unwrap();
    assert_eq!(head.status(), 200);
}

#[tokio::test]
async fn every_refusal_is_in_ollamas_shape_and_names_the_field() {
    let server = TestServer::plain();
    let options = |options: Value| generate(json!({"options": options}));
    let messages = |messages: Value| chat(json!({"messages": messages}));
    let cases: Vec<(&str, Value, &[&str])> = vec![
        (CHAT, json!({"messages": []}), &["model"]),
        (CHAT, messages(json!("hi")), &["`messages`", "a list"]),
        (
            CHAT,
            messages(json!([{"role": "cat", "content": "a"}])),
            &["`messages[0].role`", "cat"],
        ),
        (
            CHAT,
            messages(json!([{"role": "user", "content": null}])),
            &["`messages[0].content`"],
        ),
        (
            CHAT,
            messages(json!([{"role": "user", "content": "a", "images": ["x"]}])),
            &["`messages[0].images`"],
        ),
        (
            CHAT,
            messages(json!([{"role": "user", "content": "unspeakable"}])),
            &["unspeakable"],
        ),
        (
            CHAT,
            chat(json!({"tools": [{}]})),
            &["`tools[0].type`", "function"],
        ),
        (CHAT, chat(json!({"format": "yaml"})), &["`format`", "yaml"]),
        (CHAT, chat(json!({"format": {"type": 7}})), &["`format`"]),
        (
            CHAT,
            chat(json!({"think": true})),
            &["`think`", "--reasoning-parser", "got true"],
        ),
        (CHAT, chat(json!({"think": "most"})), &["`think`", "most"]),
        (
            GENERATE,
            generate(json!({"think": "low"})),
            &["`think`", "--reasoning-parser", "got \"low\""],
        ),
        (
            CHAT,
            chat(json!({"keep_alive": 0})),
            &["`keep_alive`", "never unloaded"],
        ),
        (
            CHAT,
            chat(json!({"keep_alive": "soon"})),
            &["`keep_alive`", "5m"],
        ),
        (CHAT, chat(json!({"stream": 1})), &["`stream`", "boolean"]),
        (CHAT, chat(json!({"colour": 1})), &["`colour`"]),
        (
            GENERATE,
            generate(json!({"prompt": 7})),
            &["`prompt`", "a string"],
        ),
        (
            GENERATE,
            generate(json!({"suffix": "x"})),
            &["`suffix`", "not supported"],
        ),
        (
            GENERATE,
            generate(json!({"context": [1]})),
            &["`context`", "not supported"],
        ),
        (
            GENERATE,
            generate(json!({"raw": true, "system": "x"})),
            &["`system`", "`raw`"],
        ),
        (
            GENERATE,
            generate(json!({"prompt": "a".repeat(600)})),
            &["`prompt`", "512"],
        ),
        (
            GENERATE,
            generate(json!({"prompt": "unspeakable"})),
            &["`prompt`", "unspeakable"],
        ),
        (GENERATE, options(json!([])), &["`options`", "an object"]),
        (
            GENERATE,
            options(json!({"repeat_penalty": -1})),
            &["`repeat_penalty`", "above 0", "-1"],
        ),
        (
            GENERATE,
            options(json!({"num_predict": 0})),
            &["`num_predict`", "at least 1"],
        ),
        (
            GENERATE,
            options(json!({"num_ctx": 1})),
            &["`num_ctx`", "at least 2"],
        ),
        (
            GENERATE,
            options(json!({"num_ctx": 5})),
            &["`prompt`", "num_ctx"],
        ),
        (
            GENERATE,
            options(json!({"temperature": -1})),
            &["`temperature`", "between 0 and 2"],
        ),
        (
            GENERATE,
            options(json!({"mirostat": 1})),
            &["`mirostat`", "not supported"],
        ),
        (
            GENERATE,
            options(json!({"repeat_last_n": 64})),
            &["`repeat_last_n`", "64"],
        ),
        (
            GENERATE,
            options(json!({"num_gpu": 1})),
            &["`num_gpu`", "not supported"],
        ),
        (
            GENERATE,
            options(json!({"tempreature": 1})),
            &["`options.tempreature`"],
        ),
        ("/api/show", json!({}), &["model"]),
        (
            "/api/show",
            json!({"model": MODEL, "template": "x"}),
            &["`template`"],
        ),
    ];
    for (path, body, words) in cases {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!(status, 400, "{body}: {answer}");
        let message = answer["error"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{body}: {message:?} lacks {word:?}");
        }
    }
    for (path, body) in [
        (CHAT, chat(json!({"model": "llama3"}))),
        (GENERATE, generate(json!({"model": "llama3:latest"}))),
        ("/api/show", json!({"model": "llama3"})),
        ("/api/pull", json!({"model": "llama3"})),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert!(
            status == 404 && answer["error"].is_string(),
            "{path}: {answer}"
        );
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn inputs_are_embedded_and_cut_where_they_are_too_long() {
    let server = TestServer::plain();
    let embed = async |body: Value| post(&server, "/api/embed", &body).await;
    let (status, answer) = embed(json!({"model": "fake:latest", "input": ["a", "bc"]})).await;
    assert_eq!(status, 200, "{answer}");
    let vectors = answer["embeddings"].as_array().unwrap();
    assert_eq!(
        (vectors.len(), vectors[0].as_array().unwrap().len()),
        (2, 3)
    );
    let squares = vectors[0].as_array().unwrap().iter();
    let length: f64 = squares.map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{answer}");
    // Each text gets a token at its beginning.
    assert_eq!(
        (&answer["prompt_eval_count"], &answer["model"]),
        (&json!(5), &json!("fake:latest"))
    );
    let long = "a".repeat(600);
    // The last one is too long for the context however it is tokenised.
    for input in [long.clone(), "ä".repeat(100_000)] {
        let body = json!({"model": "fake", "input": input, "dimensions": 2});
        let (status, answer) = embed(body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["embeddings"][0].as_array().unwrap().len(), 2);
        assert_eq!(answer["prompt_eval_count"], 511);
    }
    for (more, words) in [
        (json!({"truncate": false}), "at most 511 tokens"),
        (json!({"keep_alive": 0}), "never unloaded"),
        (json!({"dimensions": 9}), "between 1 and 3"),
        (json!({"model": "other"}), "other"),
    ] {
        let mut body = json!({"model": "fake", "input": long});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = embed(body).await;
        let said = answer["error"].as_str().unwrap();
        assert!(status >= 400 && said.contains(words), "{status} {answer}");
    }
}

#[tokio::test]
async fn a_number_of_tokens_is_not_cut_to_the_models_suggestion() {
    let behaviour = Behaviour {
        max_new_tokens: Some(5),
        max_model_len: 64,
        endless: true,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let generated = async |path: &str, body: Value, count: &str| {
        ok(&server, path, &body).await[count].as_u64().unwrap()
    };
    // The prompt has a token for its letter and one for the beginning.
    for (asked, expected) in [(None, 5), (Some(9), 9), (Some(-1), 62), (Some(1000), 62)] {
        let options = json!({"num_predict": asked});
        let body = json!({"model": MODEL, "prompt": "a", "raw": true, "stream": false, "options": options});
        assert_eq!(
            generated(GENERATE, body, "eval_count").await,
            expected,
            "{asked:?}"
        );
        let body = json!({"prompt": "a", "n_predict": asked});
        let count = generated("/completion", body, "tokens_predicted").await;
        assert_eq!(count, expected, "{asked:?}");
    }
    let options = json!({"num_predict": 30, "num_ctx": 12});
    let body =
        json!({"model": MODEL, "prompt": "a", "raw": true, "stream": false, "options": options});
    assert_eq!(generated(GENERATE, body, "eval_count").await, 10);
}

#[tokio::test]
async fn llama_servers_tools_learn_the_context_and_what_runs() {
    let server = TestServer::start(
        Behaviour {
            step: Duration::from_millis(5),
            endless: true,
            ..Behaviour::default()
        },
        EngineConfig {
            max_running: 3,
            ..EngineConfig::default()
        },
        HttpConfig::default(),
    );
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
        answer.json::<Value>().await.unwrap()
    };
    let props = get("/props").await;
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    assert_eq!(
        (&props["total_slots"], &props["model_alias"]),
        (&json!(3), &json!("fake"))
    );
    let free = get("/slots").await;
    assert!(
        free.as_array()
            .unwrap()
            .iter()
            .all(|slot| slot["is_processing"] == false),
        "{free}"
    );
    let body = json!({"model": "fake", "prompt": "abc", "raw": true, "stream": false,
                      "options": {"num_predict": 300}});
    let (_, busy) = tokio::join!(post(&server, "/api/generate", &body), async {
        loop {
            let slots = get("/slots").await;
            if slots[0]["is_processing"] == true {
                return slots;
            }
        }
    });
    assert_eq!(busy.as_array().unwrap().len(), 3, "{busy}");
    assert!(busy[0]["n_prompt_tokens"].as_u64().unwrap() >= 3, "{busy}");
    assert_eq!(
        busy[1],
        json!({"id_task": -1, "n_ctx": 512, "is_processing": false, "id": 1})
    );
}
