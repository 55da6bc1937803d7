//! The bounded picture of the tree.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::time::{Duration, Instant};

use hearth_radix::{EvictionPolicy, NodeState, Outline, PrefixLock, TieredCache};

fn cache(slots: usize) -> TieredCache {
    TieredCache::new(slots, 1, EvictionPolicy::Lru).unwrap()
}

/// Computes `tokens`, caches them, and returns the lock on them.
fn put(cache: &mut TieredCache, namespace: &str, tokens: &[u32]) -> PrefixLock {
    let mut slots = Vec::new();
    cache.allocate(tokens.len(), &mut slots).unwrap();
    cache.insert(namespace, tokens, 0, &mut slots)
}

/// Tokens, state and hidden children of each node.
fn nodes(outline: &Outline) -> Vec<(Option<usize>, usize, NodeState, usize)> {
    let nodes = outline.nodes.iter();
    nodes
        .map(|node| (node.parent, node.tokens, node.state, node.hidden_children))
        .collect()
}

#[test]
fn a_small_tree_is_shown_whole_with_its_forks_and_what_is_in_use() {
    use NodeState::{Cached, InUse};
    let mut cache = cache(100);
    drop(put(&mut cache, "", &[1, 2, 3, 4]));
    let lock = put(&mut cache, "", &[1, 2, 9]);
    drop(put(&mut cache, "other", &[1, 2, 3]));
    let outline = cache.outline([&lock].into_iter(), 10);
    let expected = [
        (None, 0, InUse, 0),
        (Some(0), 2, InUse, 0),
        (Some(1), 1, InUse, 0),
        (Some(1), 2, Cached, 0),
        (None, 0, Cached, 0),
        (Some(4), 3, Cached, 0),
    ];
    assert_eq!(nodes(&outline), expected);
    assert_eq!((outline.total_nodes, outline.total_tokens), (6, 8));
    let leaf = outline.nodes[3].id;
    assert_eq!(cache.prefix_of(leaf, 100), Some((vec![1, 2, 3, 4], 2)));
    assert_eq!(cache.prefix_of(leaf, 3), Some((vec![2, 3, 4], 2)));
    drop(lock);
    cache.flush();
    assert_eq!(cache.prefix_of(leaf, 3), None);
    assert_eq!(cache.outline([].into_iter(), 10), Outline::default());
}

#[test]
fn the_leaves_that_make_room_next_are_told() {
    let mut cache = cache(100);
    for first in 0..10 {
        drop(put(&mut cache, "", &[first; 10]));
    }
    let outline = cache.outline([].into_iter(), 100);
    let soon = outline.nodes.iter();
    let soon: Vec<_> = soon
        .filter(|node| node.state == NodeState::EvictedSoon)
        .collect();
    assert_eq!(soon.len(), 1, "5 of 100 slots, of which none is free");
    let (tokens, _) = cache.prefix_of(soon[0].id, 1).unwrap();
    assert_eq!(tokens, [0], "the oldest");
}

#[test]
fn of_a_large_tree_a_bounded_part_is_shown_in_a_time_that_does_not_grow_with_it() {
    const LEAVES: u32 = 100_000;
    let mut cache = cache(3 * LEAVES as usize);
    for leaf in 0..LEAVES {
        drop(put(&mut cache, "", &[leaf % 1000, leaf, 7]));
    }
    let locks: Vec<_> = (0..500)
        .map(|n| put(&mut cache, "", &[n, 200_000 + n]))
        .collect();
    let begin = Instant::now();
    let outline = cache.outline(locks.iter(), 400);
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(10), "{took:?}");
    assert!(outline.total_nodes > LEAVES as usize, "{outline:?}");
    assert!(outline.nodes.len() > 350 && outline.nodes.len() <= 400);
    let count = |state| {
        let nodes = outline.nodes.iter();
        nodes.filter(|node| node.state == state).count()
    };
    assert!(count(NodeState::InUse) > 100 && count(NodeState::Cached) > 50);
    // Children that are left out are counted.
    let children = outline.nodes.iter().filter(|node| node.parent == Some(0));
    assert_eq!(children.count() + outline.nodes[0].hidden_children, 1000);
    println!(
        "an outline of 400 nodes of {} took {took:?}",
        outline.total_nodes
    );
}
