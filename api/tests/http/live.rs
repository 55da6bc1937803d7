//! `/live`: the stream of snapshots.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use reqwest::Response;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{COMPLETIONS, ok};

/// A stream of `/live` as its events.
struct Watched {
    response: Response,
    text: String,
}

impl Watched {
    async fn open(server: &TestServer, key: &str) -> Self {
        let request = reqwest::Client::new().get(format!("{}/live", server.url));
        let response = request.header("x-api-key", key).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let kind = &response.headers()["content-type"];
        assert!(kind.to_str().unwrap().starts_with("text/event-stream"));
        Self {
            response,
            text: String::new(),
        }
    }

    /// The next event and its name; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (name, data) = event.split_once('\n').unwrap();
                let name = name.strip_prefix("event: ").unwrap().to_owned();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                self.text = rest.to_owned();
                return Some((name, data));
            }
            let bytes = self.response.chunk().await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// The first event `name` that `is` wanted.
    async fn find(&mut self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let (given, data) = self.next().await.expect("the stream goes on");
                if given == name && is(&data) {
                    return data;
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        found.unwrap_or_else(|_| panic!("no such {name}"))
    }
}

fn slow() -> Behaviour {
    Behaviour {
        step: Duration::from_millis(5),
        endless: true,
        ..Behaviour::default()
    }
}

fn server(config: HttpConfig) -> TestServer {
    TestServer::start(slow(), EngineConfig::default(), config)
}

#[tokio::test]
async fn a_viewer_sees_requests_run_and_what_they_leave_in_the_cache() {
    let server = server(HttpConfig::default());
    let mut viewer = Watched::open(&server, "").await;
    let (first, hello) = viewer.next().await.unwrap();
    assert_eq!((first.as_str(), &hello["model"]), ("hello", &json!(MODEL)));
    assert_eq!(hello["text"], false);
    let idle = viewer.find("snapshot", |_| true).await;
    assert_eq!(
        (&idle["state"], &idle["running"]),
        (&json!("ready"), &json!(0))
    );
    let body = json!({"prompt": "abcdefgh", "max_tokens": 100});
    let (_, busy) = tokio::join!(ok(&server, COMPLETIONS, &body), async {
        let busy = viewer.find("snapshot", |s| s["running"] == 1).await;
        assert_eq!(busy["requests"][0][1], 9, "the prompt with its first token");
        assert_eq!(busy["batch"][0][0], busy["requests"][0][0]);
        viewer.find("snapshot", |s| s["steps"]["count"] != 0).await
    });
    let steps = &busy["steps"];
    let time = |name: &str| steps[name].as_f64().unwrap();
    assert!(
        time("execute") >= time("forward") && time("forward") > 1.0,
        "{steps}"
    );
    let after = viewer
        .find("snapshot", |s| s["counters"]["finished"] == 1)
        .await;
    let kv = |name: &str| after["kv"][name].as_u64().unwrap();
    assert_eq!(
        kv("free") + kv("evictable") + kv("protected") + kv("held"),
        kv("total")
    );
    let mut another = Watched::open(&server, "").await;
    // The first event may show an earlier state of the tree.
    let whole = |tree: &Value| tree["tokens"].as_u64() > Some(100);
    let tree = another.find("tree", whole).await;
    let shown = tree["shown"].as_array().unwrap();
    assert_eq!(shown.len(), tree["nodes"], "{tree}");
    let tokens: u64 = shown.iter().map(|node| node[2].as_u64().unwrap()).sum();
    assert_eq!(tree["tokens"], tokens);
}

#[tokio::test]
async fn snapshots_come_five_times_a_second_and_once_where_nothing_happens() {
    let server = server(HttpConfig::default());
    let mut viewer = Watched::open(&server, "").await;
    // Times when the server made the snapshots: on a busy machine they arrive late.
    let time = |snapshot: Value| snapshot["time"].as_f64().unwrap();
    let first = time(viewer.find("snapshot", |_| true).await);
    let second = time(viewer.find("snapshot", |_| true).await);
    assert!(second - first > 0.5, "nothing is new: {first}, {second}");
    let body = json!({"prompt": "a", "max_tokens": 200});
    let (_, snapshots) = tokio::join!(ok(&server, COMPLETIONS, &body), async {
        let begin = viewer.find("snapshot", |s| s["running"] == 1).await;
        let mut times = vec![time(begin)];
        while times.len() < 6 {
            times.push(time(viewer.find("snapshot", |_| true).await));
        }
        times
    });
    // One that is late is closer to the next. Without a rate there would be one after each step of some
    // milliseconds.
    assert!(snapshots[5] - snapshots[0] > 0.7, "{snapshots:?}");
}

#[tokio::test]
async fn only_an_administrator_watches_and_only_with_a_key_there_is_text() {
    let get = async |server: &TestServer, path: &str, key: &str| {
        let request = reqwest::Client::new().get(format!("{}{path}", server.url));
        let response = request.header("x-api-key", key).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap())
    };
    let open = server(HttpConfig::default());
    let (status, answer) = get(&open, "/live/prefix?node=1", "").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (403, &json!("key_required"))
    );

    let server = server(HttpConfig {
        admin_api_key: "chief".parse().ok(),
        ..HttpConfig::default()
    });
    for key in ["", "wrong"] {
        assert_eq!(get(&server, "/live", key).await.0, 401);
        assert_eq!(get(&server, "/live/prefix?node=1", key).await.0, 401);
    }
    for node in ["/live/prefix", "/live/prefix?node=x", "/live/prefix?node=1"] {
        let (status, answer) = get(&server, node, "chief").await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!("node")),
            "{answer}"
        );
    }
    ok(
        &server,
        COMPLETIONS,
        &json!({"prompt": "abc", "max_tokens": 2, "temperature": 0}),
    )
    .await;
    let mut viewer = Watched::open(&server, "chief").await;
    assert_eq!(viewer.next().await.unwrap().1["text"], true);
    let tree = viewer.find("tree", |tree| tree["nodes"] != 0).await;
    let node = tree["shown"].as_array().unwrap().last().unwrap();
    let path = format!("/live/prefix?node={}", node[0].as_str().unwrap());
    let (status, prefix) = get(&server, &path, "chief").await;
    assert_eq!(status, 200, "{prefix}");
    let text = prefix["text"].as_str().unwrap();
    assert!(text.starts_with("<start>abcd"), "{text}");
    assert_eq!(prefix["tokens"], node[2]);
}

#[tokio::test]
async fn the_streams_end_when_the_server_drains() {
    let server = server(HttpConfig::default());
    let mut viewer = Watched::open(&server, "").await;
    viewer.find("snapshot", |_| true).await;
    server.state.start_draining();
    let end = async { while viewer.next().await.is_some() {} };
    let ended = tokio::time::timeout(Duration::from_secs(5), end).await;
    assert!(ended.is_ok(), "a viewer would hold the server");
}
