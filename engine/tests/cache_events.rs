//! Tests of the changes that observers of the prefix cache see.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{Fixture, answer, prompt};
use hearth_engine::{CacheChange, CacheObserver, EngineConfig, PageChange};

const PAGE: usize = 4;

fn config() -> EngineConfig {
    EngineConfig {
        page_size: PAGE,
        cache_changes: true,
        ..EngineConfig::default()
    }
}

/// The pages that an observer knows: each with the page before it and its tokens.
type Pages = HashMap<u64, (Option<u64>, Vec<u32>)>;

/// Applies all changes, and has room for as many reports as the counter says.
#[derive(Debug)]
struct Reader {
    pages: Arc<Mutex<Pages>>,
    room: Arc<AtomicUsize>,
}

impl CacheObserver for Reader {
    fn has_room(&mut self) -> bool {
        self.room.load(Ordering::SeqCst) > 0
    }

    fn observe(&mut self, changes: Vec<CacheChange>) {
        self.room.fetch_sub(1, Ordering::SeqCst);
        let mut pages = self.pages.lock().unwrap();
        for change in changes {
            match change {
                CacheChange::Cleared => pages.clear(),
                CacheChange::Pages(_, PageChange::Removed { hashes }) => {
                    hashes.iter().for_each(|hash| drop(pages.remove(hash)));
                }
                CacheChange::Pages(
                    _,
                    PageChange::Stored {
                        parent,
                        hashes,
                        tokens,
                        ..
                    },
                ) => {
                    let mut before = parent;
                    for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(PAGE)) {
                        pages.insert(hash, (before, tokens.to_vec()));
                        before = Some(hash);
                    }
                }
            }
        }
    }
}

fn watched(fixture: &Fixture) -> (Arc<Mutex<Pages>>, Arc<AtomicUsize>) {
    let pages = Arc::new(Mutex::new(Pages::new()));
    let room = Arc::new(AtomicUsize::new(usize::MAX / 2));
    fixture.engine.observe_cache(Box::new(Reader {
        pages: Arc::clone(&pages),
        room: Arc::clone(&room),
    }));
    (pages, room)
}

/// Tokens of the prompt that the observer knows to be cached.
fn matched(pages: &Pages, prompt: &[u32]) -> usize {
    let mut before = None;
    let mut matched = 0;
    for tokens in prompt.chunks_exact(PAGE) {
        let wanted = (before, tokens.to_vec());
        let Some((&hash, _)) = pages.iter().find(|(_, value)| **value == wanted) else {
            break;
        };
        (before, matched) = (Some(hash), matched + PAGE);
    }
    matched
}

/// Carries out a command, so that everything before it has been reported.
fn settle(fixture: &Fixture) {
    fixture.engine.resume().wait_blocking().unwrap();
}

#[test]
fn an_observer_knows_what_is_cached_evicted_and_flushed() {
    let fixture = Fixture::new(config(), 64);
    answer(fixture.submit(&prompt(1, 20), 4)).end.unwrap();
    // It also learns what was there before it.
    let (pages, _) = watched(&fixture);
    settle(&fixture);
    assert_eq!(matched(&pages.lock().unwrap(), &prompt(1, 20)), 20);
    for seed in 2..20 {
        answer(fixture.submit(&prompt(seed, 20), 4)).end.unwrap();
        settle(&fixture);
        let cached = fixture.engine.stats().kv.cached();
        let pages = pages.lock().unwrap();
        assert_eq!(pages.len() * PAGE, cached);
        assert_eq!(matched(&pages, &prompt(seed, 20)), 20);
    }
    assert_eq!(matched(&pages.lock().unwrap(), &prompt(1, 20)), 0);
    fixture
        .engine
        .flush_cache()
        .wait_blocking()
        .unwrap()
        .unwrap();
    settle(&fixture);
    assert!(pages.lock().unwrap().is_empty());
}

#[test]
fn an_observer_without_room_gets_everything_later() {
    let fixture = Fixture::new(config(), 512);
    let (pages, room) = watched(&fixture);
    settle(&fixture);
    room.store(0, Ordering::SeqCst);
    for seed in 0..5 {
        answer(fixture.submit(&prompt(seed, 20), 4)).end.unwrap();
    }
    settle(&fixture);
    assert!(pages.lock().unwrap().is_empty());
    room.store(100, Ordering::SeqCst);
    settle(&fixture);
    let pages = pages.lock().unwrap();
    assert_eq!(pages.len() * PAGE, fixture.engine.stats().kv.cached());
    assert!((0..5).all(|seed| matched(&pages, &prompt(seed, 20)) == 20));
}
