//! `--kv-cache-dtype` as a user meets it. Tests that 8 bits keep what the cache promises are beside
//! those of other formats: `identical_bits`, `disaggregation`, `cache_dir` and `speculation`.

use serde_json::{Value, json};

use super::harness::{COMPLETIONS, MODEL, Random, Server, assemble, hearth};

/// Bytes of a head of 32 numbers: floats, and 8 bits with a scale.
const HEADS: [(&str, u64); 2] = [("f32", 4 * 32), ("int8", 4 + 32)];

async fn answer(server: &Server) -> Value {
    let body = json!({
        "prompt": Random::new(3).tokens(60), "max_tokens": 20, "temperature": 0, "ignore_eos": true,
        "logprobs": 0,
    });
    server.ok(COMPLETIONS, &body).await["choices"][0].clone()
}

#[tokio::test]
async fn a_cache_in_8_bits_takes_less_memory_and_every_page_says_so() {
    let floats = Server::embedded(&["--dtype", "f32"]).await;
    let int8 = Server::embedded(&["--dtype", "f32", "--kv-cache-dtype", "int8"]).await;
    for (server, (format, head)) in [&floats, &int8].into_iter().zip(HEADS) {
        let info = reqwest::get(server.url("/server_info")).await.unwrap();
        let info: Value = info.json().await.unwrap();
        let text = info.to_string();
        assert_eq!(info["model_info"]["dtype"], "f32", "{text}");
        assert_eq!(info["model_info"]["kv_cache_dtype"], format, "{text}");
        // Keys and values of four layers with two heads.
        let token = 2 * 4 * 2 * head;
        assert_eq!(server.stat("kv_token_bytes").await, token);
        let slots = server.stats().await["kv"]["total"].as_u64().unwrap();
        assert_eq!(info["model_info"]["kv_bytes"], slots * token, "{text}");
        let page = reqwest::get(server.url("/metrics")).await.unwrap();
        let page = page.text().await.unwrap();
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with("vllm:cache_config_info{"));
        let line = line.unwrap();
        let scales = if format == "int8" { "True" } else { "False" };
        for label in [
            format!("cache_dtype=\"{format}\""),
            format!("calculate_kv_scales=\"{scales}\""),
        ] {
            assert!(line.contains(&label), "{line}");
        }
    }
    // A trained model says the same, and not in the same bits.
    let [floats, int8] = [answer(&floats).await, answer(&int8).await];
    assert_eq!(
        floats["logprobs"]["tokens"][0],
        int8["logprobs"]["tokens"][0]
    );
    assert_ne!(floats["logprobs"], int8["logprobs"]);
}

#[tokio::test]
async fn the_environment_names_the_format_too() {
    let server = Server::start_with(&[], &[("HEARTH_KV_CACHE_DTYPE", "int8")]).await;
    let info = reqwest::get(server.url("/server_info")).await.unwrap();
    let info: Value = info.json().await.unwrap();
    assert_eq!(info["model_info"]["kv_cache_dtype"], "int8");
}

#[test]
fn other_formats_are_refused_by_name_and_the_estimate_knows_8_bits() {
    let run = |flags: &[&str]| {
        let mut command = hearth();
        let model = assemble(MODEL);
        command
            .args(["serve", "--device", "cpu", "--model"])
            .arg(model);
        let output = command.args(flags).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.success(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    let (ok, said) = run(&["--kv-cache-dtype", "fp8"]);
    assert!(!ok);
    for word in ["fp8", "--kv-cache-dtype", "auto", "int8"] {
        assert!(said.contains(word), "{said}");
    }
    // Keys and values of four layers with two heads of 32 numbers.
    for (format, said) in [("auto", "1.0 KiB per token"), ("int8", "576 B per token")] {
        let mut command = hearth();
        let output = command
            .args(["serve", "--estimate", "--kv-cache-dtype", format])
            .output()
            .unwrap();
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && table.contains(said), "{table}");
    }
}
