//! Programs: the in-process back end, the back ends over HTTP, and `/v1/programs`.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_api::programs::EngineBackend;
use hearth_client::Client;
use hearth_client::backends::{AnthropicApi, ChatApi, CompletionsApi, Server};
use hearth_client::lang::{ChoiceMethod, Error, Frontend, State, gen_int, generate, select, trace};
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer, served};
use super::random::{Size, naive, program, run};
use super::refusals::refused;
use super::{chunks, ok, post};

const PROGRAMS: &str = "/v1/programs";

fn client(server: &TestServer) -> Client {
    Client::new(&server.url).unwrap()
}

fn endless() -> TestServer {
    let behaviour = Behaviour {
        endless: true,
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default())
}

/// A program of all that every back end for texts can do.
async fn alphabet(s: &mut State) -> Result<(String, Vec<String>), Error> {
    s.extend("abc")
        .extend(generate("x").max_tokens(3).temperature(0.0));
    let mut forks = s.fork(2);
    for (fork, stop) in forks.iter_mut().zip(["j", "k"]) {
        fork.extend(generate("y").stop(stop).max_tokens(16).temperature(0.0));
    }
    s.join(forks);
    let y = s.var("y").texts().await?;
    let y = y.into_iter().collect::<Result<_, _>>()?;
    Ok((s.text().await?, y))
}

