//! Embeddings and scores: OpenAI's `/v1/embeddings`, SGLang's `/encode` and `/v1/score`.
//!
//! The fake's hidden state of a token is its id, its position and 1; a text begins with its
//! start token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hearth_api::config::HttpConfig;
use hearth_engine::{EngineConfig, Pooling};
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, START, TestServer, VOCAB};
use super::{ok, post};

const EMBEDDINGS: &str = "/v1/embeddings";
const ENCODE: &str = "/encode";
const SCORE: &str = "/v1/score";

fn unit(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    vector.iter().map(|x| x / length).collect()
}

fn assert_close(given: &Value, expected: &[f64]) {
    let given = given
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap());
    let given: Vec<f64> = given.collect();
    assert_eq!(given.len(), expected.len(), "{given:?} {expected:?}");
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
    assert!(
        given.iter().zip(expected).all(near),
        "{given:?} {expected:?}"
    );
}

fn server(pooling: Pooling) -> TestServer {
    let behaviour = Behaviour {
        pooling,
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default())
}

#[tokio::test]
async fn an_embedding_is_the_last_tokens_state_of_unit_length() {
    let server = server(Pooling::Last);
    for (input, expected) in [
        (json!("abc"), vec![[99.0, 3.0, 1.0]]),
        (json!([97, 98]), vec![[98.0, 1.0, 1.0]]),
        (
            json!(["a", "abz"]),
            vec![[97.0, 1.0, 1.0], [122.0, 3.0, 1.0]],
        ),
        (json!([[5], [7, 6]]), vec![[5.0, 0.0, 1.0], [6.0, 1.0, 1.0]]),
    ] {
        let answer = ok(
            &server,
            EMBEDDINGS,
            &json!({"model": MODEL, "input": input}),
        )
        .await;
        assert_eq!(
            (&answer["object"], &answer["model"]),
            (&json!("list"), &json!(MODEL))
        );
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), expected.len());
        for (index, (item, expected)) in data.iter().zip(&expected).enumerate() {
            assert_eq!(
                (&item["object"], &item["index"]),
                (&json!("embedding"), &json!(index))
            );
            assert_close(&item["embedding"], &unit(expected));
        }
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens"], usage["total_tokens"]);
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn an_embedding_may_be_the_mean_of_all_states() {
    let server = server(Pooling::Mean);
    let answer = ok(&server, EMBEDDINGS, &json!({"input": "abf"})).await;
    let mean = [(f64::from(START) + 97.0 + 98.0 + 102.0) / 4.0, 1.5, 1.0];
    assert_close(&answer["data"][0]["embedding"], &unit(&mean));
    let body = json!({"input": "abf", "add_special_tokens": false});
    let answer = ok(&server, EMBEDDINGS, &body).await;
    let mean = [(97.0 + 98.0 + 102.0) / 3.0, 1.0, 1.0];
    assert_close(&answer["data"][0]["embedding"], &unit(&mean));
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 3, "total_tokens": 3})
    );
}

#[tokio::test]
async fn an_embedding_is_cut_and_encoded_as_asked() {
    let server = server(Pooling::Last);
    let body = json!({"input": "abc", "dimensions": 2, "encoding_format": "base64"});
    let answer = ok(&server, EMBEDDINGS, &body).await;
    let bytes = STANDARD
        .decode(answer["data"][0]["embedding"].as_str().unwrap())
        .unwrap();
    let floats = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    let floats: Value = floats.map(|x| json!(x)).collect();
    assert_close(&floats, &unit(&[99.0, 3.0]));
}

#[tokio::test]
async fn sglangs_encode_answers_one_or_a_list() {
    let server = server(Pooling::Last);
    let one = ok(&server, ENCODE, &json!({"text": "ab", "rid": "mine"})).await;
    assert_close(&one["embedding"], &unit(&[98.0, 2.0, 1.0]));
    assert_eq!(
        (&one["meta_info"]["id"], &one["meta_info"]["prompt_tokens"]),
        (&json!("mine"), &json!(3))
    );
    let list = ok(
        &server,
        ENCODE,
        &json!({"input_ids": [[9, 8], [7]], "dimensions": 1}),
    )
    .await;
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 2);
    assert_close(&list[1]["embedding"], &[1.0]);
    // A prompt that was embedded before is cached, except its last token.
    let again = ok(&server, ENCODE, &json!({"text": ["abcdef"]})).await;
    let again = [
        again,
        ok(&server, ENCODE, &json!({"text": ["abcdef"]})).await,
    ];
    assert_eq!(again[1][0]["meta_info"]["cached_tokens"], 6);
    assert_eq!(again[0][0]["embedding"], again[1][0]["embedding"]);
}

