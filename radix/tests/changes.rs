//! A reader that applies the changes that the cache reports knows at every moment what it holds.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::collections::HashMap;

use hearth_radix::{
    CacheChange, EvictionPolicy, HostWritePolicy, PageChange, PrefixLock, Tier, TieredCache,
};
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: usize = 32;

/// The page before a page, its namespace and its tokens.
type Page = (Option<u64>, String, Vec<u32>);

/// The pages of each tier, as a reader of the changes knows them.
#[derive(Debug, Default, PartialEq)]
struct Mirror(HashMap<(Tier, u64), Page>);

impl Mirror {
    fn apply(&mut self, changes: Vec<CacheChange>, page: usize) {
        for change in changes {
            match change {
                CacheChange::Cleared => self.0.clear(),
                CacheChange::Pages(tier, PageChange::Removed { hashes }) => {
                    for hash in hashes {
                        assert!(self.0.remove(&(tier, hash)).is_some(), "removed twice");
                    }
                }
                CacheChange::Pages(tier, stored) => self.store(tier, stored, page),
            }
        }
        for (tier, (before, ..)) in self.0.iter().map(|((tier, _), value)| (tier, value)) {
            let known = before.is_none_or(|before| self.0.contains_key(&(*tier, before)));
            assert!(known, "a page is there without the one before it");
        }
    }

    fn store(&mut self, tier: Tier, stored: PageChange, page: usize) {
        let PageChange::Stored {
            namespace,
            parent,
            hashes,
            tokens,
        } = stored
        else {
            panic!("{stored:?}");
        };
        assert_eq!(hashes.len() * page, tokens.len());
        let mut before = parent;
        for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(page)) {
            let value = (before, namespace.to_string(), tokens.to_vec());
            assert!(self.0.insert((tier, hash), value).is_none(), "stored twice");
            before = Some(hash);
        }
    }

    /// Tokens that the mirror has of a prompt in a tier.
    fn matched(&self, tier: Tier, namespace: &str, prompt: &[u32], page: usize) -> usize {
        let mut before = None;
        let mut matched = 0;
        for tokens in prompt.chunks_exact(page) {
            let wanted = (before, namespace.to_owned(), tokens.to_vec());
            let found = self
                .0
                .iter()
                .find(|(key, value)| key.0 == tier && **value == wanted);
            let Some(((_, hash), _)) = found else { break };
            before = Some(*hash);
            matched += page;
        }
        matched
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Computes a prompt and keeps its prefix locked, until there are too many.
    Run(u8, Vec<u32>),
    Flush,
    ReleaseAll,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..2u8, vec(0..3u32, 1..14)).prop_map(|(namespace, tokens)| Op::Run(namespace, tokens)),
        1 => Just(Op::Flush),
        1 => Just(Op::ReleaseAll),
    ]
}

fn run(cache: &mut TieredCache, namespace: &str, tokens: &[u32]) -> Option<PrefixLock> {
    let prefix = cache.match_prefix(namespace, tokens, 0);
    let mut slots = prefix.slots;
    cache
        .allocate(tokens.len() - slots.len(), &mut slots)
        .ok()?;
    let lock = cache.insert(namespace, tokens, 0, &mut slots);
    cache.free(&slots[lock.tokens()..]);
    Some(lock)
}

proptest! {
    #[test]
    fn a_mirror_of_the_changes_equals_the_cache(
        ops in vec(op(), 1..40),
        page in prop_oneof![Just(1usize), Just(2), Just(4)],
        host in prop_oneof![Just(0usize), Just(24)],
    ) {
        let mut cache = TieredCache::new(SLOTS, page, EvictionPolicy::Lru).unwrap();
        if host > 0 {
            cache = cache
                .with_host(host, EvictionPolicy::Lru, HostWritePolicy::WriteBack)
                .unwrap();
        }
        cache.record_changes();
        let mut mirror = Mirror::default();
        let mut locks = Vec::new();
        for op in ops {
            cache.allow_copies(100);
            match op {
                Op::Run(namespace, tokens) => {
                    let namespace = ["", "a"][usize::from(namespace)];
                    locks.extend(run(&mut cache, namespace, &tokens));
                    mirror.apply(cache.take_changes(), page);
                    let there = cache.peek(namespace, &tokens).tokens;
                    prop_assert_eq!(mirror.matched(Tier::Device, namespace, &tokens, page), there);
                    if let Some(prefix) = cache.match_host(namespace, &tokens, 0) {
                        let host = prefix.slots.len();
                        prop_assert_eq!(mirror.matched(Tier::Host, namespace, &tokens, page), host);
                    }
                    if locks.len() > 2 {
                        drop(locks.remove(0));
                    }
                }
                Op::Flush => drop(cache.flush()),
                Op::ReleaseAll => locks.clear(),
            }
            cache.take_copies();
            mirror.apply(cache.take_changes(), page);
            let mut snapshot = Mirror::default();
            snapshot.apply(cache.all_pages(), page);
            prop_assert_eq!(&snapshot, &mirror);
            cache.check(&[], &[]).unwrap();
        }
    }
}

#[test]
fn a_flush_of_everything_is_one_change_and_nothing_is_reported_unasked() {
    let mut cache = TieredCache::new(8, 1, EvictionPolicy::Lru).unwrap();
    drop(run(&mut cache, "", &[1, 2]));
    assert!(cache.take_changes().is_empty() && cache.all_pages().is_empty());
    let mut cache = TieredCache::new(8, 1, EvictionPolicy::Lru).unwrap();
    cache.record_changes();
    drop(run(&mut cache, "", &[1, 2]));
    assert_eq!(cache.take_changes().len(), 1);
    cache.flush();
    drop(run(&mut cache, "", &[1, 2]));
    let changes = cache.take_changes();
    assert_eq!(changes[0], CacheChange::Cleared);
    assert_eq!(changes.len(), 2);
}
