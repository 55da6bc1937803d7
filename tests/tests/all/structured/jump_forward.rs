//! Jump forward: text that a grammar forces is appended, which gives the same text in fewer steps.

use hearth_client::Events;
use serde_json::{Value, json};

use super::{ask, character, content, reason, strict, tool_call, with};
use crate::harness::{CHAT, Server, enlarged};

/// Questions; `HEARTH_PROMPTS` sets their number for recorded results.
fn questions() -> Vec<String> {
    (0..enlarged("HEARTH_PROMPTS", 50))
        .map(|i| match i % 5 {
            0 => format!("What is {} + {}?", i, i / 2 + 1),
            1 => format!("Tell me a story about {i} owls."),
            2 => format!("Who are you, number {i}?"),
            3 => format!("What is the colour of {i} roses?"),
            _ => format!("Turn the light to {i} percent."),
        })
        .collect()
}

#[tokio::test]
async fn jumping_forward_changes_no_greedy_text_and_saves_steps() {
    let server = Server::embedded(&["--dtype", "f32"]).await;
    let questions = questions();
    // Within forced text, the masks allow the tokenizer's own splits, with and without jumping.
    let words = r"(The|A) (quick|quiet) (brown|broad) (fox|forest) (jumps|jumped) (over|under)\.";
    let grammars = [
        ("response_format", strict(&character()), Some("natural"), 95),
        ("response_format", strict(&character()), Some("compact"), 95),
        ("response_format", strict(&tool_call()), Some("natural"), 95),
        ("response_format", strict(&tool_call()), Some("compact"), 95),
        ("regex", json!(words), None, 95),
    ];
    for (field, grammar, layout, percent) in grammars {
        let (mut same, mut all) = (0, 0);
        for question in &questions {
            let mut texts = Vec::new();
            for jump in [false, true] {
                let body = with(ask(question), field, grammar.clone());
                let body = with(body, "jump_forward", json!(jump));
                let body = with(body, "json_whitespace", json!(layout));
                let body = with(body, "temperature", json!(0));
                let answer = server.ok(CHAT, &body).await;
                assert_eq!(reason(&answer), "stop", "{answer}");
                texts.push(content(&answer));
            }
            all += 1;
            same += usize::from(texts[0] == texts[1]);
            if texts[0] != texts[1] {
                println!("{question} {texts:?}");
            }
        }
        println!("{field}, {layout:?}: {same} of {all} the same");
        assert!(same * 100 >= all * percent, "{same} of {all}");
    }
    // Forward passes saved: a tool call in compact form.
    let before = server.stats().await;
    for question in &questions {
        let body = with(ask(question), "response_format", strict(&tool_call()));
        let body = with(body, "json_whitespace", json!("compact"));
        server.ok(CHAT, &body).await;
    }
    server.wait_until_idle().await;
    let after = server.stats().await;
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    let (forced, sampled) = (grown("forced_tokens"), grown("generated_tokens"));
    println!("tool calls: {forced} tokens forced, {sampled} sampled");
    assert!(
        forced * 100 >= (forced + sampled) * 40,
        "{forced} of {}",
        forced + sampled
    );
    // The costs and savings are on `/metrics`, too.
    let page = server.http.get(server.url("/metrics")).send().await;
    let page = page.unwrap().text().await.unwrap();
    let total = |name: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    };
    let forced = after["forced_tokens"].as_f64().unwrap();
    assert!(
        total("llm_grammar_forced_tokens_total{") >= forced,
        "{page}"
    );
    assert!(total("llm_grammar_forced_bytes_total{") > forced);
    for name in ["cache_hits", "cache_misses", "compilations", "masks"] {
        assert!(
            total(&format!("llm_grammar_{name}_total{{")) > 1.0,
            "{name}"
        );
    }
    for name in ["compile_time", "mask_time"] {
        let seconds = total(&format!("llm_grammar_{name}_seconds_total{{"));
        assert!(seconds > 0.0, "{name}");
    }
}

#[tokio::test]
async fn forced_text_streams_as_one_delta_and_is_in_the_usage() {
    let server = Server::embedded(&[]).await;
    let body = with(ask("Who are you?"), "response_format", strict(&character()));
    let whole = server.ok(CHAT, &body).await;
    let body = with(body, "stream", json!(true));
    let body = with(body, "stream_options", json!({"include_usage": true}));
    let mut events = server.client.stream(CHAT, &body).await.unwrap();
    let (mut pieces, mut usage) = (Vec::new(), Value::Null);
    while let Some(event) = events.next().await.unwrap() {
        pieces.push(Events::text_of(&event).to_owned());
        if !event["usage"].is_null() {
            usage = event["usage"].clone();
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    assert_eq!(pieces.concat(), content(&whole));
    assert_eq!(
        usage["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
    let tokens = usage["completion_tokens"].as_u64().unwrap() as usize;
    assert!(
        pieces.len() < tokens,
        "{tokens} tokens in {} deltas",
        pieces.len()
    );
    assert!(pieces[0].starts_with("{\"n"), "{pieces:?}");
}
