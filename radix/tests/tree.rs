//! Each rule of the tree and the single-tier cache, in a test of its own.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use hearth_radix::{EvictionPolicy, KvCache, OutOfSlots, RadixTree};

fn cache(slots: usize, page_size: usize) -> KvCache {
    KvCache::new(slots, page_size, EvictionPolicy::Lru).unwrap()
}

/// Computes `tokens` in fresh slots, caches them, and returns the cache's slots.
fn put(cache: &mut KvCache, namespace: &str, tokens: &[u32]) -> Vec<u32> {
    let mut slots = Vec::new();
    cache.allocate(tokens.len(), &mut slots).unwrap();
    let lock = cache.insert(namespace, tokens, 0, &mut slots);
    let cached = slots.split_at(lock.tokens());
    cache.free(cached.1);
    cache.check(&[], &[]).unwrap();
    cached.0.to_vec()
}

fn hit(cache: &mut KvCache, namespace: &str, tokens: &[u32]) -> Vec<u32> {
    let slots = cache.match_prefix(namespace, tokens, 0).slots;
    cache.check(&[], &[]).unwrap();
    slots
}

#[test]
fn an_inserted_prefix_is_found_with_its_slots() {
    let mut cache = cache(16, 1);
    let slots = put(&mut cache, "", &[1, 2, 3]);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3, 4]), slots);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3]), slots);
    assert_eq!(hit(&mut cache, "", &[2, 3]), []);
    assert_eq!(hit(&mut cache, "", &[]), []);
}

#[test]
fn a_match_that_ends_inside_an_edge_returns_the_common_part() {
    let mut cache = cache(32, 1);
    let slots = put(&mut cache, "", &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3, 9]), slots[..3]);
    let branch = put(&mut cache, "", &[1, 2, 3, 4, 5, 50, 60]);
    assert_eq!(branch[..5], slots[..5], "the tree keeps its own slots");
    assert_eq!(
        cache.usage().evictable,
        10,
        "eight tokens and a branch of two"
    );
    assert_eq!(hit(&mut cache, "", &[1, 2, 3, 4, 5, 6, 7, 8]), slots);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3, 4, 5, 50, 60]), branch);
}

#[test]
fn duplicates_are_freed_and_the_callers_slots_point_into_the_tree() {
    let mut cache = cache(16, 1);
    let first = put(&mut cache, "", &[1, 2, 3]);
    let mut slots = Vec::new();
    cache.allocate(4, &mut slots).unwrap();
    let own = slots.clone();
    let lock = cache.insert("", &[1, 2, 3, 4], 0, &mut slots);
    assert_eq!(slots[..3], first);
    assert_eq!(slots[3], own[3]);
    assert_eq!(lock.tokens(), 4);
    assert_eq!(cache.usage().free, 12);
}

#[test]
fn namespaces_share_no_prefixes() {
    let mut cache = cache(16, 1);
    put(&mut cache, "a", &[1, 2]);
    put(&mut cache, "", &[1, 2, 3]);
    assert_eq!(hit(&mut cache, "b", &[1, 2, 3]), []);
    assert_eq!(hit(&mut cache, "a", &[1, 2, 3]).len(), 2);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3]).len(), 3);
}

#[test]
fn only_whole_pages_are_cached_and_matched() {
    for (page_size, len) in [(1, 5), (2, 5), (4, 6), (16, 15), (64, 200)] {
        let mut cache = cache(256, page_size);
        let tokens: Vec<u32> = (0..len).collect();
        let cached = put(&mut cache, "", &tokens);
        assert_eq!(cached.len(), tokens.len() / page_size * page_size);
        assert_eq!(hit(&mut cache, "", &tokens), cached);
        let mut fork = tokens.clone();
        fork[tokens.len() / 2] = 999;
        let common = tokens.len() / 2 / page_size * page_size;
        assert_eq!(hit(&mut cache, "", &fork), cached[..common]);
    }
}

#[test]
fn children_that_share_part_of_a_page_share_nothing() {
    let mut cache = cache(16, 2);
    let a = put(&mut cache, "", &[1, 2, 3, 4]);
    let b = put(&mut cache, "", &[1, 9, 3, 4]);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3, 4]), a);
    assert_eq!(hit(&mut cache, "", &[1, 9, 3, 4]), b);
    assert!(a.iter().all(|slot| !b.contains(slot)));
}

