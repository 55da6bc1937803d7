//! SGLang's own API: the wire contract of its front-end, its router and its load generator.

use std::time::Duration;

use hearth_engine::EngineConfig;
use hearth_server::config::Config;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{CHAT, COMPLETIONS, chunks, ok, post};

const GENERATE: &str = "/generate";

/// A body exactly as SGLang's `RuntimeEndpoint` writes it.
fn front_end(text: &str, extra: Value) -> Value {
    let mut sampling = json!({
        "skip_special_tokens": true, "spaces_between_special_tokens": true,
        "max_new_tokens": 128, "min_new_tokens": 0, "n": 1, "stop": [], "stop_token_ids": [],
        "stop_regex": [], "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "ignore_eos": false, "regex": null,
        "json_schema": null,
    });
    let mut body = json!({"text": text});
    for (key, value) in extra.as_object().unwrap() {
        match key.as_str() {
            "stream"
            | "return_logprob"
            | "logprob_start_len"
            | "top_logprobs_num"
            | "rid"
            | "return_text_in_logprobs"
            | "input_ids"
            | "text" => body[key] = value.clone(),
            _ => sampling[key] = value.clone(),
        }
    }
    body["sampling_params"] = sampling;
    body
}

#[tokio::test]
async fn a_prompt_is_continued_and_everything_about_it_is_told() {
    let server = TestServer::plain();
    let answer = ok(&server, GENERATE, &front_end("w", json!({"rid": "mine"}))).await;
    assert_eq!(answer["text"], "xyz");
    // The ids of SGLang's answers include the token that ended them.
    assert_eq!(answer["output_ids"], json!([120, 121, 122, 256]));
    let meta = &answer["meta_info"];
    assert_eq!(meta["id"], "mine");
    assert_eq!(
        meta["finish_reason"],
        json!({"type": "stop", "matched": 256})
    );
    assert_eq!(
        (&meta["prompt_tokens"], &meta["completion_tokens"]),
        (&json!(2), &json!(4))
    );
    assert_eq!(meta["cached_tokens"], 0);
    assert!(meta["e2e_latency"].as_f64().unwrap() > 0.0, "{meta}");
    assert!(meta.get("input_token_logprobs").is_none(), "{meta}");
    let short = ok(
        &server,
        GENERATE,
        &front_end("a", json!({"max_new_tokens": 3})),
    )
    .await;
    assert_eq!(short["text"], "bcd");
    let meta = &short["meta_info"];
    assert_eq!(
        meta["finish_reason"],
        json!({"type": "length", "length": 3})
    );
    let stopped = ok(&server, GENERATE, &front_end("a", json!({"stop": ["fg"]}))).await;
    assert_eq!(stopped["text"], "bcde");
    assert_eq!(
        stopped["meta_info"]["finish_reason"],
        json!({"type": "stop", "matched": "fg"})
    );
    let kept = front_end("a", json!({"stop": ["fg"], "no_stop_trim": true}));
    assert_eq!(ok(&server, GENERATE, &kept).await["text"], "bcdefg");
    let kept = front_end("a", json!({"stop_token_ids": [101], "no_stop_trim": true}));
    assert_eq!(ok(&server, GENERATE, &kept).await["text"], "bcde");
}

