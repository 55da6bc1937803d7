//! llama-server's own routes.

use hearth_client::sse_data;
use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::{ok, post};

const COMPLETION: &str = "/completion";

fn body(extra: Value) -> Value {
    let mut body = json!({"prompt": "w", "temperature": 0});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

async fn completed(server: &TestServer, extra: Value) -> Value {
    ok(server, COMPLETION, &body(extra)).await
}

/// The events of a stream, which has no end mark.
async fn events(server: &TestServer, extra: Value) -> Vec<Value> {
    let mut body = body(extra);
    body["stream"] = true.into();
    let request = reqwest::Client::new().post(format!("{}{COMPLETION}", server.url));
    let response = request.json(&body).send().await.unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let events = sse_data(&response.bytes().await.unwrap());
    let events = events.iter();
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

#[tokio::test]
async fn an_answer_has_the_fields_that_clients_of_llama_server_read() {
    let server = TestServer::plain();
    for path in [COMPLETION, "/completions"] {
        let answer = ok(&server, path, &body(json!({}))).await;
        let told = |key: &str| answer[key].clone();
        assert_eq!(told("content"), "xyz");
        assert_eq!(
            (told("stop"), told("stop_type")),
            (json!(true), json!("eos"))
        );
        assert_eq!((told("index"), told("model")), (json!(0), json!(MODEL)));
        // "w" and the token that begins a document; the token at the end is counted too.
        assert_eq!(told("tokens_evaluated"), 2);
        assert_eq!(told("tokens_predicted"), 4);
        assert_eq!(told("prompt"), "<start>w");
        assert_eq!(
            (told("stopping_word"), told("truncated")),
            (json!(""), json!(false))
        );
        assert_eq!(told("tokens"), json!([]));
        assert_eq!(answer["generation_settings"]["temperature"], 0.0);
        assert_eq!(answer["generation_settings"]["n_predict"], 510);
        let timings = &answer["timings"];
        assert_eq!(timings["predicted_n"], 4);
        let parts = timings["cache_n"].as_u64().unwrap() + timings["prompt_n"].as_u64().unwrap();
        assert_eq!(parts, 2);
        assert!(timings["predicted_per_second"].as_f64().unwrap() > 0.0);
    }
}

#[tokio::test]
async fn a_stream_has_pieces_and_tells_everything_at_its_end() {
    let server = TestServer::plain();
    let events = events(&server, json!({"timings_per_token": true})).await;
    let (last, pieces) = events.split_last().unwrap();
    let text = |piece: &Value| piece["content"].as_str().unwrap().to_owned();
    assert_eq!(pieces.iter().map(text).collect::<String>(), "xyz");
    let ids: Vec<&Value> = pieces
        .iter()
        .flat_map(|p| p["tokens"].as_array().unwrap())
        .collect();
    assert_eq!(ids, [0x78, 0x79, 0x7A]);
    for piece in pieces {
        assert_eq!(piece["stop"], false);
        assert!(piece["timings"]["prompt_n"].is_u64(), "{piece}");
    }
    assert_eq!(
        (&last["content"], &last["stop"]),
        (&json!(""), &json!(true))
    );
    assert_eq!(
        (&last["stop_type"], &last["tokens_predicted"]),
        (&json!("eos"), &json!(4))
    );
    assert!(last["generation_settings"].is_object());
}

#[tokio::test]
async fn prompts_are_texts_tokens_mixtures_or_lists_of_these() {
    let server = TestServer::plain();
    let contents = async |prompt: Value| {
        let answer = completed(&server, json!({"prompt": prompt})).await;
        match answer {
            Value::Array(list) => list.iter().map(|one| one["content"].clone()).collect(),
            one => one["content"].clone(),
        }
    };
    assert_eq!(contents(json!([0x76, 0x77])).await, "xyz");
    assert_eq!(contents(json!(["a", 0x77])).await, "xyz");
    assert_eq!(contents(json!({"prompt_string": "x"})).await, "yz");
    assert_eq!(contents(json!(["w", "x"])).await, json!(["xyz", "yz"]));
    let mixed = json!([[0x61, "x"], "y"]);
    assert_eq!(contents(mixed).await, json!(["yz", "z"]));
    let copies = completed(&server, json!({"prompt": ["w", "x"], "n_cmpl": 2})).await;
    let indexes: Vec<&Value> = copies
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["index"])
        .collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
}

#[tokio::test]
async fn outputs_end_at_words_and_limits_and_follow_their_settings() {
    let server = TestServer::plain();
    let answer = completed(&server, json!({"stop": ["y"]})).await;
    assert_eq!(
        (&answer["content"], &answer["stop_type"]),
        (&json!("x"), &json!("word"))
    );
    assert_eq!(answer["stopping_word"], "y");
    let answer = completed(&server, json!({"n_predict": 2, "return_tokens": true})).await;
    assert_eq!(
        (&answer["content"], &answer["stop_type"]),
        (&json!("xy"), &json!("limit"))
    );
    assert_eq!(answer["tokens"], json!([0x78, 0x79]));
    let answer = completed(&server, json!({"n_predict": 0})).await;
    assert_eq!(
        (&answer["content"], &answer["tokens_predicted"]),
        (&json!(""), &json!(0))
    );
    // More than the context has room for.
    let answer = completed(&server, json!({"n_predict": 100_000})).await;
    assert_eq!(answer["content"], "xyz");
    for bias in [
        json!([[0x71, 90.0]]),
        json!([["q", 90]]),
        json!({"q": 90}),
        json!({"113": 90}),
    ] {
        let answer = completed(&server, json!({"logit_bias": bias, "n_predict": 1})).await;
        assert_eq!(answer["content"], "q", "{bias}");
    }
    let never = json!({"logit_bias": [["x", false]], "n_predict": 1});
    assert_ne!(completed(&server, never).await["content"], "x");
    let grammar = json!({"grammar": "root ::= \"q\" \"r\"", "json_schema": null});
    assert_eq!(completed(&server, grammar).await["content"], "qr");
    let schema = json!({"json_schema": {"const": 7}, "grammar": ""});
    assert_eq!(completed(&server, schema).await["content"], "7");
}

#[tokio::test]
async fn probabilities_and_wanted_fields_are_as_in_llama_server() {
    let server = TestServer::plain();
    let asked = json!({"n_probs": 2, "n_predict": 1});
    let answer = completed(&server, asked.clone()).await;
    let told = &answer["completion_probabilities"][0];
    assert_eq!((&told["id"], &told["token"]), (&json!(0x78), &json!("x")));
    assert_eq!(told["bytes"], json!([0x78]));
    assert!(told["logprob"].as_f64().unwrap() <= 0.0);
    assert_eq!(told["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(told["top_logprobs"][0]["id"], 0x78);
    let events = events(&server, asked).await;
    assert_eq!(&events[0]["completion_probabilities"][0]["id"], 0x78);
    let fields = json!({"response_fields": ["content", "generation_settings/top_k", "nothing"]});
    let answer = completed(&server, fields).await;
    let wanted = json!({"content": "xyz", "generation_settings/top_k": 0});
    assert_eq!(answer, wanted);
}

#[tokio::test]
async fn a_prompt_is_cached_unless_the_request_says_otherwise() {
    let server = TestServer::plain();
    let cached = async |cache: Value| {
        let asked = json!({"prompt": "abcdefgh", "n_predict": 1, "cache_prompt": cache});
        let answer = completed(&server, asked).await;
        server.wait_until_idle().await;
        answer["tokens_cached"].as_u64().unwrap()
    };
    assert_eq!(cached(json!(false)).await, 0);
    assert_eq!(cached(json!(false)).await, 0);
    // Nothing was left by the two.
    assert_eq!(cached(Value::Null).await, 0);
    assert!(cached(json!(true)).await > 0);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name_and_neutral_values_pass() {
    let server = TestServer::plain();
    for (extra, field) in [
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"typical_p": 0.5}), "typical_p"),
        (json!({"dry_multiplier": 0.8}), "dry_multiplier"),
        (json!({"xtc_probability": 0.1}), "xtc_probability"),
        (json!({"dynatemp_range": 0.5}), "dynatemp_range"),
        (json!({"samplers": ["top_k"]}), "samplers"),
        (json!({"n_indent": 2}), "n_indent"),
        (json!({"t_max_predict_ms": 10}), "t_max_predict_ms"),
        (json!({"post_sampling_probs": true}), "post_sampling_probs"),
        (json!({"return_progress": true}), "return_progress"),
        (json!({"image_data": [{}]}), "image_data"),
        (
            json!({"repeat_penalty": 1.1, "repeat_last_n": 64}),
            "repeat_last_n",
        ),
        (json!({"repeat_penalty": -1}), "repeat_penalty"),
        (json!({"n_probs": 100}), "n_probs"),
        (json!({"n_predict": -2}), "n_predict"),
        (json!({"n_cmpl": 0}), "n_cmpl"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"logit_bias": [[97, 101]]}), "logit_bias"),
        (json!({"logit_bias": [[1_000_000, 1]]}), "logit_bias"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [1_000_000]}), "prompt"),
        (json!({"model": "another"}), "model"),
        (json!({"stop": 1}), "stop"),
        (json!({"nonsense": 1}), "nonsense"),
    ] {
        let (status, answer) = post(&server, COMPLETION, &body(extra.clone())).await;
        assert!((400..405).contains(&status), "{extra}: {answer}");
        assert_eq!(answer["error"]["param"], field, "{extra}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(field), "{extra}: {message}");
    }
    // The token that begins a document is a prompt.
    let empty = completed(&server, json!({"prompt": ""})).await;
    assert_eq!(empty["tokens_evaluated"], 1);
    let neutral = json!({
        "n_keep": 0, "id_slot": 3, "repeat_last_n": 64, "repeat_penalty": 1.0, "typical_p": 1, "tfs_z": 1.0,
        "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "dynatemp_range": 0, "dynatemp_exponent": 1,
        "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n"], "xtc_probability": 0, "xtc_threshold": 0.1, "min_keep": 0, "top_k": -1,
        "n_indent": 0, "t_max_predict_ms": 0, "image_data": [], "seed": -1, "penalize_nl": false, "top_n_sigma": -1.0,
    });
    assert_eq!(completed(&server, neutral).await["content"], "xyz");
}

