//! Adapters (LoRA) in the whole server: the tokens that PEFT gives, several adapters at once, and
//! loading, replacing and unloading while the server runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server, python_with, workspace};

/// Adapters of the checkpoint that tests serve, with what PEFT generates.
const ADAPTERS: [&str; 2] = ["list", "tied-embedding"];

pub fn golden(adapter: &str) -> PathBuf {
    workspace().join("model/goldens/adapters").join(adapter)
}

/// A tensor of 32-bit integers of a golden.
fn integers(file: &Path, name: &str) -> Vec<u32> {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let offset = |at: usize| header[name]["data_offsets"][at].as_u64().unwrap() as usize;
    let data = &bytes[8 + length..][offset(0)..offset(1)];
    let words = data.chunks_exact(4);
    words
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

pub fn prompt(adapter: &str) -> Vec<u32> {
    integers(&golden(adapter).join("golden.safetensors"), "prompt")
}

/// The tokens that PEFT generates after the prompt: the greedy continuation.
pub fn continuation(adapter: &str) -> Vec<u32> {
    integers(&golden(adapter).join("golden.safetensors"), "decode_tokens")
}

/// Copies an adapter to `to`.
pub fn copy(adapter: &str, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(golden(adapter).join(file), to.join(file)).unwrap();
    }
}

pub fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("hearth-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn flags(modules: &[String], more: &[&str]) -> Vec<String> {
    let mut flags = vec!["--lora-modules".to_owned()];
    flags.extend_from_slice(modules);
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    flags
}

fn both() -> Vec<String> {
    ADAPTERS
        .map(|name| format!("{name}={}", golden(name).display()))
        .into()
}

/// The output and the number of cached tokens of a greedy request.
pub async fn generate(server: &Server, model: Option<&str>, ids: &[u32]) -> (Vec<u32>, u64) {
    let mut body = json!({
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 32, "temperature": 0, "ignore_eos": true},
    });
    if let Some(model) = model {
        body["lora_path"] = model.into();
    }
    let answer = server.ok("/generate", &body).await;
    let ids = answer["output_ids"].as_array().unwrap().iter();
    let ids = ids.map(|id| id.as_u64().unwrap() as u32).collect();
    (ids, answer["meta_info"]["cached_tokens"].as_u64().unwrap())
}

/// The status of a request whose answer need not be JSON.
pub async fn status(server: &Server, path: &str, body: &Value) -> u16 {
    let request = server.http.post(server.url(path)).json(body);
    request.send().await.unwrap().status().as_u16()
}

async fn text(server: &Server, path: &str) -> String {
    let response = server.http.get(server.url(path)).send().await.unwrap();
    response.text().await.unwrap()
}