#[tokio::test]
async fn a_stream_has_the_whole_text_so_far_in_every_event() {
    let server = TestServer::start(
        Behaviour {
            step: Duration::from_millis(2),
            ..Behaviour::default()
        },
        EngineConfig::default(),
        Config::default(),
    );
    let body = front_end("s", json!({"stream": true, "return_logprob": true}));
    let events = chunks(&server, GENERATE, &body).await;
    let mut before = String::new();
    for event in &events {
        let text = event["text"].as_str().unwrap();
        assert!(text.starts_with(&before), "{before:?} and then {text:?}");
        before = text.to_owned();
        let meta = &event["meta_info"];
        assert_eq!(
            meta["output_token_logprobs"].as_array().unwrap().len(),
            text.len()
        );
    }
    assert_eq!(before, "tuvwxyz");
    assert!(events.len() > 3, "it came in one piece");
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "stop");
    assert!(
        rest.iter()
            .all(|event| event["meta_info"]["finish_reason"].is_null())
    );
    assert_eq!(last["output_ids"].as_array().unwrap().len(), 8);
    // Of a batch each event says whose it is.
    let body = front_end("", json!({"text": ["x", "w"], "stream": true}));
    let events = chunks(&server, GENERATE, &body).await;
    for (index, text) in [(0, "yz"), (1, "xyz")] {
        let own = events.iter().rfind(|event| event["index"] == index);
        assert_eq!(own.unwrap()["text"], text);
    }
}

