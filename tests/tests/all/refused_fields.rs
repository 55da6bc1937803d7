//! An invalid value in any field gets status 400 and an error that names the field, and does not
//! affect the server.

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server};

/// Values that are invalid for every count.
const NO_COUNT: [&str; 9] = [
    "-1",
    "-9223372036854775808",
    "9223372036854775808",
    "99999999999999999999999",
    "1e300",
    "1.5",
    "\"1\"",
    "true",
    "[1]",
];
/// Counts that exceed every context length.
const TOO_MANY: [&str; 2] = ["9223372036854775807", "4294967297"];
/// Values that are invalid for every number with bounds.
const NO_NUMBER: [&str; 7] = [
    "1e308",
    "-1e308",
    "99999999999999999999999",
    "\"1\"",
    "true",
    "[1]",
    "{}",
];

/// Sends the smallest request of `path` with `field` set to `raw`, which need not be JSON, and
/// checks that it is refused.
async fn refused(server: &Server, path: &str, field: &str, raw: &str) {
    let own = if path == CHAT { "messages" } else { "prompt" };
    let rest = match (path, field) {
        (_, field) if field == own => String::new(),
        (CHAT, "top_logprobs") => {
            r#", "messages": [{"role": "user", "content": "a"}], "logprobs": true"#.to_owned()
        }
        (CHAT, _) => r#", "messages": [{"role": "user", "content": "a"}]"#.to_owned(),
        _ => r#", "prompt": "a""#.to_owned(),
    };
    let body = format!(r#"{{"{field}": {raw}{rest}}}"#);
    let answer = server.post_raw(path, body.clone()).await;
    let error = &answer.body["error"];
    assert_eq!(answer.status, 400, "{path} {body}: {}", answer.body);
    assert_eq!(error["type"], "invalid_request_error", "{body}: {error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(field),
        "{path} {body}: {message:?} does not name the field"
    );
    // A missing field is only named in the message; `param` names the object that lacks it.
    if raw != "null" {
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(field), "{path} {body}: {error}");
    }
}

async fn all_refused(server: &Server, paths: &[&str], field: &str, values: &[&str]) {
    for path in paths {
        for raw in values {
            refused(server, path, field, raw).await;
        }
    }
}

/// Checks that no refused request reached the engine, and that the server still works.
async fn assert_still_serves(server: &Server) {
    server
        .ok(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 2}))
        .await;
    server.wait_until_idle().await;
    let stats = server.stats().await;
    assert_eq!(
        (&stats["finished"], &stats["failed"]),
        (&json!(1), &json!(0)),
        "a refused request reached the engine: {stats}"
    );
}

