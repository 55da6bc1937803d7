//! Serves on a GPU: on lavapipe, and on a stand-in for CUDA (`tests/cuda/README.md`).

use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::doctor::{has_cuda, has_vulkan};
use super::harness::{COMPLETIONS, Random, Server, hearth, python_with, workspace};

/// Flags with few batch sizes to warm up, because lavapipe compiles slowly.
const SMALL: [&str; 6] = [
    "--prefill-chunk",
    "24",
    "--max-running-requests",
    "3",
    "--kv-tokens",
    "2048",
];

/// The greedy answers to prompts of several lengths, sent one by one and together.
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

/// Requests with different sampling parameters and grammars.
fn kinds() -> Vec<Value> {
    let schema = json!({"type": "object", "additionalProperties": false,
        "required": ["name", "grade"],
        "properties": {"name": {"type": "string", "maxLength": 9},
            "grade": {"enum": ["good", "better", "best"]}}});
    let strict = json!({"type": "json_schema",
        "json_schema": {"name": "answer", "strict": true, "schema": schema}});
    vec![
        json!({"temperature": 0}),
        json!({"temperature": 1}),
        json!({"temperature": 0.8, "top_p": 0.9}),
        json!({"temperature": 1.3, "top_k": 20, "min_p": 0.02, "top_p": 0.95}),
        json!({"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5}),
        json!({"temperature": 1, "frequency_penalty": 1.5, "logit_bias": {"70": 5, "80": -100}}),
        json!({"temperature": 1, "min_tokens": 10, "stop_token_ids": [65, 66, 67, 68, 69, 70]}),
        json!({"temperature": 1, "response_format": strict, "jump_forward": true}),
        json!({"temperature": 1, "response_format": strict, "jump_forward": false}),
        json!({"temperature": 0, "regex": "(ab|cd|[e-z]{2})+x"}),
        json!({"temperature": 1, "logprobs": 2}),
    ]
}

/// The answers to all [`kinds`], sent one by one or together.
async fn sampled(server: &Server, together: bool) -> Vec<Value> {
    let mut random = Random::new(12);
    let mut bodies = kinds();
    for (seed, body) in bodies.iter_mut().enumerate() {
        body["prompt"] = json!(random.tokens(20));
        body["max_tokens"] = json!(24);
        body["seed"] = json!(seed);
    }
    let ask = async |body: &Value| {
        let answer = server.ok(COMPLETIONS, body).await;
        let tokens = &answer["usage"]["completion_tokens"];
        json!([
            answer["choices"][0]["text"],
            answer["choices"][0]["finish_reason"],
            tokens
        ])
    };
    let mut answers = Vec::new();
    if together {
        answers = join_all(bodies.iter().map(ask)).await;
    } else {
        for body in &bodies {
            answers.push(ask(body).await);
        }
    }
    server.wait_until_idle().await;
    answers
}

/// Sends random prompts of many lengths, alone and together, that ask for the logits of some, all
/// or none of their tokens, and for embeddings, so that batches get random shapes.
async fn many_shapes(server: &Server) {
    let mut random = Random::new(13);
    let kinds = kinds();
    for round in 0..30 {
        let bodies: Vec<Value> = (0..random.within(1, 6))
            .map(|_| {
                let length = [5, 40, 400][random.within(0, 2)];
                let mut body = kinds[random.within(0, kinds.len() - 1)].clone();
                let length = random.within(1, length);
                body["prompt"] = json!(random.tokens(length));
                body["max_tokens"] = json!(random.within(10, 14));
                if random.within(0, 2) == 0 {
                    body["logprobs"] = json!(random.within(0, 3));
                    body["echo"] = json!(body["regex"].is_null() && random.within(0, 1) == 0);
                }
                body
            })
            .collect();
        join_all(bodies.iter().map(|body| server.ok(COMPLETIONS, body))).await;
        if round % 5 == 0 {
            let input: Vec<Vec<u32>> = (0..random.within(1, 4))
                .map(|_| {
                    let length = random.within(1, 60);
                    random.tokens(length)
                })
                .collect();
            server.ok("/v1/embeddings", &json!({"input": input})).await;
        }
    }
    server.wait_until_idle().await;
}

/// Bytes of all compiled kernels in the cache directory.
fn cached_bytes(cache: &Path) -> u64 {
    let files = files_below(&cache.join("hearth/kernels"));
    let sizes = files.iter().map(|file| file.metadata().unwrap().len());
    sizes.sum()
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
async fn a_gpu_answers_like_the_cpu_and_compiles_each_kernel_once_and_before_ready() {
    if !has_vulkan() {
        return;
    }
    let cache = std::env::temp_dir().join(format!("hearth-gpu-test-{}", std::process::id()));
    let cpu = Server::start(&SMALL).await;
    let on_cpu = answers(&cpu).await;
    let sampled_on_cpu = sampled(&cpu, false).await;
    drop(cpu);
    let mut compiled = None;
    for device in ["vulkan", "webgpu", "vulkan"] {
        let server = Server::on(device, &SMALL, &cache).await;
        println!("{device}: /ready {:?} after the start", server.ready_after);
        if compiled.is_none() {
            for what in ["checking kernels: ", "warming up: "] {
                assert!(server.has_logged(what), "{what} is not told");
            }
        }
        // Each kernel is written to the cache when it is compiled: all of them at the first start.
        let ready = cached_bytes(&cache);
        assert!(ready > 10_000, "{ready} bytes of kernels");
        let compiled = *compiled.get_or_insert(ready);
        assert_eq!(compiled, ready, "{device}: compiled at a second start");
        assert_eq!(answers(&server).await, on_cpu, "{device}");
        // The GPU samples the tokens itself, with the same random numbers.
        for together in [false, true] {
            let answers = sampled(&server, together).await;
            assert_eq!(answers, sampled_on_cpu, "{device}, {together}");
        }
        many_shapes(&server).await;
        assert_eq!(
            cached_bytes(&cache),
            compiled,
            "{device}: compiled after /ready"
        );
    }
    let _ = std::fs::remove_dir_all(&cache);
}

#[test]
fn a_start_on_a_gpu_says_in_a_terminal_how_far_it_is() {
    let Some(python) = python_with("import pty").filter(|_| has_vulkan()) else {
        return;
    };
    let cache = std::env::temp_dir().join(format!("hearth-told-test-{}", std::process::id()));
    let mut command = std::process::Command::new(python);
    command.arg(workspace().join("tests/python/terminal.py"));
    // Ctrl-C once the line was rewritten.
    command.args(["\rchecking kernels: ", "2"]);
    command.arg(hearth().get_program());
    command
        .args(["--device", "vulkan", "--port", "0"])
        .args(SMALL);
    let output = command.env("XDG_CACHE_HOME", &cache).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let got: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = got["written"].as_str().unwrap();
    let line = written.split("\rchecking kernels: ").nth(1).unwrap();
    let (line, _) = line.split_once("\x1b[K").unwrap();
    // "3 of 40, 2 s, about 25 s left: attention, 24 tokens, ..."
    let words: Vec<&str> = line.split([' ', ',']).collect();
    assert!(
        words[0].parse::<u32>().is_ok() && words[1] == "of",
        "{line}"
    );
    let _ = std::fs::remove_dir_all(&cache);
}

/// `./test.sh` runs this test on a stand-in for the device (`tests/cuda/README.md`).
#[tokio::test]
async fn a_server_on_cuda_answers_like_the_cpu() {
    if !has_cuda() {
        return;
    }
    let cache = std::env::temp_dir().join(format!("hearth-cuda-test-{}", std::process::id()));
    let cpu = Server::start(&SMALL).await;
    let (greedy, drawn) = (answers(&cpu).await, sampled(&cpu, false).await);
    drop(cpu);
    let cuda = Server::on("cuda", &SMALL, &cache).await;
    println!("/ready {:?} after the start", cuda.ready_after);
    assert_eq!(answers(&cuda).await, greedy);
    assert_eq!(sampled(&cuda, true).await, drawn);
    let _ = std::fs::remove_dir_all(&cache);
}

/// The tuning cache: the file with the kernels that a start selected for matrix multiplications
/// of many tokens.
fn tuning_cache(cache: &Path) -> Option<PathBuf> {
    let files = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        entries
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    };
    let builds = files(&cache.join("hearth/kernels"));
    let mut found = builds.iter().flat_map(|build| files(build)).filter(|file| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("products-") && name.ends_with(".json")
    });
    let file = found.next();
    assert_eq!(found.next(), None);
    file
}

/// `./test.sh` runs this test on a stand-in for the device, which has some of the kernels.
#[tokio::test]
async fn kernels_selected_at_one_start_on_cuda_are_used_at_the_next() {
    if !has_cuda() {
        return;
    }
    let cache = std::env::temp_dir().join(format!("hearth-choice-{}", std::process::id()));
    let flags = [&SMALL[..], &["--dtype", "bf16"]].concat();
    let untuned = [&flags[..], &["--no-autotune"]].concat();
    let server = Server::embedded_on("cuda", &untuned, &cache).await;
    let greedy = answers(&server).await;
    drop(server);
    assert_eq!(tuning_cache(&cache), None, "nothing is timed");

    let server = Server::embedded_on("cuda", &flags, &cache).await;
    println!("/ready {:?} after the first start", server.ready_after);
    drop(server);
    let file = tuning_cache(&cache).unwrap();
    let read = || -> Value { serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap() };
    let mut stored = read();
    println!("{stored}");
    assert!(stored["trying"].is_null() && stored["ended"] == json!({}));
    let choices = stored["choices"].as_object_mut().unwrap();
    assert_eq!(choices.len(), 1);

    // Whichever kernel was the fastest: the next start uses the one in the file if its results
    // are correct.
    let kernels = choices.values_mut().next().unwrap();
    let other = ["split-columns", "ordered"]
        .into_iter()
        .find(|name| kernels[0] != *name);
    kernels[0] = json!(other);
    std::fs::write(&file, stored.to_string()).unwrap();
    let server = Server::embedded_on("cuda", &flags, &cache).await;
    assert_eq!(read(), stored);
    let answers = answers(&server).await;
    let same = answers.iter().zip(&greedy).filter(|(a, b)| a == b).count();
    assert!(
        2 * same > greedy.len(),
        "{same} of {} answers",
        greedy.len()
    );
    let _ = std::fs::remove_dir_all(&cache);
}

fn prompts_with_a_shared_prefix(seed: u64) -> Vec<Vec<u32>> {
    let mut random = Random::new(seed);
    let shared = random.tokens(40);
    let prompts = [5, 1, 20].map(|own| [shared.clone(), random.tokens(own)].concat());
    prompts.into()
}

/// Tokens and log-probabilities, exactly as the response has them.
async fn outputs(server: &Server, prompts: &[Vec<u32>]) -> Vec<(Value, Value)> {
    let mut outputs = Vec::new();
    for prompt in prompts
        .iter()
        .map(|prompt| json!(prompt))
        .chain([json!(prompts)])
    {
        let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 6, "logprobs": 2,
            "ignore_eos": true});
        let answer = server.ok(COMPLETIONS, &body).await;
        for choice in answer["choices"].as_array().unwrap() {
            let logprobs = &choice["logprobs"];
            outputs.push((
                logprobs["tokens"].clone(),
                logprobs["token_logprobs"].clone(),
            ));
        }
    }
    server.wait_until_idle().await;
    outputs
}