#[tokio::test]
async fn batches_and_several_continuations_answer_with_lists() {
    let server = TestServer::plain();
    let texts = |answer: &Value| -> Vec<String> {
        let list = answer.as_array().unwrap().iter();
        list.map(|one| one["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let answer = ok(
        &server,
        GENERATE,
        &front_end("", json!({"text": ["w", "x"]})),
    )
    .await;
    assert_eq!(texts(&answer), ["xyz", "yz"]);
    let answer = ok(&server, GENERATE, &front_end("w", json!({"n": 2}))).await;
    assert_eq!(texts(&answer), ["xyz", "xyz"]);
    let answer = ok(
        &server,
        GENERATE,
        &json!({"input_ids": [119], "sampling_params": {"temperature": 0}}),
    )
    .await;
    assert_eq!(answer["text"], "xyz");
    let body = json!({
        "input_ids": [[119], [97]],
        "sampling_params": [
            {"max_new_tokens": 1, "temperature": 0}, {"max_new_tokens": 2, "temperature": 0},
        ],
        "rid": ["one", "two"],
        "return_logprob": [true, false],
    });
    let answer = ok(&server, GENERATE, &body).await;
    assert_eq!(texts(&answer), ["x", "bc"]);
    assert_eq!(answer[1]["meta_info"]["id"], "two");
    assert!(
        answer[0]["meta_info"]
            .get("output_token_logprobs")
            .is_some()
    );
    assert!(
        answer[1]["meta_info"]
            .get("output_token_logprobs")
            .is_none()
    );
    // A list of one is a list.
    let answer = ok(&server, GENERATE, &front_end("", json!({"text": ["w"]}))).await;
    assert_eq!(texts(&answer), ["xyz"]);
}

/// The three requests of `select`, as SGLang's front-end makes them.
#[tokio::test]
async fn select_fills_the_cache_scores_the_options_and_reuses_the_prefix() {
    let server = TestServer::plain();
    let prefix = "the alphabet goes on: abcdefgh";
    let warm = front_end(prefix, json!({"max_new_tokens": 0}));
    let answer = ok(&server, GENERATE, &warm).await;
    assert_eq!(answer["text"], "");
    let length = answer["meta_info"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(length, prefix.len() as u64 + 1);
    assert_eq!(
        answer["meta_info"]["finish_reason"],
        json!({"type": "length", "length": 0})
    );
    let from = length - 2;
    let options = ["ijk", "xxx"].map(|option| format!("{prefix}{option}"));
    let score = front_end(
        "",
        json!({
            "text": options, "max_new_tokens": 0, "return_logprob": true,
            "return_text_in_logprobs": true, "logprob_start_len": from,
        }),
    );
    let answers = ok(&server, GENERATE, &score).await;
    let scores = |index: usize| {
        let scored = answers[index]["meta_info"]["input_token_logprobs"].clone();
        scored.as_array().unwrap().clone()
    };
    // From the last but one token of the prefix on; nothing comes before the first.
    let first = scores(0);
    assert_eq!(first.len(), 5, "{first:?}");
    assert_eq!(first[0], json!([null, 103, "g"]));
    let tokens: Vec<&Value> = first.iter().map(|token| &token[2]).collect();
    assert_eq!(tokens, ["g", "h", "i", "j", "k"]);
    let mean = |scored: &[Value]| -> f64 {
        let known = scored.iter().filter_map(|token| token[0].as_f64());
        known.sum::<f64>() / (scored.len() - 1) as f64
    };
    assert!(mean(&first) > -0.1 && mean(&scores(1)) < -3.0, "{answers}");
    assert_eq!(answers[0]["meta_info"]["output_token_logprobs"], json!([]));
    // What comes before the tokens that are scored is not computed again.
    for answer in answers.as_array().unwrap() {
        assert_eq!(answer["meta_info"]["cached_tokens"], from);
    }
    let top = front_end(
        "ab",
        json!({
            "max_new_tokens": 1, "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2,
        }),
    );
    let meta = &ok(&server, GENERATE, &top).await["meta_info"];
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
    assert_eq!(meta["input_top_logprobs"][2][0][1], 98);
    assert_eq!(meta["output_top_logprobs"][0].as_array().unwrap().len(), 2);
    assert_eq!(meta["output_token_logprobs"][0][2], Value::Null);
    server.wait_until_idle().await;
}

#[tokio::test]
async fn every_refusal_of_generate_names_the_field_in_sglangs_shape() {
    let server = TestServer::plain();
    let with = |key: &str, value: Value| {
        let mut body = json!({"text": "a"});
        body[key] = value;
        body
    };
    let sampling = |key: &str, value: Value| with("sampling_params", json!({key: value}));
    let cases: Vec<(Value, &str, &str)> = vec![
        (json!({}), "text", "must be given"),
        (
            json!({"text": "a", "input_ids": [1]}),
            "input_ids",
            "must be left out",
        ),
        (json!({"text": []}), "text", "at least 1 prompt"),
        (json!({"text": 7}), "text", "expected a string"),
        (json!({"text": [7]}), "text[0]", "expected a string"),
        (
            json!({"input_ids": "a"}),
            "input_ids",
            "a list of token ids",
        ),
        (json!({"input_ids": []}), "input_ids", "at least 1 token"),
        (json!({"input_ids": [260]}), "input_ids", "below 260"),
        (json!({"input_ids": [[1], 2]}), "input_ids", "mixed"),
        (json!({"text": "a".repeat(600)}), "text", "context of 512"),
        (
            with("sampling_params", json!([])),
            "sampling_params",
            "each of 1 prompts",
        ),
        (
            with("sampling_params", json!(7)),
            "sampling_params",
            "an object",
        ),
        (
            sampling("temperature", json!(-1)),
            "temperature",
            "between 0 and 2",
        ),
        (
            sampling("temperature", json!("hot")),
            "sampling_params.temperature",
            "a number",
        ),
        (
            sampling("max_new_tokens", json!(-1)),
            "sampling_params.max_new_tokens",
            "at least 0",
        ),
        (
            sampling("max_new_tokens", json!(9999)),
            "sampling_params.max_new_tokens",
            "context",
        ),
        (
            sampling("n", json!(0)),
            "sampling_params.n",
            "between 1 and 128",
        ),
        (
            sampling("stop", json!([""])),
            "sampling_params.stop[0]",
            "between 1 and 1024",
        ),
        (
            sampling("regex", json!(7)),
            "sampling_params.regex",
            "a string",
        ),
        (sampling("regex", json!("(")), "sampling_params.regex", ""),
        (
            sampling("json_schema", json!("{")),
            "sampling_params.json_schema",
            "JSON",
        ),
        (
            sampling("json_schema", json!([])),
            "sampling_params.json_schema",
            "a JSON Schema",
        ),
        (
            with(
                "sampling_params",
                json!({"regex": "a", "ebnf": "root ::= \"a\""}),
            ),
            "sampling_params.ebnf",
            "together",
        ),
        (
            sampling("stop_regex", json!("a+")),
            "sampling_params.stop_regex",
            "not supported",
        ),
        (
            sampling("beam_width", json!(2)),
            "sampling_params.beam_width",
            "not supported",
        ),
        (
            sampling("tempreature", json!(1)),
            "sampling_params.tempreature",
            "not a field",
        ),
        (with("rid", json!("")), "rid", "between 1 and 128"),
        (with("rid", json!("a b")), "rid", "printable"),
        (with("rid", json!(["a", "b"])), "rid", "each of 1 prompts"),
        (
            json!({"text": ["a", "b"], "rid": ["x", "x"]}),
            "rid",
            "twice",
        ),
        (
            with("return_logprob", json!(1)),
            "return_logprob",
            "a boolean",
        ),
        (
            with("logprob_start_len", json!(3)),
            "logprob_start_len",
            "between 0 and 2",
        ),
        (
            with("logprob_start_len", json!(-2)),
            "logprob_start_len",
            "-1 (output only)",
        ),
        (
            with("top_logprobs_num", json!(21)),
            "top_logprobs_num",
            "between 0 and 20",
        ),
        (
            with("image_data", json!(["x"])),
            "image_data",
            "not supported",
        ),
        (with("lora_path", json!("x")), "lora_path", "not supported"),
        (
            with("return_hidden_states", json!(true)),
            "return_hidden_states",
            "not supported",
        ),
        (
            with("bootstrap_room", json!(1)),
            "bootstrap_room",
            "not supported",
        ),
        (with("priority", json!(1)), "priority", "priority"),
        (
            with("cache_salt", json!("")),
            "cache_salt",
            "between 1 and 256",
        ),
        (with("colour", json!(1)), "colour", "not a field"),
    ];
    for (body, param, words) in cases {
        let (status, answer) = post(&server, GENERATE, &body).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert_eq!(answer["object"], "error", "{answer}");
        assert_eq!(
            (&answer["code"], &answer["param"]),
            (&json!(400), &json!(param)),
            "{body}"
        );
        let message = answer["message"].as_str().unwrap();
        assert!(
            message.contains(words),
            "{body}: {message:?} lacks {words:?}"
        );
        assert_eq!(answer["error"]["message"], message);
    }
    let (status, _) = post(&server, GENERATE, &json!({"text": "a", "model": "other"})).await;
    assert_eq!(status, 404);
    server.wait_until_idle().await;
}

#[tokio::test]
async fn a_batch_follows_one_grammar_or_one_each() {
    let server = TestServer::plain();
    let texts = async |body: Value| -> Vec<String> {
        let answer = ok(&server, GENERATE, &body).await;
        let list = answer.as_array().unwrap().iter();
        list.map(|one| one["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let one = front_end("", json!({"text": ["a", "b"], "regex": "[xy]{3}"}));
    for text in texts(one).await {
        assert!(
            text.len() == 3 && text.bytes().all(|b| b"xy".contains(&b)),
            "{text}"
        );
    }
    let each = json!({
        "text": ["a", "b", "w"],
        "sampling_params": [
            {"temperature": 0, "json_schema": "{\"type\": \"boolean\"}"},
            {"temperature": 0, "ebnf": "root ::= \"no\""},
            {"temperature": 0, "regex": ""},
        ],
    });
    let texts = texts(each).await;
    assert!(["true", "false"].contains(&texts[0].as_str()), "{texts:?}");
    assert_eq!(texts[1..], ["no", "xyz"]);
}

#[tokio::test]
async fn what_sglangs_router_adds_to_openais_requests_asks_for_nothing() {
    let server = TestServer::plain();
    let chat = json!({
        "messages": [{"role": "user", "content": "hi"}], "model": MODEL, "logprobs": false,
        "max_completion_tokens": 8, "stream": false, "tool_choice": "none", "tools": [],
        "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false,
        "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true,
        "return_hidden_states": false, "temperature": 0,
    });
    let answer = ok(&server, CHAT, &chat).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "abcdefgh");
    let text = json!({
        "model": MODEL, "prompt": "w", "max_tokens": 8, "stream": false, "echo": false,
        "no_stop_trim": true, "stop": "y", "ignore_eos": false, "skip_special_tokens": true,
        "return_hidden_states": false, "temperature": 0,
    });
    assert_eq!(
        ok(&server, COMPLETIONS, &text).await["choices"][0]["text"],
        "xy"
    );
    // An answer that was begun goes on.
    let mut begun = chat;
    begun["messages"] = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well: v"},
    ]);
    begun["continue_final_message"] = json!(true);
    let answer = ok(&server, CHAT, &begun).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "wxyz");
    begun["add_generation_prompt"] = json!(true);
    let (status, answer) = post(&server, CHAT, &begun).await;
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("continue_final_message"))
    );
}

