//! Adapters with whole tables (`modules_to_save`) in the whole server: the tokens that PEFT gives, beside
//! other adapters, and loading, replacing and unloading while the server runs.

use std::fs;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server};
use super::lora::{continuation, copy, directory, generate, golden, prompt, status};

/// Two of them have tables, one of the output projection and one of both.
const ADAPTERS: [&str; 3] = ["saved-head-tied", "list", "saved-tied-ensured"];

fn modules() -> Vec<String> {
    let modules = ADAPTERS.map(|name| format!("{name}={}", golden(name).display()));
    let mut flags = vec!["--lora-modules".to_owned()];
    flags.extend(modules);
    flags
}

/// The text of a chat and that of a completion; `None` is the base model.
async fn texts(server: &Server, model: Option<&str>) -> [Value; 2] {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let mut chat = json!({"messages": messages, "max_tokens": 16, "temperature": 0});
    let mut prompt = json!({"prompt": "Hello", "max_tokens": 16, "temperature": 0});
    for body in [&mut chat, &mut prompt] {
        if let Some(model) = model {
            body["model"] = model.into();
        }
    }
    let chat = server.ok(CHAT, &chat).await;
    let completion = server.ok(COMPLETIONS, &prompt).await;
    [
        chat["choices"][0]["message"]["content"].clone(),
        completion["choices"][0]["text"].clone(),
    ]
}

#[tokio::test]
async fn each_request_of_a_mixed_batch_is_computed_with_the_tables_of_its_own_adapter() {
    // With one slot, and with one slot that has room for tables among several, adapters take turns.
    for more in [&["--max-loras", "1"][..], &["--max-lora-tables", "1"], &[]] {
        let mut flags = modules();
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start(&flags).await;
        for adapter in ADAPTERS {
            let (tokens, cached) = generate(&server, Some(adapter), &prompt(adapter)).await;
            assert_eq!((tokens, cached), (continuation(adapter), 0), "{adapter}");
            let (again, cached) = generate(&server, Some(adapter), &prompt(adapter)).await;
            assert_eq!((again, cached), (continuation(adapter), 47), "{adapter}");
        }
        let (base, _) = generate(&server, None, &prompt("list")).await;
        let requests = (0..24).map(|n| {
            let name = (n % 4 < 3).then(|| ADAPTERS[n % 4]);
            let server = &server;
            async move {
                let prompt = prompt(name.unwrap_or("list"));
                (name, generate(server, name, &prompt).await.0)
            }
        });
        for (name, tokens) in join_all(requests).await {
            let want = name.map_or_else(|| base.clone(), continuation);
            assert_eq!(tokens, want, "{name:?} with {more:?}");
        }
    }
}

#[tokio::test]
async fn tables_are_loaded_replaced_and_unloaded_while_the_server_runs() {
    let dir = directory("lora-tables");
    copy("saved-head-tied", &dir.join("a"));
    let lora_dir = dir.display().to_string();
    let server = Server::start(&["--lora-dir", &lora_dir, "--max-lora-tables", "1"]).await;
    let load = |replace: bool| json!({"lora_name": "a", "lora_path": "a", "load_inplace": replace});
    let post = async |path: &str, body: Value| status(&server, path, &body).await;
    assert_eq!(post("/v1/load_lora_adapter", load(false)).await, 200);
    let ids = prompt("saved-head-tied");
    let want = continuation("saved-head-tied");
    assert_eq!(generate(&server, Some("a"), &ids).await, (want.clone(), 0));
    let before = texts(&server, Some("a")).await;
    let of_base = texts(&server, None).await;
    assert!(before[0] != of_base[0] && before[1] != of_base[1]);
    // The same files keep their keys.
    assert_eq!(post("/v1/load_lora_adapter", load(true)).await, 200);
    assert_eq!(generate(&server, Some("a"), &ids).await, (want.clone(), 47));
    // Nothing but a number of the table changes.
    let file = dir.join("a/adapter_model.safetensors");
    let whole = fs::read(&file).unwrap();
    let mut changed = whole.clone();
    let length = u64::from_le_bytes(changed[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&changed[8..8 + length]).unwrap();
    let table = &header["base_model.model.lm_head.weight"]["data_offsets"];
    let data = &mut changed[8 + length..];
    let row = table[0].as_u64().unwrap() as usize + 48 * 4 * want[0] as usize;
    // The row of the first token, which no other one then loses against.
    data[row..row + 48 * 4].fill(0);
    fs::write(&file, changed).unwrap();
    assert_eq!(post("/v1/load_lora_adapter", load(true)).await, 200);
    let (other, cached) = generate(&server, Some("a"), &ids).await;
    assert_ne!(other, want);
    assert_eq!(cached, 0, "keys of the old table");
    fs::write(&file, whole).unwrap();
    assert_eq!(post("/v1/load_lora_adapter", load(true)).await, 200);
    assert_eq!(generate(&server, Some("a"), &ids).await, (want, 47));
    assert_eq!(texts(&server, Some("a")).await, before);
    assert_eq!(
        post("/v1/unload_lora_adapter", json!({"lora_name": "a"})).await,
        200
    );
    let body = json!({"prompt": "x", "model": "a", "max_tokens": 1});
    assert_eq!(post(COMPLETIONS, body).await, 404);
    assert_eq!(texts(&server, None).await, of_base);
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn tables_without_room_and_sums_with_tables_are_refused_by_name() {
    let dir = directory("lora-no-room");
    copy("saved-head-tied", &dir.join("a"));
    let lora_dir = dir.display().to_string();
    let load = json!({"lora_name": "a", "lora_path": "a"});
    let server = Server::start(&["--lora-dir", &lora_dir]).await;
    let answer = server.post("/v1/load_lora_adapter", &load).await;
    assert_eq!(answer.status, 400);
    for part in ["modules_to_save", "49152 bytes", "--max-lora-tables"] {
        assert!(answer.body.to_string().contains(part), "{}", answer.body);
    }
    drop(server);
    let path = golden("list").display().to_string();
    let flags = [
        "--lora-dir",
        &lora_dir,
        "--lora",
        &path,
        "--max-lora-tables",
        "1",
    ];
    let server = Server::start(&flags).await;
    assert_eq!(status(&server, "/v1/load_lora_adapter", &load).await, 200);
    let ids = prompt("saved-head-tied");
    let with = |list: Value| {
        json!({
            "input_ids": ids, "lora": list,
            "sampling_params": {"max_new_tokens": 32, "temperature": 0, "ignore_eos": true},
        })
    };
    let alone = server
        .ok("/generate", &with(json!([{"id": 1, "scale": 1.0}])))
        .await;
    assert_eq!(alone["output_ids"], json!(continuation("saved-head-tied")));
    for list in [
        json!([{"id": 1, "scale": 0.5}]),
        json!([{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}]),
    ] {
        let answer = server.post("/generate", &with(list)).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        let text = answer.body.to_string();
        assert!(text.contains("modules_to_save"), "{text}");
    }
    fs::remove_dir_all(dir).unwrap();
}
