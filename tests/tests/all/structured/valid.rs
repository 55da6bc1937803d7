//! Answers follow their schema, whatever the model's logits are.

use serde_json::{Value, json};

use super::{ask, schemas, strict, with};
use crate::harness::{CHAT, COMPLETIONS, Server, enlarged};

/// Generates `per_schema` answers for each schema, and checks that all complete ones are valid.
/// Returns the number of complete answers and of those that `max_tokens` cut off.
async fn all_valid(server: &Server, path: &str, body: &Value, per_schema: usize) -> (usize, usize) {
    let (mut whole, mut cut) = (0, 0);
    for schema in schemas() {
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let body = with(body.clone(), "response_format", strict(&schema));
        let mut left = per_schema;
        while left > 0 {
            let n = left.min(32);
            left -= n;
            let body = with(with(body.clone(), "n", json!(n)), "seed", json!(left));
            let answer = server.ok(path, &body).await;
            for choice in answer["choices"].as_array().unwrap() {
                let text = choice["message"]["content"].as_str();
                let text = text.or(choice["text"].as_str()).unwrap();
                if choice["finish_reason"] == "length" {
                    cut += 1;
                    continue;
                }
                assert_eq!(choice["finish_reason"], "stop");
                let value: Value = serde_json::from_str(text)
                    .unwrap_or_else(|error| panic!("{schema}: {text:?}: {error}"));
                assert!(validator.is_valid(&value), "{schema}: {text}");
                whole += 1;
            }
            let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
            assert!(tokens <= 200 * n as u64);
        }
    }
    (whole, cut)
}

#[tokio::test]
async fn complete_answers_are_valid_for_their_schema() {
    // HEARTH_GENERATIONS sets the number of answers per model for recorded results.
    let per_schema = |usual| enlarged("HEARTH_GENERATIONS", usual).div_ceil(schemas().len());
    let server = Server::embedded(&[]).await;
    let body = with(ask("Tell me a story."), "temperature", json!(1));
    let (whole, cut) = all_valid(&server, CHAT, &body, per_schema(256)).await;
    println!("the embedded model: {whole} whole and valid, {cut} cut by max_tokens");
    assert!(whole > 10 * cut, "{whole} {cut}");
    server.wait_until_idle().await;
    drop(server);
    // Random weights over bytes: only the grammar makes the answers valid.
    let server = Server::start(&[]).await;
    let body = json!({"prompt": "a", "max_tokens": 200, "temperature": 1});
    let (whole, cut) = all_valid(&server, COMPLETIONS, &body, per_schema(512)).await;
    println!("random weights: {whole} whole and valid, {cut} cut by max_tokens");
    assert!(whole > 10 * cut, "{whole} {cut}");
    server.wait_until_idle().await;
}
