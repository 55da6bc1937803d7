//! Log-probabilities under a grammar.

use serde_json::json;

use super::{ask, with};
use crate::harness::{CHAT, Server};

#[tokio::test]
async fn logprobs_are_normalised_over_the_tokens_that_the_grammar_allows() {
    let server = Server::embedded(&[]).await;
    let body = with(ask("What is 3 + 4?"), "guided_choice", json!(["yes", "no"]));
    let body = with(body, "logprobs", json!(true));
    let body = with(body, "top_logprobs", json!(5));
    let answer = server.ok(CHAT, &body).await;
    let tokens = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let first: f64 = tokens[0]["top_logprobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|top| top["logprob"].as_f64().unwrap().exp())
        .sum();
    assert!((first - 1.0).abs() < 1e-3, "{answer}");
}

#[tokio::test]
async fn forced_tokens_have_the_same_log_probabilities_with_and_without_jump_forward() {
    let server = Server::embedded(&[]).await;
    let mut seen = Vec::new();
    for jump in [true, false] {
        let body = with(
            ask("What is 3 + 4?"),
            "guided_regex",
            json!("zebra crossing (yes|no)"),
        );
        let body = with(body, "jump_forward", json!(jump));
        let body = with(body, "logprobs", json!(true));
        let answer = server.ok(CHAT, &body).await;
        let tokens = answer["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap();
        let logprobs = tokens.iter().map(|token| {
            let logprob = token["logprob"].as_f64().unwrap();
            (token["token"].to_string(), logprob)
        });
        seen.push(logprobs.collect::<Vec<_>>());
    }
    assert_eq!(seen[0].len(), seen[1].len());
    for (jumped, sampled) in seen[0].iter().zip(&seen[1]) {
        assert_eq!(jumped.0, sampled.0);
        assert!((jumped.1 - sampled.1).abs() < 1e-3, "{seen:?}");
    }
    // The forced text is an unlikely answer to a sum.
    assert!(seen[0][0].1 < -1.0, "{seen:?}");
}