#[tokio::test]
async fn a_deterministic_gpu_gives_the_same_bits_for_cache_hits_and_misses() {
    if !has_vulkan() {
        return;
    }
    let cache = std::env::temp_dir().join(format!("hearth-bits-test-{}", std::process::id()));
    let prompts = prompts_with_a_shared_prefix(12);
    let mut seen = Vec::new();
    for flags in [
        &["--deterministic", "--no-prefix-cache"][..],
        &["--deterministic"],
    ] {
        let server = Server::on("vulkan", &[&SMALL[..], flags].concat(), &cache).await;
        // First alone, then together; with a prefix cache, the second time is a hit.
        let outputs = outputs(&server, &prompts).await;
        let (alone, together) = outputs.split_at(prompts.len());
        assert_eq!(alone, together, "{flags:?}");
        seen.push(outputs);
    }
    assert_eq!(seen[0], seen[1]);
    let _ = std::fs::remove_dir_all(&cache);
}

#[tokio::test]
async fn on_a_gpu_window_slots_that_are_given_up_change_no_bit() {
    if !has_vulkan() {
        return;
    }
    let cache = std::env::temp_dir().join(format!("hearth-windows-test-{}", std::process::id()));
    let prompts = prompts_with_a_shared_prefix(13);
    let mut seen = Vec::new();
    for ratio in ["1", "0.01"] {
        let flags = [
            "--deterministic",
            "--kv-tokens",
            "1000",
            "--prefill-chunk",
            "16",
            "--max-running-requests",
            "3",
            "--swa-full-tokens-ratio",
            ratio,
        ];
        let server = Server::of_on("vulkan", "gemma2", &flags, &cache).await;
        seen.push(outputs(&server, &prompts).await);
        let has_windows = server.stats().await["window_kv"]["total"] != 0;
        assert_eq!(has_windows, ratio != "1");
    }
    assert_eq!(seen[0], seen[1]);
    let _ = std::fs::remove_dir_all(&cache);
}
