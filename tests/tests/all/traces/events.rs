//! Tests the events of a request's span.

use serde_json::{Value, json};

use super::{Collector, SOON};
use crate::harness::{CHAT, COMPLETIONS, Server, telemetry_python};

/// The `llm_request` span whose attribute `name` is `value`.
fn request<'a>(collector: &'a Collector, name: &str, value: &Value) -> Option<&'a Value> {
    let mut requests = collector.spans("llm_request").into_iter();
    requests.find(|span| span["attributes"][name] == *value)
}

fn events<'a>(span: &'a Value, name: &str) -> Vec<&'a Value> {
    let events = span["events"].as_array().unwrap().iter();
    let events: Vec<_> = events.filter(|event| event["name"] == name).collect();
    for event in &events {
        let at = event["at"].as_u64().unwrap();
        let (start, end) = (span["start"].as_u64(), span["end"].as_u64());
        assert!(
            start.unwrap() <= at && at <= end.unwrap(),
            "{event} in {span}"
        );
    }
    events
}

#[tokio::test]
async fn a_preemption_is_an_event_of_the_preempted_request() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let flags = [
        "--otlp-endpoint",
        &endpoint,
        "--schedule-policy",
        "priority",
        "--max-running-requests",
        "1",
    ];
    let server = Server::start_with(&flags, &SOON).await;
    let body = json!({"prompt": [1, 2], "max_tokens": 130_000, "temperature": 0,
        "ignore_eos": true, "stream": true});
    let held = server.client.stream(COMPLETIONS, &body).await.unwrap();
    server.wait_until_running(1).await;
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": true, "priority": 1});
    server.ok(COMPLETIONS, &body).await;
    server.wait_until_running(1).await;
    drop(held);
    server.wait_until_idle().await;
    let (preempted, urgent) = (json!(130_000), json!(3));
    let by = "gen_ai.request.max_tokens";
    collector.read_until(|collector| {
        request(collector, by, &preempted).is_some() && request(collector, by, &urgent).is_some()
    });
    let preempted = request(&collector, by, &preempted).unwrap();
    let (left, again) = (events(preempted, "preempted"), events(preempted, "resumed"));
    assert_eq!((left.len(), again.len()), (1, 1), "{preempted}");
    assert!(
        left[0]["at"].as_u64() <= again[0]["at"].as_u64(),
        "{preempted}"
    );
    let urgent = request(&collector, by, &urgent).unwrap();
    assert!(events(urgent, "preempted").is_empty(), "{urgent}");
    // Until its most recent start, the preempted request had waited longer than until the first.
    let page = server.http.get(server.url("/metrics")).send().await;
    let page = page.unwrap().text().await.unwrap();
    let sum = |interval: &str| -> f64 {
        let start = format!("llm_request_{interval}_seconds_sum");
        let line = page.lines().find(|line| line.starts_with(&start)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert!(sum("latest_queue_time") > sum("queue_time"), "{page}");
    assert!(
        sum("latest_inference_time") < sum("inference_time"),
        "{page}"
    );
}

#[tokio::test]
async fn grammar_compilations_and_forced_text_are_events_of_the_request() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let server = Server::start_with(&["--otlp-endpoint", &endpoint], &SOON).await;
    let ask = |seed: u64, grammar: bool| {
        let mut body = json!({"messages": [{"role": "user", "content": "Yes or no?"}], "seed": seed,
            "max_tokens": 20});
        if grammar {
            body["regex"] = json!("zebra crossing (yes|no)");
        }
        body
    };
    for (seed, grammar) in [(1, true), (2, true), (3, false)] {
        server.ok(CHAT, &ask(seed, grammar)).await;
    }
    let by = "gen_ai.request.seed";
    collector
        .read_until(|collector| (1..=3).all(|seed| request(collector, by, &json!(seed)).is_some()));
    for seed in 1..=3 {
        let span = request(&collector, by, &json!(seed)).unwrap();
        let (compiled, jumps) = (
            events(span, "grammar_compile"),
            events(span, "jump_forward"),
        );
        let forced = &span["attributes"]["llm.grammar.forced_tokens"];
        if seed == 3 {
            assert!(compiled.is_empty() && jumps.is_empty(), "{span}");
            assert_eq!(*forced, Value::Null);
            continue;
        }
        assert_eq!(compiled.len(), 1, "{span}");
        let attributes = &compiled[0]["attributes"];
        assert_eq!(attributes["llm.grammar.cached"], seed == 2);
        let took = attributes["llm.grammar.compile_time"].as_f64().unwrap();
        assert!(took >= 0.0 && (seed == 2 || took > 0.0), "{span}");
        // The text begins with forced tokens, and everything but the choice may be forced.
        let tokens = |jump: &&Value| {
            let tokens = &jump["attributes"]["llm.grammar.forced_tokens"];
            tokens.as_u64().unwrap()
        };
        assert!(!jumps.is_empty(), "{span}");
        assert_eq!(forced.as_u64(), Some(jumps.iter().map(tokens).sum()));
    }
}
