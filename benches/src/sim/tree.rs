//! Measures the time of the radix tree's operations, and how it grows with the cached tokens.

use std::time::Instant;

use hearth_radix::{EvictionPolicy, RadixTree};

/// Microseconds per operation, and bytes per cached token.
#[derive(Clone, Copy, Debug)]
pub struct TreeCosts {
    pub matched: f64,
    pub inserted: f64,
    pub evicted: f64,
    pub bytes_per_token: f64,
}

const SHARED: usize = 500;
const OWN: usize = 500;
const OPERATIONS: usize = 5_000;

/// The shared prefix of a family followed by the member's own tokens. `benches/peers/sglang_tree.py`
/// makes the same sequences.
pub fn sequence(family: u64, member: u64) -> Vec<u32> {
    let stream = |seed: u64, len: usize| {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..len).map(move |_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as u32 % 32_000
        })
    };
    stream(family + 1, SHARED)
        .chain(stream((family + 1) << 32 | (member + 1), OWN))
        .collect()
}

/// Fills a tree with `tokens` tokens in sequences of 1,000, ten of which share their first half.
/// Then measures matches of whole sequences, insertions of new sequences into existing families,
/// and evictions of as many tokens.
///
/// # Errors
/// The page size is invalid.
pub fn measure(tokens: usize, page_size: usize) -> anyhow::Result<TreeCosts> {
    let before = resident_bytes();
    let mut tree = RadixTree::new(page_size, EvictionPolicy::Lru)?;
    let families = (tokens / (SHARED + 10 * OWN)).max(1) as u64;
    let mut next_slot = 0_u32;
    let mut slots = Vec::new();
    let mut insert = |tree: &mut RadixTree, tokens: &[u32]| {
        slots.clear();
        slots.extend(next_slot..next_slot + tokens.len() as u32);
        next_slot = next_slot.wrapping_add(tokens.len() as u32) % (1 << 31);
        drop(tree.insert("", tokens, 0, &mut slots));
    };
    for member in 0..10 {
        for family in 0..families {
            insert(&mut tree, &sequence(family, member));
        }
    }
    let cached = tree.evictable();
    let bytes = resident_bytes().saturating_sub(before);

    let family = |i: usize| (i as u64).wrapping_mul(7919) % families;
    let known: Vec<_> = (0..OPERATIONS)
        .map(|i| sequence(family(i), i as u64 % 10))
        .collect();
    let new: Vec<_> = (0..OPERATIONS)
        .map(|i| sequence(family(i), 10 + i as u64))
        .collect();
    let mut found = Vec::new();
    let mut hits = 0;
    let matched = micros(|| {
        for tokens in &known {
            found.clear();
            hits += tree.match_prefix("", tokens, 0, &mut found).tokens();
        }
    });
    let whole_pages = (SHARED + OWN) / page_size * page_size;
    anyhow::ensure!(
        hits == OPERATIONS * whole_pages,
        "a sequence that was inserted is not cached"
    );
    let inserted = micros(|| new.iter().for_each(|tokens| insert(&mut tree, tokens)));
    let mut evicted = Vec::new();
    let evicting = micros(|| {
        for _ in 0..OPERATIONS {
            evicted.clear();
            tree.evict(OWN, &mut evicted);
        }
    });
    Ok(TreeCosts {
        matched,
        inserted,
        evicted: evicting,
        bytes_per_token: bytes as f64 / cached as f64,
    })
}

/// Mean microseconds of one of `OPERATIONS` operations.
fn micros(operations: impl FnOnce()) -> f64 {
    let start = Instant::now();
    operations();
    start.elapsed().as_secs_f64() * 1e6 / OPERATIONS as f64
}

/// Resident memory of the process; 0 if there is no `/proc`.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
