//! Attributes of spans have the names of published conventions.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server, telemetry_python, workspace};
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
    let flags = [
        "--otlp-endpoint",
        &endpoint,
        "--trace-message-content",
        "--collect-detailed-traces",
        "all",
    ];
    let server = Server::start_with(&flags, &SOON).await;
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

/// The attributes of `llm_request` for a chat and for a text completion that must be JSON.
async fn attributes(flags: &[&str], environment: &[(&str, &str)]) -> Option<[Value; 2]> {
    let python = telemetry_python()?;
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let own = ["--otlp-endpoint", &endpoint, "--tool-call-parser", "hermes"];
    let flags = [&own[..], flags].concat();
    let environment = [&SOON[..], environment].concat();
    let server = Server::start_with(&flags, &environment).await;
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "dice", "arguments": "{\"sides\":6}"}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "four"},
    ]);
    let tool =
        json!({"type": "function", "function": {"name": "dice", "description": "Rolls dice."}});
    let chat = json!({"messages": messages, "max_tokens": 3, "temperature": 0, "ignore_eos": true,
        "tools": [tool]});
    let said = server.ok(CHAT, &chat).await;
    let prompt = json!({"prompt": "Once", "max_tokens": 4, "json_schema": {"const": 7}});
    server.ok(COMPLETIONS, &prompt).await;
    collector.read_until(|collector| collector.spans("llm_request").len() == 2);
    let of = |operation: &str| {
        let spans = collector.spans("llm_request").into_iter();
        let mut attributes = spans.map(|span| &span["attributes"]);
        let found = attributes.find(|given| given["gen_ai.operation.name"] == operation);
        found.unwrap().clone()
    };
    let (chat, text) = (of("chat"), of("text_completion"));
    for given in [&chat, &text] {
        assert_eq!(given["server.address"], "127.0.0.1");
        let port = given["server.port"].as_u64().unwrap();
        assert!(server.address().ends_with(&format!(":{port}")), "{port}");
    }
    assert_eq!(chat["gen_ai.output.type"], "text");
    assert_eq!(text["gen_ai.output.type"], "json");
    if let Some(output) = chat["gen_ai.output.messages"].as_str() {
        let output: Value = serde_json::from_str(output).unwrap();
        let text = &said["choices"][0]["message"]["content"];
        assert_eq!(output[0]["parts"][0]["content"], *text);
        assert_eq!(output[0]["finish_reason"], "length");
    }
    Some([chat, text])
}

#[tokio::test]
async fn spans_have_the_content_of_messages_only_where_the_operator_asks_for_it() {
    const NAMES: [&str; 6] = [
        "gen_ai.tool.definitions",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "input.value",
        "output.value",
        "gen_ai.system_instructions",
    ];
    const VARIABLE: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
    let Some(without) = attributes(&[], &[]).await else {
        return;
    };
    for given in &without {
        assert!(NAMES.iter().all(|name| given[*name].is_null()), "{given}");
        let told = given.to_string();
        assert!(
            !told.contains("Be brief.")
                && !told.contains("Rolls dice.")
                && !told.contains("call_1"),
            "{told}"
        );
    }
    for (flags, environment) in [
        (&["--trace-message-content"][..], &[][..]),
        (&[], &[(VARIABLE, "SPAN_ONLY")]),
    ] {
        let [chat, text] = attributes(flags, environment).await.unwrap();
        let read =
            |given: &Value| -> Value { serde_json::from_str(given.as_str().unwrap()).unwrap() };
        assert_eq!(
            read(&chat["gen_ai.input.messages"]),
            json!([
                {"role": "user", "parts": [{"type": "text", "content": "Hello"}]},
                {"role": "assistant", "parts": [{"type": "tool_call", "id": "call_1",
                    "name": "dice", "arguments": "{\"sides\":6}"}]},
                {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1",
                    "response": "four"}]},
            ])
        );
        for given in [&chat, &text] {
            for (openinference, kind, name) in [
                ("input.value", "input.mime_type", "gen_ai.input.messages"),
                ("output.value", "output.mime_type", "gen_ai.output.messages"),
            ] {
                assert_eq!(given[openinference], given[name], "{given}");
                assert_eq!(given[kind], "application/json", "{given}");
            }
        }
        assert_eq!(
            read(&chat["gen_ai.system_instructions"]),
            json!([{"type": "text", "content": "Be brief."}])
        );
        assert_eq!(
            read(&chat["gen_ai.tool.definitions"]),
            json!([{"type": "function", "name": "dice", "description": "Rolls dice.",
                "parameters": {"type": "object", "properties": {}}}])
        );
        assert!(text["gen_ai.tool.definitions"].is_null(), "{text}");
        let input = read(&text["gen_ai.input.messages"]);
        let prompt = input[0]["parts"][0]["content"].as_str().unwrap();
        assert!(prompt.ends_with("Once"), "{prompt}");
        let output = read(&text["gen_ai.output.messages"]);
        assert_eq!(output[0]["parts"][0]["content"], "7");
    }
}
