//! Grammars that cost much: their clients pay, and nobody else.

use std::time::{Duration, Instant};

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{COMPLETIONS, ok, post};

fn following(pattern: &str) -> Value {
    json!({"model": MODEL, "prompt": "a", "max_tokens": 4, "regex": pattern})
}

#[tokio::test]
async fn heavy_grammars_hold_up_no_light_one_and_end_with_their_client() {
    let server = TestServer::plain();
    // Each takes some tenths of a second.
    let heavy = (0..24).map(|i| following(&format!("((a|b){{0,250}}c{{0,{i}}}){{0,300}}x")));
    let client = reqwest::Client::new();
    let leaving: Vec<_> = heavy
        .map(|body| {
            let request = client
                .post(format!("{}{COMPLETIONS}", server.url))
                .json(&body);
            tokio::spawn(request.send())
        })
        .collect();
    let stats = server.state.loaded().unwrap().grammars.stats();
    let began = Instant::now();
    while stats().cache_misses < 24 {
        assert!(began.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // All come from one address, so their shares are equal.
    ok(&server, COMPLETIONS, &following("[a-z]{1,9}")).await;
    let before = stats().compilations;
    assert!(before < 20, "{before} of 25 grammars were compiled first");
    leaving.iter().for_each(tokio::task::JoinHandle::abort);
    let mut compiled = before;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        match std::mem::replace(&mut compiled, stats().compilations) {
            same if same == compiled => break,
            _ => assert!(began.elapsed() < Duration::from_secs(60)),
        }
    }
    assert!(compiled < 22, "{compiled} of 25 grammars were compiled");
}

#[tokio::test]
async fn an_output_at_which_the_grammar_runs_out_of_its_budget_is_a_400_that_names_the_limit() {
    let behaviour = Behaviour {
        max_model_len: 4096,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    // Each letter doubles the ways to read the text.
    let body = json!({"prompt": "x", "max_tokens": 3000, "temperature": 0,
                      "guided_grammar": "start: s\ns: s s | \"a\""});
    let (status, answer) = post(&server, COMPLETIONS, &body).await;
    let error = &answer["error"];
    assert_eq!(
        (status, &error["code"]),
        (400, &json!("grammar_too_complex")),
        "{answer}"
    );
    let message = error["message"].as_str().unwrap();
    // The items of a parse are bounded, and so is the time, which a slow machine needs first.
    let limits = ["max is 2000", "longer than 1000 ms", "longer than 5000 ms"];
    assert!(
        limits.iter().any(|limit| message.contains(limit)),
        "{message}"
    );
    server.wait_until_idle().await;
    let next = json!({"prompt": "w", "max_tokens": 3, "temperature": 0});
    assert_eq!(
        ok(&server, COMPLETIONS, &next).await["choices"][0]["text"],
        "xyz"
    );
}
