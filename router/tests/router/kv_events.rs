//! Routing by what workers say that they have cached.

use hearth_events::{
    BlockHash, BlockStored, EventBatch, ExtraKey, KvEvent, KvEventsConfig, Publisher,
};
use hearth_router::{KvEventsMode, PolicyKind, RouterConfig};
use serde_json::{Value, json};

use crate::fake::{Fake, Reply, Seen};
use crate::harness::{Router, config, regular, until};

/// A worker that publishes, with one token for each byte of a text.
struct Publishing {
    fake: Fake,
    publisher: Publisher,
}

impl Publishing {
    fn start(name: &str) -> Self {
        Self::with_isolation(name, false)
    }

    /// With isolated caches, the key `key-of-X` has the namespace `key:1:X:`.
    fn with_isolation(name: &str, isolated: bool) -> Self {
        let any = "tcp://*:0".to_owned();
        let settings = KvEventsConfig {
            endpoint: any.clone(),
            replay_endpoint: Some(any),
            topic: "kv".to_owned(),
            ..KvEventsConfig::default()
        };
        let publisher = Publisher::start(&settings).unwrap();
        let fake = Fake::start(name);
        let info = json!({"model": name, "kv_events": {
            "publisher": "zmq",
            "endpoint": publisher.endpoint().to_string(),
            "replay_endpoint": publisher.replay_endpoint().map(ToString::to_string),
            "topic": "kv",
            "block_size": 1,
        }, "config": {"cache_isolation": if isolated { "key" } else { "none" }}});
        let own = json!({"worker": name});
        fake.answer(move |seen| {
            Reply::json(
                200,
                match seen.path.as_str() {
                    "/server_info" => info.clone(),
                    "/tokenize" if isolated => {
                        let key = seen.headers.get("authorization").unwrap();
                        let (_, name) = key.split_once("Bearer key-of-").unwrap();
                        let namespace = format!("key:{}:{name}:", name.len());
                        json!({"tokens": tokens(&question(seen)), "cache_namespace": namespace})
                    }
                    "/tokenize" => json!({"tokens": tokens(&question(seen))}),
                    _ => own.clone(),
                },
            )
        });
        Self { fake, publisher }
    }

    fn publish(&self, event: KvEvent) {
        let events = vec![event];
        assert!(self.publisher.publish(EventBatch { ts: 0.0, events }));
    }

    fn asked(&self) -> usize {
        let seen = self.fake.seen();
        seen.iter().filter(|seen| seen.path == "/tokenize").count()
    }
}

/// The text of a request to `/tokenize`.
fn question(seen: &Seen) -> String {
    let body = seen.json();
    let prompt = &body["prompt"];
    let text = match prompt {
        Value::Null => &body["messages"][0]["content"],
        prompt => prompt,
    };
    text.as_str().unwrap().to_owned()
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn stored(text: &str) -> KvEvent {
    KvEvent::BlockStored(BlockStored {
        block_hashes: (1..).take(text.len()).map(BlockHash).collect(),
        token_ids: tokens(text),
        block_size: 1,
        medium: Some("GPU".to_owned()),
        ..BlockStored::default()
    })
}

fn cache_aware() -> RouterConfig {
    RouterConfig {
        policy: PolicyKind::CacheAware,
        ..config()
    }
}

async fn knows(router: &Router, worker: &Fake, blocks: u64) {
    until("the router knows the blocks", async || {
        let state = router.worker(worker).await["kv_events"].clone();
        state == json!({"blocks": blocks, "complete": true})
    })
    .await;
}

#[actix_web::test]
async fn requests_go_where_their_prefix_is() {
    let [a, b] = ["a", "b"].map(Publishing::start);
    // Published before the router starts: it asks for what it has missed.
    b.publish(stored("a system prompt"));
    let router = regular(&[&a.fake, &b.fake], cache_aware()).await;
    knows(&router, &a.fake, 0).await;
    knows(&router, &b.fake, 15).await;
    for _ in 0..8 {
        assert_eq!(router.who("a system prompt and more").await, "b");
    }
    let generate = json!({"text": "a system prompt, too"});
    let answer: Value = router
        .post("/generate", &generate)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(answer["worker"], "b");
    let by_tokens = json!({"input_ids": tokens("a system pr")});
    let answer: Value = router
        .post("/generate", &by_tokens)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(answer["worker"], "b");
    assert_eq!(a.asked() + b.asked(), 9);
    // The prefix moves, and the guess would still say b.
    b.publish(KvEvent::AllBlocksCleared);
    a.publish(stored("a system prompt"));
    knows(&router, &b.fake, 0).await;
    knows(&router, &a.fake, 15).await;
    for _ in 0..8 {
        assert_eq!(router.who("a system prompt and more").await, "a");
    }
}

#[actix_web::test]
async fn keys_with_caches_of_their_own_are_told_apart() {
    let [a, b] = ["a", "b"].map(|name| Publishing::with_isolation(name, true));
    let stored_by = |text: &str, namespace: &str| {
        let mut event = stored(text);
        if let KvEvent::BlockStored(stored) = &mut event {
            let mut keys = vec![None; text.len()];
            keys[0] = Some(vec![ExtraKey::Text(namespace.to_owned())]);
            stored.extra_keys = Some(keys);
        }
        event
    };
    a.publish(stored_by("a system prompt", "key:3:ann:"));
    b.publish(stored_by("a system prompt", "key:3:bob:"));
    let router = regular(&[&a.fake, &b.fake], cache_aware()).await;
    knows(&router, &a.fake, 15).await;
    knows(&router, &b.fake, 15).await;
    let ask = async |key: &str, path: &str, body: Value| {
        let request = router.client.post(format!("{}{path}", router.url));
        let request = request.bearer_auth(format!("key-of-{key}")).json(&body);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        answer["worker"].as_str().unwrap().to_owned()
    };
    for (key, worker) in [("ann", "a"), ("bob", "b"), ("ann", "a")] {
        let text = json!({"text": "a system prompt and more"});
        assert_eq!(ask(key, "/generate", text).await, worker);
        let by_tokens = json!({"input_ids": tokens("a system pr")});
        assert_eq!(ask(key, "/generate", by_tokens).await, worker);
    }
}

#[actix_web::test]
async fn without_events_the_router_guesses_and_asks_for_no_tokens() {
    let [a, b] = ["a", "b"].map(Publishing::start);
    let off = RouterConfig {
        kv_events: KvEventsMode::Off,
        ..cache_aware()
    };
    let router = regular(&[&a.fake, &b.fake], off).await;
    let first = router.who("a system prompt").await;
    for _ in 0..8 {
        assert_eq!(router.who("a system prompt and more").await, first);
    }
    assert_eq!(a.asked() + b.asked(), 0);
    assert_eq!(router.worker(&a.fake).await["kv_events"], Value::Null);
}

#[actix_web::test]
async fn a_worker_that_does_not_tokenise_disturbs_nothing() {
    let a = Publishing::start("a");
    let script =
        json!({"model": "a", "kv_events": {"endpoint": a.publisher.endpoint().to_string()}});
    a.fake.answer(move |seen| match seen.path.as_str() {
        "/server_info" => Reply::json(200, script.clone()),
        "/tokenize" => Reply::json(404, json!({})),
        _ => Reply::json(200, json!({"worker": "a"})),
    });
    let router = regular(&[&a.fake], cache_aware()).await;
    until("the worker is followed", async || {
        router.worker(&a.fake).await["kv_events"]["complete"] == false
    })
    .await;
    assert_eq!(router.who("a prompt").await, "a");
}