#[tokio::test]
async fn texts_are_the_same_on_every_back_end() {
    let server = TestServer::plain();
    let engine = EngineBackend::new(server.state.loaded().unwrap().clone());
    let frontends = [
        Frontend::new(engine),
        Frontend::new(Server::new(client(&server))),
        Frontend::new(CompletionsApi::new(client(&server), MODEL)),
        Frontend::new(CompletionsApi::new(client(&server), MODEL)).speculating(24),
    ];
    for frontend in frontends {
        for frontend in [frontend.clone(), frontend.streaming()] {
            let (text, y) = alphabet(&mut frontend.state()).await.unwrap();
            assert_eq!(text, "abcdef", "{frontend:?}");
            assert_eq!(y, ["ghi", "ghij"], "{frontend:?}");
        }
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn conversations_are_the_same_on_every_back_end() {
    let server = TestServer::plain();
    let engine = EngineBackend::new(server.state.loaded().unwrap().clone());
    let frontends = [
        Frontend::new(engine),
        Frontend::new(Server::new(client(&server))),
        Frontend::new(ChatApi::new(client(&server), MODEL)),
        Frontend::new(AnthropicApi::new(client(&server), MODEL)),
    ];
    for frontend in frontends {
        for frontend in [frontend.clone(), frontend.streaming()] {
            let mut s = frontend.state();
            s.user("hello");
            s.assistant(generate("answer").max_tokens(4).temperature(0.0));
            assert_eq!(s.get_text("answer").await.unwrap(), "abcd", "{frontend:?}");
            assert_eq!(s.messages().await.unwrap().len(), 2);
            let meta = s.meta("answer").await.unwrap();
            assert_eq!(meta.usage.completion_tokens, 4, "{frontend:?}");
        }
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn selections_and_grammars_are_the_same_in_process_and_over_http() {
    let server = TestServer::plain();
    let engine = EngineBackend::new(server.state.loaded().unwrap().clone());
    let mut scores = Vec::new();
    for (frontend, unconditional) in [
        (Frontend::new(engine), true),
        (Frontend::new(Server::new(client(&server))), true),
        (
            Frontend::new(CompletionsApi::new(client(&server), MODEL)),
            false,
        ),
    ] {
        let mut s = frontend.state();
        s += "abc";
        s += select("next", ["xyz", "def", "dxx"]);
        assert_eq!(s.get_text("next").await.unwrap(), "def", "{frontend:?}");
        scores.push(s.meta("next").await.unwrap().scores);
        let greedy = select("more", ["gzz", "aaa"]);
        s += greedy.method(ChoiceMethod::GreedyTokenSelection);
        assert_eq!(s.get_text("more").await.unwrap(), "gzz", "{frontend:?}");
        if unconditional {
            s += "abc";
            let last = select("last", ["xyz", "def"]);
            s += last.method(ChoiceMethod::UnconditionalLikelihoodNormalized);
            assert_eq!(s.get_text("last").await.unwrap(), "def", "{frontend:?}");
            s += gen_int("number").max_tokens(4);
            s.get::<i64>("number").await.unwrap();
        } else {
            s += gen_int("number");
            let error = s.get_text("number").await.unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
    }
    for other in &scores[1..] {
        for (one, other) in scores[0].iter().zip(other) {
            assert!((one - other).abs() < 1e-3, "{scores:?}");
        }
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn dropped_programs_leave_nothing_running() {
    let behaviour = Behaviour {
        endless: true,
        step: Duration::from_millis(5),
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let engine = EngineBackend::new(server.state.loaded().unwrap().clone());
    for frontend in [
        Frontend::new(engine),
        Frontend::new(Server::new(client(&server))),
    ] {
        let mut s = frontend.streaming().state();
        s += "abc";
        s += generate("x").max_tokens(400);
        assert!(s.stream("x").next().await.unwrap().is_ok());
        drop(s);
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn a_random_program_gives_what_a_naive_interpreter_gives() {
    let size = Size {
        statements: 8,
        max_tokens: 6,
        states: 5,
    };
    let behaviour = Behaviour {
        kv_slots: 512,
        ..Behaviour::default()
    };
    let without_cache = EngineConfig {
        prefix_cache: false,
        ..EngineConfig::default()
    };
    let plain = EngineBackend::new(served(behaviour, without_cache));
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let engine = EngineBackend::new(server.state.loaded().unwrap().clone());
    let http = Server::new(client(&server));
    for seed in 0..60 {
        let graph = program(seed, size);
        let expected = naive(&plain, &graph).await.unwrap();
        for frontend in [
            Frontend::new(engine.clone()),
            Frontend::new(http.clone()).streaming(),
        ] {
            let given = run(&frontend, &graph).await.unwrap();
            assert_eq!(given, expected, "{seed} on {frontend:?}: {}", graph.dot());
        }
        let answer = ok(&server, PROGRAMS, &json!(graph)).await;
        let states = answer["states"].as_array().unwrap();
        let texts: Vec<&str> = states.iter().map(|s| s["text"].as_str().unwrap()).collect();
        assert_eq!(texts, expected.0, "{seed}: {answer}");
        for (name, value) in &expected.1 {
            assert_eq!(
                states[0]["variables"][name],
                value.to_json(),
                "{seed}: {name}"
            );
        }
    }
    server.wait_until_idle().await;
}

fn traced() -> Value {
    let graph = trace(|s| {
        s.extend("abc")
            .extend(generate("x").max_tokens(2).temperature(0.0));
        let mut forks = s.fork(2);
        for fork in &mut forks {
            let x = fork.var("x");
            fork.extend("-")
                .extend(x)
                .extend(generate("y").max_tokens(1).temperature(0.0));
        }
        s.join(forks);
        s.extend(select("z", ["f", "a"]));
    });
    json!(graph)
}

#[tokio::test]
async fn a_traced_program_is_served() {
    let server = TestServer::plain();
    let answer = ok(&server, PROGRAMS, &traced()).await;
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("program"), &json!(MODEL))
    );
    let own = &answer["states"][0];
    assert_eq!(own["text"], "abcdef", "{answer}");
    assert_eq!(
        own["variables"],
        json!({"x": "de", "y": ["f", "f"], "z": "f"})
    );
    assert_eq!(own["meta"]["x"]["finish_reason"], "length");
    assert_eq!(own["meta"]["z"]["scores"].as_array().unwrap().len(), 2);
    assert_eq!(answer["states"][1]["text"], "abcde-def", "{answer}");
    assert!(
        answer["usage"]["completion_tokens"].as_u64().unwrap() >= 4,
        "{answer}"
    );
    server.wait_until_idle().await;
}

#[tokio::test]
async fn variables_of_a_served_program_are_streamed() {
    let server = TestServer::plain();
    let mut body = traced();
    let whole = ok(&server, PROGRAMS, &body).await;
    body["stream"] = json!(true);
    let events = chunks(&server, PROGRAMS, &body).await;
    let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
    let x = of("text").filter(|event| event["name"] == "x");
    let x: String = x.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(x, "de");
    assert_eq!(of("value").count(), 5);
    let done = &events[events.len() - 1];
    assert_eq!(
        done["program"]["states"][0]["text"],
        whole["states"][0]["text"]
    );
}

#[tokio::test]
async fn a_state_that_fails_is_in_the_answer_and_the_others_go_on() {
    let server = endless();
    let body = json!({"nodes": [
        {"op": "text", "text": "abc"},
        {"op": "fork", "into": [1, 2]},
        {"op": "gen", "state": 1, "name": "x", "max_tokens": 5000},
        {"op": "gen", "state": 2, "name": "x", "max_tokens": 2, "temperature": 0},
        {"op": "join", "from": [1, 2]},
        {"op": "gen", "name": "z", "max_tokens": 2, "temperature": 0},
    ]});
    let answer = ok(&server, PROGRAMS, &body).await;
    let states = &answer["states"];
    assert_eq!(states[0]["variables"]["z"], "de", "{answer}");
    assert_eq!(states[0]["variables"]["x"][1], "de", "{answer}");
    let message = states[1]["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("max_tokens") && message.contains("5000"),
        "{message}"
    );
    assert_eq!(states[1]["error"]["type"], "invalid_request_error");
    let mut body = body;
    body["stream"] = json!(true);
    let events = chunks(&server, PROGRAMS, &body).await;
    let failed: Vec<_> = events.iter().filter(|e| e["type"] == "failed").collect();
    assert_eq!((failed.len(), &failed[0]["state"]), (1, &json!(1)));
    server.wait_until_idle().await;
}

#[tokio::test]
async fn a_faulty_program_is_refused_with_field_bound_and_value() {
    let server = TestServer::plain();
    let node = |node: Value| json!({"nodes": [{"op": "text", "text": "a"}, node]});
    let cases: [(Value, &str, &[&str]); 24] = [
        (
            json!({"nodes": []}),
            "nodes",
            &["between 1 and 512 nodes", "0"],
        ),
        (
            json!({"nodes": vec![json!({"op": "end"}); 600]}),
            "nodes",
            &["512", "600"],
        ),
        (
            node(json!({"op": "think"})),
            "nodes[1].op",
            &["gen, select", "\"think\""],
        ),
        (node(json!({})), "nodes[1].op", &["one of text", "\"\""]),
        (
            node(json!({"op": "gen"})),
            "nodes[1].name",
            &["must be given"],
        ),
        (
            node(json!({"op": "gen", "name": ""})),
            "nodes[1].name",
            &["between 1 and 256", "0 bytes"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "temperature": 3})),
            "nodes[1].temperature",
            &["between 0 and 2", "3"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "max_tokens": 0})),
            "nodes[1].max_tokens",
            &["at least 1", "0"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "max_tokens": 40000})),
            "nodes[1].max_tokens",
            &["at most 32768", "40000"],
        ),
        (
            json!({"nodes": vec![json!({"op": "gen", "name": "x", "max_tokens": 20000}); 2]}),
            "nodes[1].max_tokens",
            &["at most 32768 in all generations", "40000"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "stop": ""})),
            "nodes[1].stop[0]",
            &["between 1 and 1024 bytes", "0 bytes"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "regex": "("})),
            "nodes[1].regex",
            &["regex"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "regex": "a", "json_schema": {}})),
            "nodes[1].json_schema",
            &["must not be given together"],
        ),
        (
            node(json!({"op": "gen", "name": "x", "choices": ["a"]})),
            "nodes[1].choices",
            &["left out with the op \"gen\""],
        ),
        (
            node(json!({"op": "select", "name": "x", "choices": []})),
            "nodes[1].choices",
            &["between 1 and 64", "0"],
        ),
        (
            node(json!({"op": "select", "name": "x", "choices": vec!["a"; 65]})),
            "nodes[1].choices",
            &["between 1 and 64", "65"],
        ),
        (
            node(json!({"op": "select", "name": "x", "choices": ["a", "a"]})),
            "nodes[1].choices",
            &["differ from each other"],
        ),
        (
            node(json!({"op": "select", "name": "x", "choices": ["a"], "method": "best"})),
            "nodes[1].method",
            &["greedy_token_selection", "\"best\""],
        ),
        (
            node(json!({"op": "end", "state": 3})),
            "nodes[1].state",
            &["an earlier fork", "3"],
        ),
        (
            node(json!({"op": "fork", "into": [0]})),
            "nodes[1].into",
            &["below 64", "0"],
        ),
        (
            node(json!({"op": "fork", "into": [64]})),
            "nodes[1].into",
            &["below 64", "64"],
        ),
        (
            node(json!({"op": "join", "from": [0]})),
            "nodes[1].from",
            &["other states", "0"],
        ),
        (
            node(json!({"op": "text", "text": [{"var": "y"}]})),
            "nodes[1].text",
            &["an earlier node of state 0", "\"y\""],
        ),
        (
            node(json!({"op": "begin", "role": "cat"})),
            "nodes[1].role",
            &["assistant", "\"cat\""],
        ),
    ];
    for (body, param, words) in cases {
        refused(&server, PROGRAMS, body, param, words).await;
    }
    let unknown = node(json!({"op": "end", "colour": 1}));
    refused(
        &server,
        PROGRAMS,
        unknown,
        "nodes[1].colour",
        &["not a field"],
    )
    .await;
    let (status, answer) = post(&server, PROGRAMS, &json!({"nodes": [], "model": "other"})).await;
    assert_eq!(status, 404, "{answer}");
    server.wait_until_idle().await;
}

