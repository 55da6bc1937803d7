//! Attributes of spans have the names of published conventions.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use serde_json::{Value, json};

use super::harness::{CHAT, Server, telemetry_python, workspace};
use super::traces::{Collector, SOON};

/// Attributes of vLLM's span that OpenTelemetry's registry does not have, or no longer.
const VLLM: [&str; 12] = [
    "gen_ai.latency.e2e",
    "gen_ai.latency.time_in_model_decode",
    "gen_ai.latency.time_in_model_execute",
    "gen_ai.latency.time_in_model_forward",
    "gen_ai.latency.time_in_model_inference",
    "gen_ai.latency.time_in_model_prefill",
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_in_scheduler",
    "gen_ai.latency.time_to_first_token",
    "gen_ai.request.id",
    "gen_ai.request.n",
    "gen_ai.usage.num_sequences",
];
/// The beginnings of the names that are Hearth's own, or the client's.
const OWN: [&str; 3] = ["llm.", "hearth.", "metadata."];

fn listed(file: &str) -> HashSet<String> {
    let text = fs::read_to_string(workspace().join("tests/semconv").join(file)).unwrap();
    let names = text.lines().filter(|line| !line.starts_with('#'));
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn attributes_of_spans_have_the_names_of_the_published_conventions() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let flags = ["--otlp-endpoint", &endpoint, "--collect-detailed-traces"];
    let server = Server::start_with(&[&flags[..], &["all"]].concat(), &SOON).await;
    let chat = json!({
        "messages": [{"role": "user", "content": "Hello"}], "stream": true, "max_tokens": 3,
        "temperature": 0.5, "top_k": 7, "seed": 7, "n": 2, "stop": ["never said"], "user": "ada",
        "frequency_penalty": 0.25, "presence_penalty": 0.5, "metadata": {"team": "a"},
        "ignore_eos": true,
    });
    let answer = server.http.post(server.url(CHAT)).json(&chat).send().await;
    answer.unwrap().bytes().await.unwrap();
    let embed = json!({"input": "Hello"});
    server.ok("/v1/embeddings", &embed).await;
    collector.read_until(|collector| {
        collector.spans("llm_request").len() == 3 && !collector.spans("engine.step").is_empty()
    });

    let (known, openinference) = (listed("attributes.txt"), listed("openinference.txt"));
    let mut unknown = BTreeSet::new();
    for span in collector.got.iter().filter(|line| line["signal"] == "span") {
        let events = span["events"].as_array().unwrap().iter();
        let events = events.map(|event| &event["attributes"]);
        for given in [&span["attributes"], &span["resource"]]
            .into_iter()
            .chain(events)
        {
            let names = given.as_object().unwrap().keys();
            unknown.extend(names.filter(|name| {
                let own = OWN.iter().any(|start| name.starts_with(start));
                let vllm = VLLM.contains(&name.as_str());
                !own && !vllm && !known.contains(*name) && !openinference.contains(*name)
            }));
        }
    }
    assert!(unknown.is_empty(), "no convention has {unknown:?}");

    let spans = collector.spans("llm_request");
    let of = |operation: &str| {
        let mut spans = spans.iter().map(|span| &span["attributes"]);
        spans
            .find(|span| span["gen_ai.operation.name"] == operation)
            .unwrap()
    };
    let chat = of("chat");
    for (name, value) in [
        ("gen_ai.request.frequency_penalty", json!(0.25)),
        ("gen_ai.request.presence_penalty", json!(0.5)),
        ("gen_ai.request.stop_sequences", json!(["never said"])),
        ("gen_ai.request.choice.count", json!(2)),
        ("openinference.span.kind", json!("LLM")),
        ("llm.model_name", json!("llama-llama3-tied")),
        ("llm.token_count.completion", json!(3)),
        ("llm.finish_reason", json!("length")),
    ] {
        assert_eq!(chat[name], value, "{name}: {chat}");
        assert!(
            known.contains(name) || openinference.contains(name),
            "{name}"
        );
    }
    let waited = chat["gen_ai.response.time_to_first_chunk"]
        .as_f64()
        .unwrap();
    assert!(waited > 0.0, "{chat}");
    let parameters = chat["llm.invocation_parameters"].as_str().unwrap();
    let parameters: Value = serde_json::from_str(parameters).unwrap();
    assert_eq!(
        (&parameters["top_k"], &parameters["n"]),
        (&json!(7), &json!(2))
    );
    assert_eq!(of("embeddings")["openinference.span.kind"], "EMBEDDING");
}