#[tokio::test]
async fn a_score_is_a_labels_probability_after_query_and_item() {
    let server = TestServer::plain();
    // After "b" the fake gives "c" a logit of 10, the poisonous token -30, and all others 0.
    let sum = 10f64.exp() + (-30f64).exp() + (VOCAB - 2) as f64;
    let (likely, other) = (10f64.exp() / sum, 1.0 / sum);
    let (c, x) = (99, 120);
    let body = json!({"query": "a", "items": ["b", "xb"], "label_token_ids": [c, x]});
    let answer = ok(&server, SCORE, &body).await;
    assert_eq!(answer["object"], "scoring");
    for item in 0..2 {
        assert_close(&answer["scores"][item], &[likely, other]);
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 7);
    let body = json!({"query": [98], "items": [[97], [99]], "label_token_ids": [x, c],
        "item_first": true, "apply_softmax": true, "model": MODEL});
    let answer = ok(&server, SCORE, &body).await;
    let both = [other / (likely + other), likely / (likely + other)];
    for item in 0..2 {
        assert_close(&answer["scores"][item], &both);
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn what_cannot_be_embedded_or_scored_is_refused_by_name() {
    let server = TestServer::plain();
    let score = |field: &str, value: Value| {
        let mut body = json!({"query": "a", "items": ["b"], "label_token_ids": [1]});
        body[field] = value;
        body
    };
    for (path, body, param) in [
        (EMBEDDINGS, json!({}), "input"),
        (EMBEDDINGS, json!({"input": []}), "input"),
        (
            EMBEDDINGS,
            json!({"input": "", "add_special_tokens": false}),
            "input",
        ),
        (EMBEDDINGS, json!({"input": [[1], []]}), "input[1]"),
        (EMBEDDINGS, json!({"input": [VOCAB]}), "input"),
        (EMBEDDINGS, json!({"input": "a".repeat(600)}), "input"),
        (EMBEDDINGS, json!({"input": vec![7; 512]}), "input"),
        (EMBEDDINGS, json!({"input": vec!["a"; 2000]}), "input"),
        (
            EMBEDDINGS,
            json!({"input": "a", "dimensions": 0}),
            "dimensions",
        ),
        (
            EMBEDDINGS,
            json!({"input": "a", "dimensions": 4}),
            "dimensions",
        ),
        (
            EMBEDDINGS,
            json!({"input": "a", "encoding_format": "hex"}),
            "encoding_format",
        ),
        (
            EMBEDDINGS,
            json!({"input": "a", "truncate_prompt_tokens": 5}),
            "truncate_prompt_tokens",
        ),
        (ENCODE, json!({"text": "a", "input_ids": [1]}), "input_ids"),
        (ENCODE, json!({"text": "a", "dimensions": -1}), "dimensions"),
        (
            ENCODE,
            json!({"text": "a", "image_data": "x"}),
            "image_data",
        ),
        (
            SCORE,
            score("label_token_ids", json!([])),
            "label_token_ids",
        ),
        (
            SCORE,
            score("label_token_ids", json!([VOCAB])),
            "label_token_ids",
        ),
        (
            SCORE,
            score("label_token_ids", json!(vec![1; 2000])),
            "label_token_ids",
        ),
        (SCORE, score("query", json!(["a", "b"])), "query"),
        (SCORE, score("items", json!([[1]])), "items"),
        (SCORE, score("items", json!([])), "items"),
        (SCORE, score("items", json!(["b".repeat(510)])), "items"),
        (SCORE, score("items", json!(vec!["b"; 5000])), "items"),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(status, 400, "{path} {shown}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{path} {shown}: {answer}");
    }
    server.wait_until_idle().await;
}