#[test]
fn the_least_recently_used_leaf_is_evicted_first() {
    let mut cache = cache(6, 1);
    put(&mut cache, "", &[1, 2]);
    put(&mut cache, "", &[3, 4]);
    put(&mut cache, "", &[5, 6]);
    hit(&mut cache, "", &[1, 2]);
    let mut held = Vec::new();
    cache.allocate(2, &mut held).unwrap();
    cache.check(&held, &[]).unwrap();
    cache.free(&held);
    assert_eq!(hit(&mut cache, "", &[3, 4]), []);
    assert_eq!(hit(&mut cache, "", &[1, 2]).len(), 2);
    assert_eq!(hit(&mut cache, "", &[5, 6]).len(), 2);
}

#[test]
fn a_leaf_is_shortened_from_its_end_only_as_far_as_needed() {
    let mut cache = cache(8, 1);
    let slots = put(&mut cache, "", &[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut held = Vec::new();
    cache.allocate(3, &mut held).unwrap();
    cache.check(&held, &[]).unwrap();
    cache.free(&held);
    assert_eq!(hit(&mut cache, "", &[1, 2, 3, 4, 5, 6, 7, 8]), slots[..5]);
}

#[test]
fn a_parent_is_evicted_only_after_its_children() {
    let mut tree = RadixTree::new(1, EvictionPolicy::Lru).unwrap();
    let mut lower = [10, 11, 12, 13];
    drop(tree.insert("", &[1, 2, 3, 4], 0, &mut lower));
    drop(tree.insert("", &[1, 2, 5], 0, &mut [10, 11, 14]));
    let mut evicted = Vec::new();
    for expected in [13, 12, 14, 11, 10] {
        evicted.clear();
        tree.evict(1, &mut evicted);
        tree.check().unwrap();
        assert_eq!(evicted, [expected]);
    }
    assert_eq!((tree.evictable(), tree.protected()), (0, 0));
}

#[test]
fn a_locked_path_is_evicted_only_after_its_lock_is_dropped() {
    let mut cache = cache(4, 1);
    put(&mut cache, "", &[1, 2, 3, 4]);
    let prefix = cache.match_prefix("", &[1, 2, 3], 0);
    let usage = cache.usage();
    assert_eq!((usage.evictable, usage.protected), (1, 3));
    let mut held = Vec::new();
    let error = cache.allocate(2, &mut held).unwrap_err();
    assert_eq!(
        error,
        OutOfSlots {
            wanted: 2,
            available: 1
        }
    );
    assert_eq!(held, [], "a refused allocation takes nothing");
    drop(prefix);
    let usage = cache.usage();
    assert_eq!((usage.evictable, usage.protected), (4, 0));
    cache.allocate(4, &mut held).unwrap();
    cache.check(&held, &[]).unwrap();
}

#[test]
fn a_lock_still_covers_its_path_after_the_path_is_split() {
    let mut cache = cache(8, 1);
    put(&mut cache, "", &[1, 2, 3, 4]);
    let whole = cache.match_prefix("", &[1, 2, 3, 4], 0);
    let half = cache.match_prefix("", &[1, 2], 0);
    assert_eq!(cache.usage().protected, 4);
    drop(whole);
    assert_eq!(cache.usage().protected, 2);
    cache.check(&[], &[]).unwrap();
    drop(half);
    assert_eq!(cache.usage().protected, 0);
    cache.check(&[], &[]).unwrap();
}

#[test]
fn a_namespace_is_removed_with_its_last_prefix() {
    let mut cache = cache(2, 1);
    for salt in 0..100 {
        put(&mut cache, &salt.to_string(), &[1, 2]);
    }
    // check() refuses namespaces without tokens.
    cache.check(&[], &[]).unwrap();
    assert_eq!(hit(&mut cache, "98", &[1, 2]), []);
    assert_eq!(hit(&mut cache, "99", &[1, 2]).len(), 2);
}

#[test]
fn a_page_size_is_a_power_of_two_up_to_64() {
    for given in [0, 3, 48, 128] {
        let error = RadixTree::new(given, EvictionPolicy::Lru).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("page_size must be a power of two from 1 to 64, not {given}")
        );
    }
    for page_size in [1, 2, 4, 8, 16, 32, 64] {
        assert_eq!(
            RadixTree::new(page_size, EvictionPolicy::Lru)
                .unwrap()
                .page_size(),
            page_size
        );
    }
}

/// Fills a cache with four prompts, each of the tokens `[n, 0]`, uses them so that every
/// policy evicts in a different order, and returns that order.
fn eviction_order(policy: EvictionPolicy) -> Vec<u32> {
    let mut cache = KvCache::new(8, 1, policy).unwrap();
    let put = |cache: &mut KvCache, n: u32, priority: i32| {
        let mut slots = Vec::new();
        cache.allocate(2, &mut slots).unwrap();
        drop(cache.insert("", &[n, 0], priority, &mut slots));
    };
    put(&mut cache, 1, 40);
    put(&mut cache, 2, 30);
    put(&mut cache, 3, 20);
    for (n, priority) in [(1, 0), (1, 0), (3, 35)] {
        drop(cache.match_prefix("", &[n, 0], priority));
    }
    put(&mut cache, 4, -10);
    let (mut order, mut held) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        cache.allocate(2, &mut held).unwrap();
        cache.check(&held, &[]).unwrap();
        let gone = (1..=4).filter(|n| cache.peek("", &[*n]).tokens == 0);
        let gone: Vec<u32> = gone.filter(|n| !order.contains(n)).collect();
        assert_eq!(gone.len(), 1, "two tokens are one prompt");
        order.extend(gone);
    }
    order
}