#[tokio::test]
async fn what_sglangs_router_adds_to_a_request_asks_for_nothing() {
    let server = TestServer::plain();
    let body = json!({
        "text": "w", "model": null, "sampling_params": {"max_new_tokens": 8, "temperature": 0},
        "return_text_in_logprobs": false, "stream": false, "log_metrics": true,
        "return_hidden_states": false, "background": false, "no_logs": false,
        "return_bytes": false, "return_entropy": false,
    });
    assert_eq!(ok(&server, GENERATE, &body).await["text"], "xyz");
    // And its load generator.
    let body = json!({
        "text": "w", "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": true},
        "stream": false, "lora_path": "", "return_logprob": false, "logprob_start_len": -1,
        "image_data": null, "priority": 0,
    });
    assert_eq!(ok(&server, GENERATE, &body).await["text"], "xyzabcd");
}

async fn get(server: &TestServer, path: &str) -> (u16, String) {
    let response = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn get_json(server: &TestServer, path: &str) -> Value {
    let (status, text) = get(server, path).await;
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_routes_about_the_model_and_the_load_have_what_the_router_reads() {
    let server = TestServer::plain();
    for path in ["/model_info", "/get_model_info"] {
        let info = get_json(&server, path).await;
        assert_eq!(info["served_model_name"], MODEL);
        assert_eq!(
            (&info["is_generation"], &info["max_model_len"]),
            (&json!(true), &json!(512))
        );
        for key in [
            "model_path",
            "tokenizer_path",
            "model_type",
            "architectures",
        ] {
            assert!(info.get(key).is_some(), "{path} lacks {key}");
        }
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = get_json(&server, path).await;
        assert_eq!((&info["tp_size"], &info["dp_size"]), (&json!(1), &json!(1)));
        assert_eq!(info["disaggregation_mode"], "null");
        // The router takes nothing of it where one of these has another type.
        assert_eq!(
            (&info["model"], &info["served_model_name"]),
            (&json!(MODEL), &json!(MODEL))
        );
        assert_eq!(info["max_total_num_tokens"], 4096);
        assert_eq!(info["internal_states"][0]["kv"]["total"], 4096);
    }
    let load = get_json(&server, "/get_load").await;
    assert_eq!(
        (&load[0]["num_reqs"], &load[0]["num_tokens"]),
        (&json!(0), &json!(0))
    );
    let loads = get_json(&server, "/v1/loads?include=core,queues").await;
    assert_eq!(loads["loads"][0]["num_running_reqs"], 0);
    assert!(loads["loads"][0].get("memory").is_none());
    assert!(
        get_json(&server, "/v1/loads").await["loads"][0]
            .get("memory")
            .is_some()
    );
    for (path, field) in [
        ("/v1/loads?dp_rank=1", "dp_rank"),
        ("/v1/loads?include=spec", "include"),
        ("/v1/loads?format=prometheus", "format"),
        ("/flush_cache?timeout=-1", "timeout"),
    ] {
        let (status, text) = get(&server, path).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &answer["param"]), (400, &json!(field)), "{answer}");
    }
    assert_eq!(get_json(&server, "/health_generate").await["status"], "ok");
    let loading = TestServer::start_loading(Config::default());
    for path in [
        "/model_info",
        "/get_load",
        "/health_generate",
        "/flush_cache",
    ] {
        assert_eq!(get(&loading, path).await.0, 503, "{path}");
    }
}

