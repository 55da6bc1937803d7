//! The tree's list of all that it holds.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::collections::BTreeSet;

use hearth_radix::{EvictionPolicy, TieredCache};

#[test]
fn contents_and_slots_are_those_that_were_inserted_and_nothing_is_used_by_looking() {
    for page_size in [1, 4] {
        let mut cache = TieredCache::new(1000, page_size, EvictionPolicy::Lru).unwrap();
        let mut random = 7u64;
        let mut known = Vec::new();
        for _ in 0..40 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let namespace = ["a", "b"][(random >> 60) as usize % 2];
            let common = (random >> 33) as usize % 20;
            let mut tokens: Vec<u32> = (0..common as u32).collect();
            tokens.extend((0..10).map(|at| 100 + ((random >> at) % 3) as u32));
            let mut slots = Vec::new();
            cache.allocate(tokens.len(), &mut slots).unwrap();
            let lock = cache.insert(namespace, &tokens, 0, &mut slots);
            cache.free(&slots[lock.tokens()..]);
            tokens.truncate(lock.tokens());
            slots.truncate(lock.tokens());
            known.push((namespace, tokens, slots));
        }
        let edges = cache.contents();
        let mut paths: Vec<(&str, Vec<u32>)> = Vec::new();
        for (at, edge) in edges.iter().enumerate() {
            let above = edge.parent.inspect(|&parent| assert!(parent < at));
            let mut path = above.map_or(Vec::new(), |parent| paths[parent].1.clone());
            if let Some(parent) = above {
                assert!(edges[parent].last_used >= edge.last_used);
            }
            path.extend(&edge.tokens);
            paths.push((&edge.namespace, path));
        }
        let total: usize = edges.iter().map(|edge| edge.tokens.len()).sum();
        let usage = cache.usage();
        assert_eq!(total, usage.evictable + usage.protected);
        let prefixes: BTreeSet<_> = paths
            .iter()
            .map(|(name, path)| (*name, path.clone()))
            .collect();
        for (namespace, tokens, slots) in &known {
            assert_eq!(cache.slots_of(namespace, tokens), *slots);
            let longer = [&tokens[..], &[999; 4]].concat();
            assert_eq!(cache.slots_of(namespace, &longer), *slots);
            let is_there =
                |(name, path): &(&str, Vec<u32>)| name == namespace && path.starts_with(tokens);
            assert!(prefixes.iter().any(is_there));
        }
        assert!(cache.slots_of("c", &[0, 1, 2, 3]).is_empty());
        assert_eq!(cache.contents(), edges);
        cache.check(&[], &[]).unwrap();
    }
}
