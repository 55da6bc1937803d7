//! SGLang's own API: the wire contract of its front-end, its router and its load generator.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer, VOCAB};
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
    // The match of a regular expression stays in the text; `matched` is the expression.
    let body = json!({"stop": "hi", "stop_regex": ["[x-z]", "[f-h]{2}"]});
    let stopped = ok(&server, GENERATE, &front_end("a", body)).await;
    assert_eq!(stopped["text"], "bcdefg");
    assert_eq!(
        stopped["meta_info"]["finish_reason"],
        json!({"type": "stop", "matched": "[f-h]{2}"})
    );
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
        HttpConfig::default(),
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
    // Each event of a batch names the request that it belongs to.
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
    // Scores begin at the last but one token of the prefix. The first has none.
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
    // The tokens before the scored ones are not computed again.
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
    assert!(meta.get("input_token_ids_logprobs").is_none(), "{meta}");
    let mut asked = top.clone();
    asked["token_ids_logprob"] = json!([120, 99]);
    let meta = &ok(&server, GENERATE, &asked).await["meta_info"];
    for (of, lists) in [("input", 3), ("output", 1)] {
        let asked = meta[format!("{of}_token_ids_logprobs")].as_array().unwrap();
        assert_eq!(asked.len(), lists, "{meta}");
        assert_eq!(asked[0].is_null(), of == "input");
    }
    // After "b" comes "c" and hardly ever "x".
    let [x, c] = [0, 1].map(|i| meta["output_token_ids_logprobs"][0][i].clone());
    assert_eq!((&x[1], &c[1]), (&json!(120), &json!(99)));
    assert_eq!(c, meta["output_token_logprobs"][0]);
    assert!(x[0].as_f64().unwrap() < -3.0, "{meta}");
    // Each prompt may have its own token ids.
    let mut each = front_end("", json!({"text": ["a", "b"], "return_logprob": true}));
    each["token_ids_logprob"] = json!([[98], []]);
    let answers = ok(&server, GENERATE, &each).await;
    let first = &answers[0]["meta_info"]["output_token_ids_logprobs"][0];
    assert_eq!(first.as_array().unwrap().len(), 1, "{answers}");
    assert!(
        answers[1]["meta_info"]
            .get("output_token_ids_logprobs")
            .is_none()
    );
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
            sampling("stop_regex", json!(["a+", "a$"])),
            "sampling_params.stop_regex[1]",
            "without ^, $",
        ),
        (
            with("token_ids_logprob", json!([VOCAB])),
            "token_ids_logprob",
            "below the vocabulary size",
        ),
        (
            // Each event of a stream repeats the log-probabilities of the tokens before it.
            json!({
                "text": "a", "stream": true, "return_logprob": true,
                "token_ids_logprob": vec![1; 1000], "sampling_params": {"max_new_tokens": 400},
            }),
            "return_logprob",
            "at most 4194304",
        ),
        (
            with("token_ids_logprob", json!([[1], [2]])),
            "token_ids_logprob",
            "each of 1 prompts",
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
            with("return_routed_experts", json!(true)),
            "return_routed_experts",
            "not supported",
        ),
        (
            with("return_hidden_states", json!(true)),
            "return_hidden_states",
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
    // The answer continues the last message.
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
    // The same holds for the fields of SGLang's load generator.
    let body = json!({
        "text": "w", "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": true},
        "stream": false, "lora_path": "", "return_logprob": false, "logprob_start_len": -1,
        "image_data": null, "priority": 0, "return_routed_experts": false,
        "routed_experts_start_len": 0, "mm_hashes": [], "video_config": {}, "watermark": null,
    });
    assert_eq!(ok(&server, GENERATE, &body).await["text"], "xyzabcd");
}
