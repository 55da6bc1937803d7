//! Requests that are invalid as a whole: invalid JSON or UTF-8, unknown models, long prompts.

use serde_json::{Value, json};

use super::harness::{Answer, CHAT, COMPLETIONS, MODEL, Server};

fn assert_refused(answer: &Answer, status: u16, code: Value, words: &[&str]) {
    let error = &answer.body["error"];
    assert_eq!((answer.status, &error["code"]), (status, &code), "{error}");
    let message = error["message"].as_str().unwrap();
    for word in words {
        assert!(message.contains(word), "{message:?} lacks {word:?}");
    }
}

async fn assert_still_serves(server: &Server) {
    server
        .ok(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 2}))
        .await;
    server.wait_until_idle().await;
}

#[tokio::test]
async fn malformed_json_is_refused_with_its_position() {
    let server = Server::start(&[]).await;
    for path in [CHAT, COMPLETIONS] {
        for body in [
            "",
            " ",
            "{",
            "{\"model\": \"a\"",
            "{\"model\": \"a\",}",
            "{'prompt': 'a'}",
            "{\"max_tokens\": NaN}",
            "{\"temperature\": 1e999}",
            "{\"temperature\": -Infinity}",
            "{\"max_tokens\": 0x10}",
            "{\"max_tokens\": 01}",
            "{\"model\": \"line\nbreak\"}",
            "{\"model\": \"\\ud800\"}",
            "{\"model\": \"\\x41\"}",
            "prompt=a",
            "\u{feff}{}",
        ] {
            let answer = server.post_raw(path, body).await;
            assert_refused(&answer, 400, json!("invalid_json"), &["JSON", "line"]);
        }
        let deep = "[".repeat(200_000);
        for body in [
            deep.clone(),
            format!("{{\"metadata\": {deep}"),
            "{\"a\":".repeat(200_000),
            "{\"prompt\": \"a\"} {}".to_owned(),
        ] {
            assert_eq!(server.post_raw(path, body).await.status, 400);
        }
        for body in ["null", "7", "[]", "\"a\"", "true"] {
            let answer = server.post_raw(path, body).await;
            assert_refused(&answer, 400, Value::Null, &["expected an object"]);
        }
        let twice = r#"{"max_tokens": 1, "max_tokens": 2, "prompt": "a", "messages": []}"#;
        assert_refused(
            &server.post_raw(path, twice).await,
            400,
            Value::Null,
            &["max_tokens"],
        );
    }
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn invalid_utf8_is_refused_with_its_position() {
    let server = Server::start(&[]).await;
    for path in [CHAT, COMPLETIONS] {
        for bytes in [
            &b"{\"\xff"[..],
            b"{\"\xc3\x28\"",
            b"{\"\xed\xa0\x80\"",
            b"{\"\xf4\x90\x80\x80",
            b"{\"\xc0\x80",
        ] {
            let answer = server.post_raw(path, bytes.to_vec()).await;
            assert_refused(&answer, 400, json!("invalid_utf8"), &["UTF-8", "byte 2"]);
        }
    }
    let path = server
        .http
        .get(server.url("/v1/models/%ff%fe"))
        .send()
        .await
        .unwrap();
    assert!(path.status().is_client_error(), "{path:?}");
    // All of Unicode is valid, including NUL.
    let body = json!({"prompt": "\u{0}\u{7f}\u{10ffff}é👩‍👩‍👧", "max_tokens": 2, "echo": true});
    let answer = server.ok(COMPLETIONS, &body).await;
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("\u{0}\u{7f}\u{10ffff}é👩‍👩‍👧"), "{text:?}");
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn an_unknown_model_or_route_is_404_and_another_method_405() {
    let server = Server::start(&[]).await;
    for model in ["gpt-4", "", "llama-llama3-tied ", "../../etc/passwd"] {
        for path in [CHAT, COMPLETIONS] {
            let messages = json!([{"role": "user", "content": "a"}]);
            let mut body = json!({"model": model});
            body[if path == CHAT { "messages" } else { "prompt" }] =
                if path == CHAT { messages } else { json!("a") };
            let answer = server.post(path, &body).await;
            assert_refused(&answer, 404, json!("model_not_found"), &["`model`", MODEL]);
        }
    }
    let answer = server.post("/v1/nothing", &json!({})).await;
    assert_refused(&answer, 404, json!("not_found"), &["/v1/nothing"]);
    let got = server.http.get(server.url(CHAT)).send().await.unwrap();
    assert_eq!(got.status(), 405);
    let request = server
        .http
        .post(server.url(CHAT))
        .header("content-type", "text/plain");
    assert_eq!(request.body("{}").send().await.unwrap().status(), 415);
    assert_still_serves(&server).await;
}

#[tokio::test]
async fn prompts_over_the_context_are_refused_with_their_length_and_the_limit() {
    let server = Server::start(&["--max-model-len", "256"]).await;
    let code = json!("context_length_exceeded");
    for length in [256, 257, 10_000, 300_000] {
        let given = format!("{length} tokens");
        let ids = json!({"prompt": vec![7; length], "max_tokens": 1});
        let answer = server.post(COMPLETIONS, &ids).await;
        assert_refused(
            &answer,
            400,
            code.clone(),
            &["`prompt`", &given, "255", "256"],
        );
    }
    for length in [256, 10_000, 3_000_000] {
        let text = "a".repeat(length);
        let answer = server.post(COMPLETIONS, &json!({"prompt": text})).await;
        assert_refused(&answer, 400, code.clone(), &["`prompt`", "256"]);
        let chat = json!({"messages": [{"role": "user", "content": text}]});
        assert_refused(
            &server.post(CHAT, &chat).await,
            400,
            code.clone(),
            &["`messages`", "256"],
        );
    }
    let many = json!({"messages": vec![json!({"role": "user", "content": ""}); 300]});
    let answer = server.post(CHAT, &many).await;
    assert_refused(
        &answer,
        400,
        code.clone(),
        &["`messages`", "256", "300 messages"],
    );
    let sum = json!({"prompt": vec![7; 200], "max_tokens": 57});
    let answer = server.post(COMPLETIONS, &sum).await;
    assert_refused(&answer, 400, code, &["`max_tokens`", "at most 56", "57"]);
    // Requests that fill the context exactly are served.
    for (prompt, tokens) in [(255, 1), (200, 56), (1, 255)] {
        let body = json!({"prompt": vec![7; prompt], "max_tokens": tokens, "ignore_eos": true});
        let answer = server.ok(COMPLETIONS, &body).await;
        assert_eq!(answer["usage"]["completion_tokens"], tokens);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    assert_still_serves(&server).await;
}
