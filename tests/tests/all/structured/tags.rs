//! Free text with parts that follow a schema.

use regex::Regex;
use serde_json::{Value, json};

use super::{ask, content, reason, with};
use crate::harness::{CHAT, COMPLETIONS, Server};

/// Tests free text in which every begin of a tag must be followed by a complete tag.
#[tokio::test]
async fn text_is_free_until_a_trigger_and_follows_the_schema_after_it() {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 99});
    // The trigger is a single letter, so that random text contains it often.
    let older = json!({
        "triggers": ["e"],
        "structures": [{"begin": "e=", "schema": number, "end": ";"}],
    });
    let newer = json!({"format": {"type": "triggered_tags", "triggers": ["e"], "tags": [
        {"begin": "e=", "content": {"type": "json_schema", "json_schema": number}, "end": ";"}]}});
    let whole = Regex::new(r"^(?:[^e]|e=[0-9]{1,2};)*$").unwrap();
    let server = Server::embedded(&[]).await;
    let of = |tag: &Value| with(tag.clone(), "type", json!("structural_tag"));
    let (mut free, mut tagged) = (0, 0);
    let mut check = |text: &str, reason: &str| {
        let text = match reason {
            "length" => text.rsplit_once('e').map_or(text, |(before, _)| before),
            _ => text,
        };
        assert!(whole.is_match(text), "{reason}: {text:?}");
        free += usize::from(!text.is_empty() && !text.starts_with('e'));
        tagged += text.matches(';').count().min(text.matches("e=").count());
    };
    for (path, field, value) in [
        (CHAT, "response_format", of(&older)),
        (CHAT, "response_format", of(&newer)),
        (
            CHAT,
            "structured_outputs",
            json!({"structural_tag": older.to_string()}),
        ),
        ("/generate", "", newer),
    ] {
        for seed in 0..8 {
            if path == CHAT {
                let body = with(ask("Tell me a story."), field, value.clone());
                let body = with(with(body, "seed", json!(seed)), "temperature", json!(1));
                let answer = server.ok(CHAT, &with(body, "max_tokens", json!(40))).await;
                check(&content(&answer), reason(&answer));
            } else {
                let params = json!({"structural_tag": value.to_string(), "max_new_tokens": 40,
                    "sampling_seed": seed});
                let body = json!({"text": "Tell me", "sampling_params": params});
                let answer = server.ok(path, &body).await;
                let kind = answer["meta_info"]["finish_reason"]["type"]
                    .as_str()
                    .unwrap();
                check(answer["text"].as_str().unwrap(), kind);
            }
        }
    }
    server.wait_until_idle().await;
    drop(server);
    // Random weights over bytes begin tags by chance.
    let server = Server::start(&[]).await;
    let body = json!({"prompt": "a", "max_tokens": 200, "temperature": 1, "n": 32});
    let answer = server
        .ok(COMPLETIONS, &with(body, "response_format", of(&older)))
        .await;
    for choice in answer["choices"].as_array().unwrap() {
        let reason = choice["finish_reason"].as_str().unwrap();
        check(choice["text"].as_str().unwrap(), reason);
    }
    println!("{free} texts began free, {tagged} tags");
    assert!(free > 10 && tagged > 10, "{free} {tagged}");
}