#[tokio::test]
async fn text_becomes_tokens_and_tokens_text() {
    let server = TestServer::plain();
    for path in ["/tokenize", "/v1/tokenize"] {
        let answer = ok(&server, path, &json!({"model": MODEL, "prompt": "ab"})).await;
        assert_eq!(
            answer,
            json!({"count": 3, "max_model_len": 512, "tokens": [257, 97, 98]})
        );
    }
    let plain = json!({"prompt": "a", "add_special_tokens": false, "return_token_strs": true});
    let answer = ok(&server, "/tokenize", &plain).await;
    assert_eq!(
        (&answer["tokens"], &answer["token_strs"]),
        (&json!([97]), &json!(["a"]))
    );
    let answer = ok(&server, "/tokenize", &json!({"prompt": ["a", ""]})).await;
    assert_eq!(
        (&answer["tokens"], &answer["count"]),
        (&json!([[257, 97], [257]]), &json!([2, 1]))
    );
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let answer = ok(&server, "/tokenize", &chat).await;
    let text = "user: hi\nassistant: ";
    assert_eq!(answer["tokens"], json!(text.bytes().collect::<Vec<_>>()));
    for path in ["/detokenize", "/v1/detokenize"] {
        let answer = ok(&server, path, &json!({"tokens": [97, 256, 98]})).await;
        assert_eq!(
            (&answer["text"], &answer["prompt"]),
            (&json!("ab"), &json!("ab"))
        );
    }
    let kept = json!({"tokens": [[97, 256], []], "skip_special_tokens": false});
    assert_eq!(
        ok(&server, "/detokenize", &kept).await["text"],
        json!(["a<eos>", ""])
    );
    for (path, body, field) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 7}), "prompt"),
        ("/tokenize", json!({"prompt": []}), "prompt"),
        (
            "/tokenize",
            json!({"prompt": "a", "messages": []}),
            "messages",
        ),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/tokenize", json!({"prompt": "a", "tools": [1]}), "tools"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({"tokens": [260]}), "tokens"),
        ("/detokenize", json!({"tokens": [1], "colour": 1}), "colour"),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!(
            (status, &answer["param"]),
            (400, &json!(field)),
            "{body}: {answer}"
        );
    }
}

