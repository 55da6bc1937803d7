use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::config::KvEventsConfig;
use crate::event::{BlockHash, BlockRemoved, BlockStored};
use crate::publisher::Publisher;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

fn stored(hash: u64) -> Vec<KvEvent> {
    vec![KvEvent::BlockStored(BlockStored {
        block_hashes: vec![BlockHash(hash)],
        token_ids: vec![1],
        block_size: 1,
        ..BlockStored::default()
    })]
}

fn batch(events: Vec<KvEvent>) -> EventBatch {
    EventBatch { ts: 1.0, events }
}

/// A reader in the background, and what it knows.
struct Reader {
    updates: Arc<Mutex<Vec<Update>>>,
    task: JoinHandle<()>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    fn new(endpoint: &Endpoint, replay: Option<&Endpoint>, topic: &str) -> Self {
        let updates = Arc::new(Mutex::new(Vec::new()));
        let source = Source {
            endpoint: endpoint.with_host("127.0.0.1"),
            replay: replay.map(|replay| replay.with_host("127.0.0.1")),
            topic: topic.to_owned(),
        };
        let kept = Arc::clone(&updates);
        let task = tokio::spawn(async move {
            loop {
                follow(&source, |update| kept.lock().unwrap().push(update)).await;
                sleep(Duration::from_millis(50)).await;
            }
        });
        Self { updates, task }
    }

    /// The hashes that are cached and whether they are all, by the updates so far.
    fn state(&self) -> (Vec<u64>, Option<bool>) {
        let (mut hashes, mut complete) = (Vec::new(), None);
        for update in self.updates.lock().unwrap().iter() {
            match update {
                Update::Disconnected => (hashes, complete) = (Vec::new(), None),
                Update::Lost => hashes.clear(),
                Update::Following { complete: all } => complete = Some(*all),
                Update::Events(events) => {
                    for event in events {
                        match event {
                            KvEvent::BlockStored(stored) => {
                                hashes.extend(stored.block_hashes.iter().map(|hash| hash.0));
                            }
                            KvEvent::BlockRemoved(removed) => {
                                hashes.retain(|&hash| {
                                    !removed.block_hashes.contains(&BlockHash(hash))
                                });
                            }
                            KvEvent::AllBlocksCleared => hashes.clear(),
                            KvEvent::Other => {}
                        }
                    }
                }
            }
        }
        (hashes, complete)
    }

    async fn sees(&self, hashes: &[u64], complete: Option<bool>) {
        let started = Instant::now();
        while self.state() != (hashes.to_vec(), complete) {
            let state = self.state();
            assert!(
                started.elapsed().as_secs() < 20,
                "{state:?} and not {hashes:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn publisher(replay: bool, buffer_steps: usize) -> Publisher {
    let any = "tcp://*:0".to_owned();
    let config = KvEventsConfig {
        endpoint: any.clone(),
        replay_endpoint: replay.then_some(any),
        buffer_steps,
        topic: "kv@1".to_owned(),
        ..KvEventsConfig::default()
    };
    Publisher::start(&config).unwrap()
}

#[test]
fn a_reader_that_comes_late_knows_all_and_follows() {
    block_on(async {
        let publisher = publisher(true, 2);
        let (endpoint, replay) = (publisher.endpoint(), publisher.replay_endpoint());
        let early = Reader::new(endpoint, replay, "");
        early.sees(&[], Some(true)).await;
        for hash in 0..6 {
            assert!(publisher.publish(batch(stored(hash))));
        }
        let removed = BlockRemoved {
            block_hashes: vec![BlockHash(1), BlockHash(5)],
            medium: None,
        };
        publisher.publish(batch(vec![KvEvent::BlockRemoved(removed)]));
        early.sees(&[0, 2, 3, 4], Some(true)).await;
        let late = Reader::new(endpoint, replay, "kv@");
        late.sees(&[0, 2, 3, 4], Some(true)).await;
        publisher.publish(batch(stored(9)));
        late.sees(&[0, 2, 3, 4, 9], Some(true)).await;
        early.sees(&[0, 2, 3, 4, 9], Some(true)).await;
        // Another topic and no replay: nothing arrives, and nothing is known.
        let other = Reader::new(endpoint, None, "other");
        other.sees(&[], Some(false)).await;
        publisher.publish(batch(vec![KvEvent::AllBlocksCleared]));
        late.sees(&[], Some(true)).await;
        other.sees(&[], Some(false)).await;
        drop(publisher);
        late.sees(&[], None).await;
    });
}

#[test]
fn a_reader_without_replay_knows_everything_only_after_a_clear() {
    block_on(async {
        let publisher = publisher(false, 10);
        publisher.publish(batch(stored(1)));
        let reader = Reader::new(publisher.endpoint(), None, "");
        reader.sees(&[], Some(false)).await;
        // The subscription may arrive after a batch.
        while reader.state().0.is_empty() {
            publisher.publish(batch(stored(2)));
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(reader.state().1, Some(false));
        publisher.publish(batch([vec![KvEvent::AllBlocksCleared], stored(3)].concat()));
        reader.sees(&[3], Some(true)).await;
    });
}

/// A publisher that sends exactly these numbers, and replays those that `kept` has.
async fn gaps(sent: &[u64], kept: Option<Vec<u64>>) -> Reader {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let replays = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = |listener: &TcpListener| {
        let any = Endpoint::parse("tcp://*:0").unwrap();
        any.with_port(listener.local_addr().unwrap().port())
    };
    let (endpoint, replay) = (at(&listener), at(&replays));
    let payload = |number: u64| batch(stored(number)).encode().unwrap();
    let has_replay = kept.is_some();
    tokio::spawn(async move {
        let kept = kept.unwrap_or_default();
        let mut first = true;
        loop {
            let mut stream = replays.accept().await.unwrap().0;
            zmtp::greet(&mut stream, "ROUTER", &["REQ"]).await.unwrap();
            let Received::Message(asked) = zmtp::read(&mut stream, 100).await.unwrap() else {
                panic!();
            };
            let start = u64::from_be_bytes(asked[1][..].try_into().unwrap());
            // Nothing has been published before the first request.
            for &number in kept.iter().filter(|&&number| number >= start && !first) {
                let bytes = number.to_be_bytes();
                let frames = [b"", &b"kv"[..], &bytes, &payload(number)];
                zmtp::write(&mut stream, &frames).await.unwrap();
            }
            first = false;
            let end = [b"", &b""[..], &[0xff; 8], b""];
            zmtp::write(&mut stream, &end).await.unwrap();
        }
    });
    let sent = sent.to_vec();
    tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        zmtp::greet(&mut stream, "PUB", &["SUB"]).await.unwrap();
        zmtp::read(&mut stream, 100).await.unwrap();
        for number in sent {
            let frames = [&b"kv"[..], &number.to_be_bytes(), &payload(number)];
            zmtp::write(&mut stream, &frames).await.unwrap();
        }
        sleep(Duration::from_secs(60)).await;
    });
    Reader::new(&endpoint, has_replay.then_some(&replay), "")
}

#[test]
fn missed_batches_are_asked_for_and_if_they_are_gone_everything_is_forgotten() {
    block_on(async {
        let replayed = gaps(&[0, 1, 4, 5], Some(vec![2, 3, 4])).await;
        replayed.sees(&[0, 1, 2, 3, 4, 5], Some(true)).await;
        let gone = gaps(&[0, 1, 4, 5], Some(vec![3])).await;
        gone.sees(&[3, 4, 5], Some(false)).await;
        let none = gaps(&[0, 1, 4, 5], None).await;
        none.sees(&[4, 5], Some(false)).await;
    });
}
