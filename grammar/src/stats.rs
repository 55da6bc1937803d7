//! Counts of what grammars have cost and saved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Problem;

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Grammars that were compiled or refused without the cache, and the time that took.
    pub compilations: u64,
    pub compile_time: Duration,
    /// Requests whose grammar, or its refusal, was in the cache, and requests whose was not.
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Masks that were computed, and the time that took.
    pub masks: u64,
    pub mask_time: Duration,
    /// Tokens that were appended without being sampled, each of which saved a forward pass.
    pub forced_tokens: u64,
    pub forced_bytes: u64,
    /// Regular grammars that were too large for our own machine.
    pub fallbacks: u64,
    /// Refusals by [`Problem`], including those from the cache.
    pub invalid: u64,
    pub unsupported: u64,
    pub too_complex: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    compilations: AtomicU64,
    compile_nanos: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    masks: AtomicU64,
    mask_nanos: AtomicU64,
    forced_tokens: AtomicU64,
    forced_bytes: AtomicU64,
    fallbacks: AtomicU64,
    refusals: [AtomicU64; 3],
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    pub fn compiled(&self, time: Duration) {
        add(&self.compilations, 1);
        add(&self.compile_nanos, nanos(time));
    }

    pub fn looked_up(&self, hit: bool) {
        add(
            if hit {
                &self.cache_hits
            } else {
                &self.cache_misses
            },
            1,
        );
    }

    pub fn masked(&self, time: Duration) {
        add(&self.masks, 1);
        add(&self.mask_nanos, nanos(time));
    }

    pub fn forced(&self, tokens: usize, bytes: usize) {
        add(&self.forced_tokens, tokens as u64);
        add(&self.forced_bytes, bytes as u64);
    }

    pub fn fell_back(&self) {
        add(&self.fallbacks, 1);
    }

    pub fn refused(&self, problem: Problem) {
        add(&self.refusals[problem as usize], 1);
    }

    pub fn read(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = |problem: Problem| of(&self.refusals[problem as usize]);
        Stats {
            compilations: of(&self.compilations),
            compile_time: Duration::from_nanos(of(&self.compile_nanos)),
            cache_hits: of(&self.cache_hits),
            cache_misses: of(&self.cache_misses),
            masks: of(&self.masks),
            mask_time: Duration::from_nanos(of(&self.mask_nanos)),
            forced_tokens: of(&self.forced_tokens),
            forced_bytes: of(&self.forced_bytes),
            fallbacks: of(&self.fallbacks),
            invalid: refused(Problem::Invalid),
            unsupported: refused(Problem::Unsupported),
            too_complex: refused(Problem::TooComplex),
        }
    }
}