#[tokio::test]
async fn tokens_have_llama_servers_form_where_the_text_is_its_content() {
    let server = TestServer::plain();
    let answer = ok(&server, "/tokenize", &json!({"content": "ab"})).await;
    assert_eq!(answer, json!({"tokens": [97, 98]}));
    let asked = json!({"content": "a€", "add_special": true, "with_pieces": true});
    let answer = ok(&server, "/tokenize", &asked).await;
    let pieces: Vec<&Value> = answer["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["piece"])
        .collect();
    let bytes = [json!([0xE2]), json!([0x82]), json!([0xAC])];
    assert_eq!(pieces[..2], [&json!("<start>"), &json!("a")]);
    assert_eq!(pieces[2..], bytes.iter().collect::<Vec<_>>());
    for (asked, field) in [
        (json!({"content": "a", "prompt": "b"}), "prompt"),
        (
            json!({"content": "a", "return_token_strs": true}),
            "return_token_strs",
        ),
        (json!({"prompt": "b", "with_pieces": true}), "with_pieces"),
    ] {
        let (status, answer) = post(&server, "/tokenize", &asked).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(field)),
            "{answer}"
        );
    }
    let answer = ok(&server, "/detokenize", &json!({"tokens": [257, 97]})).await;
    assert_eq!(
        (&answer["content"], &answer["text"]),
        (&json!("<start>a"), &json!("a"))
    );
}