#[tokio::test]
async fn each_request_of_a_mixed_batch_gets_the_tokens_of_its_own_adapter() {
    // With one slot, the adapters take turns in it.
    for slots in ["1", "4"] {
        let flags = flags(&both(), &["--max-loras", slots]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start(&flags).await;
        for adapter in ADAPTERS {
            let (tokens, cached) = generate(&server, Some(adapter), &prompt(adapter)).await;
            assert_eq!(tokens, continuation(adapter), "{adapter}");
            assert_eq!(cached, 0);
            let (again, cached) = generate(&server, Some(adapter), &prompt(adapter)).await;
            assert_eq!((again, cached), (continuation(adapter), 47), "{adapter}");
            let (base, cached) = generate(&server, None, &prompt(adapter)).await;
            assert_ne!(base, continuation(adapter));
            assert_eq!(
                cached, 0,
                "{adapter}: the base model shares no prefix with it"
            );
        }
        let plain = Server::start(&[]).await;
        let (base, _) = generate(&plain, None, &prompt("list")).await;
        let names = [Some("list"), None, Some("tied-embedding")];
        let requests = (0..24).map(|n| names[n % 3]);
        let requests = requests.map(|name| {
            let prompt = prompt(name.unwrap_or("list"));
            let server = &server;
            async move { (name, generate(server, name, &prompt).await.0) }
        });
        for (name, tokens) in join_all(requests).await {
            let want = name.map_or_else(|| base.clone(), continuation);
            assert_eq!(tokens, want, "{name:?}");
        }
        let page = text(&server, "/metrics").await;
        let line = page
            .lines()
            .find(|line| line.starts_with("vllm:lora_requests_info{"));
        let line = line.unwrap();
        assert!(line.contains(&format!("max_lora=\"{slots}\"")), "{line}");
    }
}

#[tokio::test]
async fn an_adapter_with_tables_applies_to_a_model_with_windows() {
    let name = "saved-tables";
    let module = format!("{name}={}", golden(name).display());
    for ratio in ["1", "0.01"] {
        let flags = [
            "--lora-modules",
            &module,
            "--kv-tokens",
            "4000",
            "--swa-full-tokens-ratio",
            ratio,
        ];
        let server = Server::of("mistral-window", &flags).await;
        for _ in 0..2 {
            let (tokens, _) = generate(&server, Some(name), &prompt(name)).await;
            assert_eq!(tokens, continuation(name), "{ratio}");
        }
        let (base, cached) = generate(&server, None, &prompt(name)).await;
        assert_ne!(base, continuation(name));
        assert_eq!(cached, 0);
        let has_windows = server.stats().await["window_kv"]["total"] != 0;
        assert_eq!(has_windows, ratio != "1");
    }
}

#[tokio::test]
async fn changed_files_meet_no_old_keys_and_unchanged_files_keep_them() {
    let dir = directory("lora-reload");
    copy("list", &dir.join("a"));
    let lora_dir = dir.display().to_string();
    let server = Server::start(&["--enable-lora", "--lora-dir", &lora_dir]).await;
    let load = |replace: bool| json!({"lora_name": "a", "lora_path": "a", "load_inplace": replace});
    let post = async |path: &str, body: Value| status(&server, path, &body).await;
    assert_eq!(post("/v1/load_lora_adapter", load(false)).await, 200);
    let ids = prompt("list");
    let first = generate(&server, Some("a"), &ids).await;
    assert_eq!(first, (continuation("list"), 0));
    // The same files under the same name, and under another one.
    assert_eq!(post("/v1/load_lora_adapter", load(true)).await, 200);
    assert_eq!(
        generate(&server, Some("a"), &ids).await,
        (continuation("list"), 47)
    );
    let other = json!({"lora_name": "b", "lora_path": "a"});
    assert_eq!(post("/load_lora_adapter", other).await, 200);
    assert_eq!(
        generate(&server, Some("b"), &ids).await,
        (continuation("list"), 47)
    );
    // Other content at the same path, under the same name.
    copy("tied-embedding", &dir.join("a"));
    assert_eq!(post("/v1/load_lora_adapter", load(true)).await, 200);
    let (changed, cached) = generate(&server, Some("a"), &ids).await;
    assert_ne!(changed, continuation("list"));
    assert_eq!(cached, 0, "keys of the old content");
    let golden = prompt("tied-embedding");
    assert_eq!(
        generate(&server, Some("a"), &golden).await,
        (continuation("tied-embedding"), 0)
    );
    // The other name still has the old content.
    assert_eq!(
        generate(&server, Some("b"), &ids).await,
        (continuation("list"), 47)
    );
    for name in ["a", "b"] {
        assert_eq!(
            post("/v1/unload_lora_adapter", json!({"lora_name": name})).await,
            200
        );
    }
    let body = json!({"prompt": "x", "model": "a", "max_tokens": 1});
    assert_eq!(post(COMPLETIONS, body).await, 404);
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn adapters_of_llama_cpp_apply_to_requests_that_select_nothing() {
    let file = golden("list.gguf").display().to_string();
    let server = Server::start(&["--lora", &file]).await;
    let ids = prompt("list");
    assert_eq!(generate(&server, None, &ids).await.0, continuation("list"));
    // The GGUF file and the directory are one adapter: the prefix is cached.
    assert_eq!(generate(&server, Some("list"), &ids).await.1, 47);
    let none = json!([{"id": 0, "scale": 0.0}]);
    assert_eq!(status(&server, "/lora-adapters", &none).await, 200);
    assert_ne!(generate(&server, None, &ids).await.0, continuation("list"));
}

#[tokio::test]
async fn a_thousand_adapters_come_and_go() {
    let dir = directory("lora-thousand");
    for name in ADAPTERS {
        copy(name, &dir.join(name));
    }
    let lora_dir = dir.display().to_string();
    let server =
        Server::start(&["--enable-lora", "--max-loras", "2", "--lora-dir", &lora_dir]).await;
    let ids = prompt("list");
    let resident = || server.memory().unwrap_or_default();
    let mut before = 0;
    for round in 0..1000 {
        let path = ADAPTERS[round % 2];
        let load = json!({"lora_name": format!("n{round}"), "lora_path": path});
        assert_eq!(status(&server, "/v1/load_lora_adapter", &load).await, 200);
        if round % 50 == 0 {
            let name = format!("n{round}");
            let want = if round % 2 == 0 {
                "list"
            } else {
                "tied-embedding"
            };
            assert_eq!(
                generate(&server, Some(&name), &ids).await.0,
                continuation(want)
            );
        }
        let unload = json!({"lora_name": format!("n{round}")});
        assert_eq!(status(&server, "/unload_lora_adapter", &unload).await, 200);
        if round == 200 {
            before = resident();
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more after 800 adapters");
    assert_eq!(generate(&server, None, &ids).await.1, 0);
    fs::remove_dir_all(dir).unwrap();
}

/// The adapters in the repository, which `hearth-train adapter` made, show what an adapter is.
#[tokio::test]
async fn the_adapters_of_hearth_tiny_answer_in_rhymes_and_in_questions() {
    let dir = workspace().join("train/adapters");
    let modules =
        ["rhymes", "questions"].map(|name| format!("{name}={}", dir.join(name).display()));
    let server = Server::embedded(&["--lora-modules", &modules[0], &modules[1]]).await;
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox named Mia."}]);
    // All three in one batch.
    let answers = ["hearth-tiny", "rhymes", "questions"].map(|model| {
        let body = json!({"model": model, "messages": messages, "temperature": 0});
        let server = &server;
        async move {
            let answer = server.ok(CHAT, &body).await;
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            choice["message"]["content"].as_str().unwrap().to_owned()
        }
    });
    let answers = join_all(answers).await;
    assert!(
        answers.iter().all(|text| text.contains("Mia")),
        "{answers:?}"
    );
    let lines: Vec<usize> = answers.iter().map(|text| text.lines().count()).collect();
    assert_eq!(lines, [1, 4, 1], "{answers:?}");
    let asks = |text: &String| text.ends_with('?') && !text.contains('.');
    let asks: Vec<bool> = answers.iter().map(asks).collect();
    assert_eq!(asks, [false, false, true], "{answers:?}");
}

#[tokio::test]
async fn openais_client_selects_adapters() {
    let Some(python) = python_with("import openai") else {
        return;
    };
    let flags = flags(&both(), &[]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(&flags).await;
    let script = workspace().join("tests/python/openai_adapters.py");
    let mut command = Command::new(python);
    command.arg(script).arg(server.url("/v1")).args(ADAPTERS);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}