#[tokio::test]
async fn random_bodies_never_break_the_server() {
    let server = TestServer::plain();
    let mut numbers = super::random::Numbers(3);
    let values = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1e9),
        json!("a"),
        json!([]),
        json!(["a", {"var": "x"}]),
        json!({"var": "x", "state": 7}),
        json!([1, 1]),
        json!("gen"),
        json!({}),
        json!([[0]]),
        json!(true),
    ];
    let fields = [
        "op",
        "state",
        "text",
        "name",
        "max_tokens",
        "stop",
        "temperature",
        "regex",
        "json_schema",
        "choices",
        "method",
        "role",
        "into",
        "from",
        "mode",
    ];
    for _ in 0..400 {
        let mut body = traced();
        let nodes = body["nodes"].as_array_mut().unwrap();
        for _ in 0..1 + numbers.below(3) {
            let node = numbers.below(nodes.len());
            let field = fields[numbers.below(fields.len())];
            nodes[node][field] = values[numbers.below(values.len())].clone();
        }
        if numbers.below(4) == 0 {
            let node = numbers.below(nodes.len());
            nodes.remove(node);
        }
        let (status, answer) = post(&server, PROGRAMS, &body).await;
        assert!([200, 400].contains(&status), "{body}: {answer}");
        assert!(
            status == 200 || answer["error"]["message"].is_string(),
            "{answer}"
        );
    }
    server.wait_until_idle().await;
    ok(&server, PROGRAMS, &traced()).await;
}

#[tokio::test]
async fn a_full_queue_is_waited_for() {
    let config = EngineConfig {
        max_queue: 1,
        max_running: 1,
        ..EngineConfig::default()
    };
    let behaviour = Behaviour {
        step: Duration::from_millis(1),
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, config, HttpConfig::default());
    let http = Server::new(client(&server));
    let retry = hearth_client::lang::Retry {
        attempts: 40,
        first_wait: Duration::from_millis(5),
        longest_wait: Duration::from_millis(20),
    };
    let frontend = Frontend::new(http).retrying(retry);
    let mut s = frontend.state();
    s += "abc";
    let mut forks = s.fork(6);
    for fork in &mut forks {
        *fork += generate("x").max_tokens(8).temperature(0.0);
    }
    s.join(forks);
    for x in s.var("x").texts().await.unwrap() {
        assert_eq!(x.unwrap(), "defghijk");
    }
}