#[tokio::test]
async fn invalid_counts_are_refused() {
    let server = Server::start(&[]).await;
    let both = [CHAT, COMPLETIONS];
    for field in ["max_tokens", "min_tokens", "n"] {
        all_refused(&server, &both, field, &NO_COUNT).await;
        all_refused(&server, &both, field, &TOO_MANY).await;
    }
    all_refused(&server, &both, "max_tokens", &["0"]).await;
    all_refused(&server, &both, "n", &["0", "129"]).await;
    all_refused(&server, &[CHAT], "max_completion_tokens", &NO_COUNT).await;
    all_refused(&server, &[CHAT], "max_completion_tokens", &TOO_MANY).await;
    for (path, field) in [(CHAT, "top_logprobs"), (COMPLETIONS, "logprobs")] {
        all_refused(&server, &[path], field, &NO_COUNT).await;
        all_refused(&server, &[path], field, &TOO_MANY).await;
        all_refused(&server, &[path], field, &["21"]).await;
    }
    all_refused(&server, &[COMPLETIONS], "best_of", &NO_COUNT).await;
    all_refused(&server, &[COMPLETIONS], "best_of", &["2", "0"]).await;
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn invalid_sampling_numbers_are_refused() {
    let server = Server::start(&[]).await;
    let both = [CHAT, COMPLETIONS];
    let bounds: [(&str, &[&str]); 7] = [
        ("temperature", &["-0.001", "2.001"]),
        ("top_p", &["0", "-0.1", "1.0001"]),
        ("min_p", &["-0.1", "1.0001"]),
        // The last one is so small that it is zero in f32.
        ("repetition_penalty", &["0", "-1", "1e-60"]),
        ("presence_penalty", &["-2.1", "2.1"]),
        ("frequency_penalty", &["-2.1", "2.1"]),
        ("logit_bias", &["3", "[[1, 2]]"]),
    ];
    for (field, values) in bounds {
        all_refused(&server, &both, field, values).await;
        for raw in NO_NUMBER {
            // This field has no upper bound but that of f32.
            let is_in_bounds = field == "repetition_penalty" && raw.len() > 20;
            if field != "logit_bias" && !is_in_bounds {
                all_refused(&server, &both, field, &[raw]).await;
            }
        }
    }
    let absurd = [
        "-2",
        "4294967296",
        "1e300",
        "1.5",
        "\"1\"",
        "true",
        "9223372036854775808",
    ];
    all_refused(&server, &both, "top_k", &absurd).await;
    let no_seeds = ["1e300", "1.5", "\"1\"", "true", "99999999999999999999999"];
    all_refused(&server, &both, "seed", &no_seeds).await;
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn elements_of_lists_and_maps_are_checked() {
    let server = Server::start(&[]).await;
    let both = [CHAT, COMPLETIONS];
    let biases = [
        r#"{"0": 100.5}"#,
        r#"{"0": -1e308}"#,
        r#"{"0": "1"}"#,
        r#"{"0": null}"#,
        r#"{"256": 1}"#,
        r#"{"-1": 1}"#,
        r#"{"99999999999999999999": 1}"#,
        r#"{"1.5": 1}"#,
        r#"{"a": 1}"#,
        r#"{"": 1}"#,
    ];
    all_refused(&server, &both, "logit_bias", &biases).await;
    let ids = [
        "[-1]",
        "[256]",
        "[4294967296]",
        "[9223372036854775808]",
        "[1.5]",
        "[\"a\"]",
        "[[1]]",
        "1",
    ];
    all_refused(&server, &both, "stop_token_ids", &ids).await;
    let stops = [
        "1",
        "[1]",
        "\"\"",
        "[\"a\", \"\"]",
        "{}",
        "true",
        "[[\"a\"]]",
    ];
    all_refused(&server, &both, "stop", &stops).await;
    let prompts = [
        "null",
        "7",
        "true",
        "{}",
        "[]",
        "[[]]",
        "[-1]",
        "[256]",
        "[4294967296]",
        "[1e300]",
        "[1.5]",
        "[\"a\", 1]",
        "[[1], 2]",
        "[[\"a\"]]",
        "[null]",
        "\"\"",
    ];
    all_refused(&server, &[COMPLETIONS], "prompt", &prompts).await;
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn messages_that_are_empty_or_malformed_are_refused() {
    let server = Server::start(&[]).await;
    let messages = [
        "[]",
        "null",
        "\"hello\"",
        "7",
        "{}",
        "[7]",
        "[[]]",
        "[\"hello\"]",
        r#"[{"role": "user", "content": 7}]"#,
        r#"[{"role": "user"}]"#,
        r#"[{"role": "cat", "content": "a"}]"#,
        r#"[{"role": 7, "content": "a"}]"#,
        r#"[{"role": "user", "content": "a", "colour": 1}]"#,
        r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#,
        r#"[{"role": "user", "content": "a"}, {"role": "user", "content": null}]"#,
    ];
    all_refused(&server, &[CHAT], "messages", &messages).await;
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn flags_and_options_of_a_wrong_type_are_refused() {
    let server = Server::start(&[]).await;
    let both = [CHAT, COMPLETIONS];
    for field in [
        "stream",
        "ignore_eos",
        "skip_special_tokens",
        "include_stop_str_in_output",
    ] {
        all_refused(&server, &both, field, &["1", "\"yes\"", "[]", "{}"]).await;
    }
    let options = [
        "1",
        "true",
        "[]",
        r#"{"include_usage": 1}"#,
        r#"{"colour": true}"#,
    ];
    all_refused(&server, &both, "stream_options", &options).await;
    for field in ["model", "user", "cache_salt"] {
        all_refused(&server, &both, field, &["1", "[]", "{}"]).await;
    }
    all_refused(&server, &both, "tempreature", &["1"]).await;
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn numbers_at_their_bounds_are_accepted() {
    let server = Server::start(&[]).await;
    let fields: [(&str, Value); 17] = [
        ("max_tokens", json!(1)),
        ("min_tokens", json!(0)),
        ("min_tokens", json!(4)),
        ("temperature", json!(0)),
        ("temperature", json!(2)),
        ("top_p", json!(1)),
        ("top_p", json!(1e-6)),
        ("top_k", json!(-1)),
        ("top_k", json!(u32::MAX)),
        ("min_p", json!(1)),
        ("repetition_penalty", json!(1e-3)),
        ("presence_penalty", json!(-2)),
        ("frequency_penalty", json!(2)),
        ("logit_bias", json!({"0": 100, "255": -100})),
        ("stop_token_ids", json!([0, 255])),
        ("seed", json!(i64::MIN)),
        ("n", json!(128)),
    ];
    for (field, value) in fields {
        let mut text = json!({"prompt": "a", "max_tokens": 4});
        text[field] = value.clone();
        server.ok(COMPLETIONS, &text).await;
        let mut chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
        chat[field] = value;
        server.ok(CHAT, &chat).await;
    }
    server.wait_until_idle().await;
}