/// A model that would go on for minutes.
fn slow() -> TestServer {
    let behaviour = Behaviour {
        step: Duration::from_millis(3),
        max_model_len: 100_000,
        kv_slots: 100_000,
        endless: true,
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), Config::default())
}

async fn wait_until_running(server: &TestServer, count: usize) {
    let engine = &server.state.loaded().unwrap().engine;
    for _ in 0..10_000 {
        if engine.stats().running == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never {count} running: {:?}", engine.stats());
}

#[tokio::test]
async fn an_aborted_request_ends_with_what_it_has_and_others_go_on() {
    let server = slow();
    let long = json!({"max_new_tokens": 50_000, "temperature": 0});
    let mut one = json!({"text": "a", "rid": "job-1", "sampling_params": long});
    let mut two = one.clone();
    two["rid"] = json!("job-2");
    one["stream"] = json!(true);
    let chat = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "a"}], "temperature": 0,
    });
    let others = async {
        wait_until_running(&server, 3).await;
        let gone = ok(&server, "/abort_request", &json!({"rid": "nobody"})).await;
        assert_eq!(gone, json!({"aborted": 0}));
        let gone = ok(&server, "/abort_request", &json!({"rid": "job-"})).await;
        assert_eq!(gone, json!({"aborted": 2}));
        wait_until_running(&server, 1).await;
        let gone = ok(&server, "/abort_request", &json!({"abort_all": true})).await;
        assert_eq!(gone, json!({"aborted": 1}));
    };
    let (one, two, three, ()) = tokio::join!(
        chunks(&server, GENERATE, &one),
        ok(&server, GENERATE, &two),
        ok(&server, CHAT, &chat),
        others
    );
    let last = one.last().unwrap();
    for answer in [last, &two] {
        assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
        assert!(!answer["text"].as_str().unwrap().is_empty());
    }
    assert_eq!(three["choices"][0]["finish_reason"], "abort");
    let (status, answer) = post(&server, "/abort_request", &json!({})).await;
    assert_eq!((status, &answer["param"]), (400, &json!("rid")));
    server.wait_until_idle().await;
}

