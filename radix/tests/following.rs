//! The tokens that the tree has after given tokens, compared with a list of all inserted texts.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use hearth_radix::{EvictionPolicy, PrefixLock, RadixTree};
use proptest::collection::vec;
use proptest::prelude::*;

fn tree(page_size: usize) -> RadixTree {
    RadixTree::new(page_size, EvictionPolicy::Lru).unwrap()
}

fn put(tree: &mut RadixTree, namespace: &str, tokens: &[u32]) -> PrefixLock {
    let mut slots: Vec<u32> = (0..tokens.len() as u32).collect();
    tree.insert(namespace, tokens, 0, &mut slots).lock
}

fn following(tree: &RadixTree, namespace: &str, tokens: &[u32], most: usize) -> Vec<u32> {
    let mut following = Vec::new();
    tree.following(namespace, None, tokens, most, &mut following);
    following
}

#[test]
fn the_latest_continuation_is_followed_across_edges_and_other_namespaces_are_not_read() {
    let mut tree = tree(1);
    drop(put(&mut tree, "a", &[1, 2, 3, 4]));
    drop(put(&mut tree, "a", &[1, 2, 5, 6]));
    assert_eq!(following(&tree, "a", &[1], 9), [2, 5, 6]);
    assert_eq!(following(&tree, "a", &[1, 2], 1), [5]);
    assert_eq!(following(&tree, "a", &[1, 2, 3], 9), [4]);
    drop(put(&mut tree, "a", &[1, 2, 3, 4]));
    assert_eq!(following(&tree, "a", &[1], 9), [2, 3, 4]);
    assert_eq!(following(&tree, "a", &[1, 9], 9), []);
    assert_eq!(following(&tree, "b", &[1], 9), []);
}

#[test]
fn a_walk_below_a_lock_finds_the_same_and_an_evicted_continuation_is_gone() {
    let mut tree = tree(1);
    let lock = put(&mut tree, "", &[1, 2]);
    drop(put(&mut tree, "", &[1, 2, 3, 4]));
    let mut found = vec![7];
    tree.following("", Some(&lock), &[1, 2, 3], 9, &mut found);
    assert_eq!(found, [7, 4], "it is appended");
    tree.evict(2, &mut Vec::new());
    assert_eq!(following(&tree, "", &[1, 2], 9), []);
    drop(lock);
}

#[test]
fn a_tree_that_branches_at_every_token_is_followed_for_a_bounded_way_only() {
    let mut tree = tree(1);
    let long: Vec<u32> = (0..200).collect();
    for end in 1..long.len() {
        drop(put(&mut tree, "", &[&long[..end], &[999]].concat()));
    }
    drop(put(&mut tree, "", &long));
    assert_eq!(following(&tree, "", &long[..10], 3), [10, 11, 12]);
    assert_eq!(following(&tree, "", &long[..150], 3), []);
}

proptest! {
    #[test]
    fn a_continuation_is_that_of_an_inserted_text(
        page_size in prop_oneof![Just(1usize), Just(2), Just(4)],
        texts in vec(vec(0u32..3, 1..12), 1..12),
        tokens in vec(0u32..3, 0..8),
        most in 0usize..6,
    ) {
        let mut tree = tree(page_size);
        for text in &texts {
            drop(put(&mut tree, "", text));
        }
        let cached: Vec<&[u32]> = texts
            .iter()
            .map(|text| &text[..text.len() / page_size * page_size])
            .collect();
        let found = following(&tree, "", &tokens, most);
        prop_assert!(found.len() <= most);
        let whole = [&tokens[..], &found].concat();
        if !found.is_empty() {
            prop_assert!(cached.iter().any(|text| text.starts_with(&whole)));
        }
        let is_longer = |text: &&&[u32]| text.len() > tokens.len() && text.starts_with(&tokens);
        if page_size == 1 && most > 0 && cached.iter().any(|text| is_longer(&text)) {
            prop_assert!(!found.is_empty());
        }
        // Where only one text continues, all of it is found.
        if page_size > 1 {
            return Ok(());
        }
        let mut longer: Vec<_> = cached.iter().filter(is_longer).collect();
        longer.dedup();
        if let [only] = longer[..] {
            let end = only.len().min(tokens.len() + most);
            prop_assert_eq!(&whole[..], &only[..end]);
        }
    }
}
