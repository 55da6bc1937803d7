//! Programs of the front-end language on the real binary.

use hearth_client::backends::Server as Backend;
use hearth_client::lang::{Frontend, trace};
use serde_json::json;

use super::examples;
use super::harness::Server;
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
