//! Serving on a GPU, as far as lavapipe is one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::doctor::has_vulkan;
use super::harness::{COMPLETIONS, Random, Server};

/// Few size classes to warm up: lavapipe compiles slowly.
const SMALL: [&str; 6] = [
    "--prefill-chunk",
    "24",
    "--max-running-requests",
    "3",
    "--kv-tokens",
    "2048",
];

/// Greedy answers to prompts of several lengths, one by one and together.
async fn answers(server: &Server) -> Vec<Value> {
    let mut random = Random::new(11);
    let prompts: Vec<Vec<u32>> = [3, 60, 21].map(|length| random.tokens(length)).into();
    let mut answers = Vec::new();
    for prompt in prompts
        .iter()
        .map(|prompt| json!(prompt))
        .chain([json!(prompts)])
    {
        let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 0});
        let answer = server.ok(COMPLETIONS, &body).await;
        let choices = answer["choices"].as_array().unwrap();
        answers.extend(
            choices
                .iter()
                .map(|choice| choice["logprobs"]["tokens"].clone()),
        );
    }
    server.wait_until_idle().await;
    answers
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files_below(&path),
            false => vec![path],
        })
        .collect()
}

#[tokio::test]
async fn a_gpu_answers_as_the_cpu_and_keeps_the_kernels_it_compiled() {
    if !has_vulkan() {
        return;
    }
    let cache = std::env::temp_dir().join(format!("hearth-gpu-test-{}", std::process::id()));
    let on_cpu = answers(&Server::start(&SMALL).await).await;
    for device in ["vulkan", "webgpu", "vulkan"] {
        let server = Server::on(device, &SMALL, &cache).await;
        println!("{device}: /ready {:?} after the start", server.ready_after);
        assert_eq!(answers(&server).await, on_cpu, "{device}");
        // WGSL is not kept.
        if device == "vulkan" {
            let kept = files_below(&cache.join("hearth/kernels"));
            let bytes: u64 = kept.iter().map(|file| file.metadata().unwrap().len()).sum();
            assert!(bytes > 10_000, "{kept:?}");
        }
    }
    let _ = std::fs::remove_dir_all(&cache);
}