#[test]
fn each_policy_has_its_own_eviction_order() {
    assert_eq!(eviction_order(EvictionPolicy::Lru), [2, 1, 3, 4]);
    assert_eq!(eviction_order(EvictionPolicy::Lfu), [2, 4, 3, 1]);
    assert_eq!(eviction_order(EvictionPolicy::Fifo), [1, 2, 3, 4]);
    assert_eq!(eviction_order(EvictionPolicy::Slru), [2, 4, 1, 3]);
    assert_eq!(eviction_order(EvictionPolicy::Priority), [4, 2, 3, 1]);
}

#[test]
fn a_request_that_inserts_its_tokens_in_pieces_counts_as_one_use() {
    let mut tree = RadixTree::new(1, EvictionPolicy::Lfu).unwrap();
    let mut chunks = [1, 2, 3, 4].map(|n| [n; 4]);
    let mut slots = [0, 1, 2, 3];
    for (end, chunk) in (1..).zip(&mut chunks) {
        *chunk = [5, 6, 7, 8];
        drop(tree.insert("", &chunk[..end], 0, &mut slots[..end]));
    }
    drop(tree.insert("", &[9], 0, &mut [4]));
    drop(tree.match_prefix("", &[9], 0, &mut Vec::new()));
    let mut evicted = Vec::new();
    tree.evict(4, &mut evicted);
    assert_eq!(evicted, [3, 2, 1, 0], "9 was used twice, 5 to 8 once");
}

#[test]
fn the_output_of_a_request_is_evicted_before_its_prompt() {
    let mut cache = cache(12, 1);
    let mut slots = Vec::new();
    cache.allocate(8, &mut slots).unwrap();
    let prompt = cache.insert("", &[1, 2, 3, 4], 0, &mut slots[..4]);
    let whole = cache.insert("", &[1, 2, 3, 4, 5, 6, 7, 8], 0, &mut slots);
    drop((prompt, whole));
    // Another request that shares the prompt makes it more recent than the first's output.
    drop(cache.match_prefix("", &[1, 2, 3, 4, 9], 0));
    put(&mut cache, "", &[20, 21]);
    let mut held = Vec::new();
    cache.allocate(6, &mut held).unwrap();
    cache.check(&held, &[]).unwrap();
    assert_eq!(cache.peek("", &[1, 2, 3, 4, 5]).tokens, 4);
    assert_eq!(cache.peek("", &[20, 21]).tokens, 2);
}

#[test]
fn a_peek_finds_as_much_as_a_match_and_changes_nothing() {
    let mut cache = cache(16, 2);
    put(&mut cache, "", &[1, 2, 3, 4, 5, 6]);
    put(&mut cache, "", &[7, 8]);
    let lock = cache.match_prefix("", &[1, 2], 0);
    let peeked = cache.peek("", &[1, 2, 3, 4, 5, 9]);
    assert_eq!((peeked.tokens, peeked.unlocked), (4, 2));
    assert_eq!(cache.peek("a", &[1, 2]).tokens, 0);
    assert_eq!(cache.peek("", &[1]).tokens, 0);
    drop(lock);
    for _ in 0..3 {
        cache.peek("", &[1, 2, 3, 4, 5, 6]);
    }
    let mut held = Vec::new();
    cache.allocate(10, &mut held).unwrap();
    assert_eq!(
        cache.peek("", &[1, 2, 3, 4, 5, 6]).tokens,
        4,
        "peeked at or not, its end is the least recently used"
    );
    assert_eq!(cache.flush(), 6);
    cache.check(&held, &[]).unwrap();
}
