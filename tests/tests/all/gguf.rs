//! Serves a GGUF file without any other file.

use std::process::Stdio;

use serde_json::{Value, json};

use super::harness::{CHAT, Server, hearth};

#[tokio::test]
async fn a_gguf_file_is_served_with_its_tokenizer_and_its_chat_template() {
    let server = Server::gguf("mixed.gguf").await;
    let models: Value = server
        .http
        .get(server.url("/v1/models"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(models["data"][0]["id"], "mixed");
    let prompt = "The hearth is warm.";
    let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let answer = server.ok("/v1/completions", &body).await;
    // As many tokens as the tokenizer's golden has for this text, including BOS.
    assert_eq!(answer["usage"]["prompt_tokens"], 13, "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
    // The template is `{{ bos_token }}{{ messages[0].content }}`.
    let body = json!({
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 4, "temperature": 0, "ignore_eos": true,
    });
    let chat = server.ok(CHAT, &body).await;
    assert_eq!(chat["usage"]["prompt_tokens"], 13, "{chat}");
    assert_eq!(
        chat["choices"][0]["message"]["content"], answer["choices"][0]["text"],
        "{chat}"
    );
    server.wait_until_idle().await;
}

#[test]
fn a_gguf_file_that_is_cut_short_is_refused_with_the_reason() {
    let dir = std::env::temp_dir().join(format!("hearth-cut-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("cut.gguf");
    let whole = super::harness::workspace().join("model/goldens/gguf/mixed.gguf");
    let bytes = std::fs::read(whole).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let output = hearth()
        .args(["serve", "--device", "cpu", "--port", "0", "--model"])
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        message.contains("cut.gguf") && message.contains("end of the file"),
        "{message}"
    );
}