#[tokio::test]
async fn the_cache_is_flushed_when_nothing_runs() {
    let server = slow();
    let body =
        json!({"text": "abcdefgh", "sampling_params": {"max_new_tokens": 4, "temperature": 0}});
    ok(&server, GENERATE, &body).await;
    assert_eq!(
        ok(&server, GENERATE, &body).await["meta_info"]["cached_tokens"],
        8
    );
    server.wait_until_idle().await;
    assert_eq!(get(&server, "/flush_cache").await.0, 200);
    assert_eq!(
        ok(&server, GENERATE, &body).await["meta_info"]["cached_tokens"],
        0
    );
    let long = json!({"text": "a", "rid": "long", "sampling_params": {"max_new_tokens": 50_000, "temperature": 0}});
    let while_it_runs = async {
        wait_until_running(&server, 1).await;
        let client = reqwest::Client::new();
        let busy = client
            .post(format!("{}/flush_cache", server.url))
            .send()
            .await
            .unwrap();
        assert_eq!(busy.status(), 400);
        let patient = get(&server, "/flush_cache?timeout=30");
        let abort = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            ok(&server, "/abort_request", &json!({"rid": "long"})).await
        };
        let ((status, text), _) = tokio::join!(patient, abort);
        assert_eq!(status, 200, "{text}");
    };
    tokio::join!(ok(&server, GENERATE, &long), while_it_runs);
}

#[tokio::test]
async fn a_pause_holds_requests_and_a_continuation_lets_them_go() {
    let server = slow();
    let body = json!({"text": "a", "sampling_params": {"max_new_tokens": 40, "temperature": 0}});
    let (answer, ()) = tokio::join!(ok(&server, GENERATE, &body), async {
        wait_until_running(&server, 1).await;
        ok(&server, "/pause_generation", &json!({"mode": "in_place"})).await;
        let steps = server.state.loaded().unwrap().engine.stats().steps;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.state.loaded().unwrap().engine.stats().steps, steps);
        ok(&server, "/continue_generation", &json!({})).await;
    });
    assert_eq!(answer["meta_info"]["completion_tokens"], 40);
    // Without a word about how, what runs is aborted, as with SGLang.
    let long =
        json!({"text": "a", "sampling_params": {"max_new_tokens": 50_000, "temperature": 0}});
    let (answer, ()) = tokio::join!(ok(&server, GENERATE, &long), async {
        wait_until_running(&server, 1).await;
        let client = reqwest::Client::new();
        let url = format!("{}/pause_generation", server.url);
        assert_eq!(client.post(url).send().await.unwrap().status(), 200);
    });
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    ok(
        &server,
        "/continue_generation",
        &json!({"torch_empty_cache": false}),
    )
    .await;
    for (path, body, field) in [
        ("/pause_generation", json!({"mode": "nap"}), "mode"),
        (
            "/continue_generation",
            json!({"torch_empty_cache": true}),
            "torch_empty_cache",
        ),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!((status, &answer["param"]), (400, &json!(field)), "{answer}");
    }
    server.wait_until_idle().await;
}
