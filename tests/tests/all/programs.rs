//! Programs of the front-end language on the real binary.

use hearth_client::backends::{ChatApi, CompletionsApi, Server as Backend};
use hearth_client::lang::{Frontend, Meta, State, generate, trace};
use serde_json::json;

use super::examples;
use super::harness::{MODEL, Server};
use super::random_programs::{Size, naive, program, run};

const SIZE: Size = Size {
    statements: 8,
    max_tokens: 8,
    states: 5,
};

#[tokio::test]
async fn a_random_program_gives_what_a_naive_interpreter_gives_without_a_cache() {
    let (server, plain) = (
        Server::start(&[]).await,
        Server::start(&["--no-prefix-cache"]).await,
    );
    let naive_backend = Backend::new(plain.client.clone());
    let backend = Backend::new(server.client.clone());
    for seed in 0..8 {
        let graph = program(seed, SIZE);
        let expected = naive(&naive_backend, &graph).await.unwrap();
        let given = run(&Frontend::new(backend.clone()), &graph).await.unwrap();
        assert_eq!(given, expected, "{seed}: {}", graph.dot());
        let answer = server.ok("/v1/programs", &json!(graph)).await;
        for (state, text) in expected.0.iter().enumerate() {
            assert_eq!(answer["states"][state]["text"], *text, "{seed}: {answer}");
        }
    }
    server.wait_until_idle().await;
    plain.wait_until_idle().await;
}

/// The outputs of three samples with their log-probabilities, and the text that the state has.
async fn three_samples(state: &mut State, roles: bool) -> (Vec<String>, Meta, String) {
    let three = generate("x")
        .n(3)
        .logprobs(2)
        .max_tokens(6)
        .temperature(1.0);
    let three = three.seed(5);
    match roles {
        true => state.user("Name a colour.").assistant(three),
        false => state.extend("Name a colour: ").extend(three),
    };
    let texts = state.var("x").texts().await.unwrap();
    let texts: Vec<String> = texts.into_iter().map(Result::unwrap).collect();
    (
        texts,
        state.meta("x").await.unwrap(),
        state.text().await.unwrap(),
    )
}

#[tokio::test]
async fn several_outputs_and_their_log_probabilities_are_the_same_on_every_back_end() {
    let server = Server::start(&[]).await;
    let client = &server.client;
    let own = Frontend::new(Backend::new(client.clone()));
    let (texts, meta, text) = three_samples(&mut own.state(), false).await;
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(text, format!("Name a colour: {}", texts[0]));
    assert_eq!(meta.usage.completion_tokens, 18);
    for (text, output) in texts.iter().zip(&meta.outputs) {
        let tokens: String = output.logprobs.iter().map(|t| t.token.as_str()).collect();
        assert_eq!(output.logprobs.len(), 6, "{meta:?}");
        // A token that is a part of a character has no text of its own.
        assert!(
            tokens == *text || tokens.contains("bytes:"),
            "{tokens} {text}"
        );
        assert!(
            output
                .logprobs
                .iter()
                .all(|t| t.logprob < 0.0 && t.top.len() == 2)
        );
    }

    let completions = Frontend::new(CompletionsApi::new(client.clone(), MODEL));
    let given = three_samples(&mut completions.state(), false).await;
    assert_eq!((&given.0, &given.2), (&texts, &text));
    assert_eq!(given.1.outputs.len(), 3);
    let logprobs = |meta: &Meta| -> Vec<f64> {
        let tokens = meta.outputs.iter().flat_map(|output| &output.logprobs);
        tokens.map(|token| token.logprob).collect()
    };
    let same = |one: &Meta, other: &Meta| {
        let (one, other) = (logprobs(one), logprobs(other));
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
        one.len() == other.len() && one.iter().zip(&other).all(close)
    };
    assert!(same(&given.1, &meta), "{given:?} {meta:?}");

    let body = json!({"nodes": [
        {"op": "text", "text": "Name a colour: "},
        {"op": "gen", "name": "x", "n": 3, "logprobs": 2, "max_tokens": 6, "temperature": 1, "seed": 5},
    ]});
    let answer = server.ok("/v1/programs", &body).await;
    let state = &answer["states"][0];
    assert_eq!(
        (&state["variables"]["x"], &state["text"]),
        (&json!(texts), &json!(text))
    );
    let outputs = state["meta"]["x"]["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 3, "{answer}");
    assert_eq!(
        outputs[2]["logprobs"][0]["top"].as_array().unwrap().len(),
        2
    );
    assert_eq!(answer["usage"]["completion_tokens"], 18);

    let of_server = three_samples(&mut own.state(), true).await;
    let chat = Frontend::new(ChatApi::new(client.clone(), MODEL));
    let of_chat = three_samples(&mut chat.state(), true).await;
    assert_eq!((&of_chat.0, &of_chat.2), (&of_server.0, &of_server.2));
    assert!(same(&of_chat.1, &of_server.1));
    server.wait_until_idle().await;
}

#[tokio::test]
async fn each_example_runs_on_the_embedded_model() {
    let server = Server::embedded(&[]).await;
    let frontend = Frontend::new(Backend::new(server.client.clone()));
    let given = [
        examples::few_shot_select::run(&frontend).await,
        examples::multi_turn_chat::run(&frontend).await,
        examples::self_consistency::run(&frontend).await,
        examples::tree_of_thought::run(&frontend).await,
        examples::skeleton_of_thought::run(&frontend).await,
        examples::branch_solve_merge::run(&frontend).await,
        examples::react_agent::run(&frontend).await,
        examples::json_extraction::run(&frontend).await,
        examples::long_document_rag::run(&frontend).await,
    ];
    for given in given {
        let given = given.unwrap();
        println!("{given}");
        assert!(!given.trim().is_empty());
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn forks_find_the_common_prefix_in_the_cache() {
    let server = Server::embedded(&[]).await;
    let document = "Once upon a time there was a cat. ".repeat(12);
    let graph = trace(|s| {
        s.extend(document.as_str());
        let mut forks = s.fork(4);
        for (index, fork) in forks.iter_mut().enumerate() {
            fork.extend(format!("Part {index}: "));
            fork.extend(hearth_client::lang::generate("x").max_tokens(4));
        }
        s.join(forks);
    });
    let answer = server.ok("/v1/programs", &json!(graph)).await;
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    let all = usage["prompt_tokens"].as_u64().unwrap();
    assert!(cached * 10 >= all * 8, "{usage}");
}
