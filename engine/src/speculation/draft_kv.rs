//! The KV slots of the draft model, and the sequences that are in them.

use std::collections::HashMap;

use hearth_radix::{EvictionPolicy, KvCache, KvUsage, PrefixLock, common_prefix};

/// The tokens of one request that the draft model has computed. The first `lock.tokens()` slots
/// belong to the cache; the others belong to the sequence.
#[derive(Debug)]
pub(super) struct DraftSequence {
    namespace: String,
    /// The slots in order of position; at least as many as `tokens`.
    slots: Vec<u32>,
    lock: Option<PrefixLock>,
    /// The tokens whose keys and values are in the first slots: tokens of the request, and after
    /// them perhaps a draft.
    tokens: Vec<u32>,
    /// How many of `tokens` are known to be tokens of the request.
    confirmed: usize,
    /// When it was last used, by the clock of [`DraftKv`].
    used: u64,
}

impl DraftSequence {
    /// Slots that belong to the cache.
    fn cached(&self) -> usize {
        self.lock.as_ref().map_or(0, PrefixLock::tokens)
    }

    /// Keeps what the sequence has in common with `tokens`, the tokens of its request, which are
    /// those of the last call or more. The last of them is not kept, because a draft begins with
    /// the logits after it. Returns how many are kept.
    fn keep(&mut self, tokens: &[u32]) -> usize {
        let confirmed = self.confirmed.min(tokens.len());
        let common = common_prefix(&self.tokens[confirmed..], &tokens[confirmed..]);
        let kept = (confirmed + common).min(tokens.len() - 1);
        self.tokens.truncate(kept);
        self.confirmed = kept;
        kept
    }

    /// Puts the first `count` tokens into `cache`.
    fn insert(&mut self, cache: &mut KvCache, count: usize) {
        if count > self.cached() {
            let slots = &mut self.slots[..count];
            let lock = cache.insert(&self.namespace, &self.tokens[..count], 0, slots);
            self.lock = Some(lock);
        }
    }

    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// The keys and values of `token`, which follows the others, are in their slot.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// The keys and values of the first `count` of `tokens`, the request's, are in their slots.
    pub fn extend(&mut self, tokens: &[u32], count: usize) {
        self.tokens
            .extend_from_slice(&tokens[self.confirmed..count]);
        self.confirmed = count;
    }
}

/// The slots of the draft model. What a request leaves behind is cached for later requests of its
/// namespace, until the slots are needed.
#[derive(Debug)]
pub(super) struct DraftKv {
    cache: KvCache,
    sequences: HashMap<u64, DraftSequence>,
    clock: u64,
}

impl DraftKv {
    pub fn new(slots: usize) -> Self {
        Self {
            cache: KvCache::new(slots, 1, EvictionPolicy::Lru)
                .expect("one is a power of two within the bounds"),
            sequences: HashMap::new(),
            clock: 0,
        }
    }

    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.clock += 1;
    }

    /// How many of `tokens`, the tokens of the request `id`, are computed, at most all but the
    /// last.
    pub fn computed(&mut self, id: u64, namespace: &str, tokens: &[u32]) -> usize {
        let Self {
            cache, sequences, ..
        } = self;
        let sequence = sequences.entry(id).or_insert_with(|| {
            let reusable = &tokens[..tokens.len() - 1];
            let prefix = cache.match_prefix(namespace, reusable, 0);
            let computed = prefix.slots.len();
            DraftSequence {
                namespace: namespace.to_owned(),
                slots: prefix.slots,
                lock: Some(prefix.lock),
                tokens: tokens[..computed].to_vec(),
                confirmed: computed,
                used: 0,
            }
        });
        sequence.keep(tokens)
    }

    /// The request `id` keeps its slots in this step.
    pub fn touch(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.used = self.clock;
        }
    }

    /// Gives the request `id` at least `wanted` slots, if need be those of sequences that are not
    /// used in this step. Returns whether it has them.
    pub fn reserve(&mut self, id: u64, wanted: usize) -> bool {
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return false;
        };
        let missing = wanted.saturating_sub(sequence.slots.len());
        let mut has_room = self.cache.allocate(missing, &mut sequence.slots).is_ok();
        while !has_room && let Some(other) = self.least_recent() {
            self.end(other);
            has_room = self.cache.allocate(missing, &mut sequence.slots).is_ok();
        }
        self.sequences.insert(id, sequence);
        has_room
    }

    /// The sequence that was not used for the longest time, if there is one that is not used in
    /// this step.
    fn least_recent(&self) -> Option<u64> {
        let unused = self.sequences.iter();
        let unused = unused.filter(|(_, sequence)| sequence.used < self.clock);
        let least = unused.min_by_key(|(id, sequence)| (sequence.used, **id));
        least.map(|(id, _)| *id)
    }

    pub fn sequence(&mut self, id: u64) -> &mut DraftSequence {
        self.sequences
            .get_mut(&id)
            .expect("a sequence with slots exists")
    }

    /// Lets other requests use what is computed of the request `id`, but for its last token: a
    /// request computes that again if nothing follows it, and nothing in the cache is written.
    pub fn share(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.insert(&mut self.cache, sequence.confirmed.saturating_sub(1));
        }
    }

    /// Takes back the slots of the request `id`. Its tokens stay cached until the slots are needed.
    pub fn end(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.insert(&mut self.cache, sequence.confirmed);
        }
        self.discard(id);
    }

    /// Takes back the slots of the request `id`, whose contents are unknown.
    pub fn discard(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.cache.free(&sequence.slots[sequence.cached()..]);
        }
    }

    /// Forgets everything that no request uses.
    pub fn flush(&mut self) {
        self.cache.flush();
    }

    pub fn usage(&mut self) -> KvUsage {
        self.cache.usage()
    }

    /// Slots that belong to sequences.
    pub fn held(&self) -> usize {
        let each = self.sequences.values();
        each.map(|sequence| sequence.slots.len() - sequence.cached())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl DraftKv {
        fn check(&mut self) {
            let held: Vec<u32> = self
                .sequences
                .values()
                .flat_map(|sequence| &sequence.slots[sequence.cached()..])
                .copied()
                .collect();
            self.cache.check(&held, &[]).unwrap();
        }

        /// Computes all of `tokens`, and a draft.
        fn compute(&mut self, id: u64, tokens: &[u32], draft: &[u32]) -> Option<usize> {
            let kept = self.computed(id, "", tokens);
            self.touch(id);
            if !self.reserve(id, tokens.len() + draft.len()) {
                return None;
            }
            let sequence = self.sequence(id);
            sequence.extend(tokens, tokens.len());
            draft.iter().for_each(|&token| sequence.push(token));
            self.check();
            Some(kept)
        }
    }

    #[test]
    fn what_a_draft_has_in_common_with_the_output_is_kept() {
        let mut kv = DraftKv::new(32);
        kv.begin_step();
        assert_eq!(kv.compute(1, &[1, 2, 3], &[4, 5]), Some(0));
        // The first token of the draft was accepted, and 9 was sampled instead of the second.
        assert_eq!(kv.compute(1, &[1, 2, 3, 4, 9], &[10]), Some(4));
        // Everything was accepted. The logits after the last token are needed in any case.
        assert_eq!(kv.compute(1, &[1, 2, 3, 4, 9, 10], &[]), Some(5));
        // Nothing has happened since.
        assert_eq!(kv.compute(1, &[1, 2, 3, 4, 9, 10], &[]), Some(5));
        kv.end(1);
        kv.check();
        assert_eq!((kv.held(), kv.usage().evictable), (0, 6));
        // The same tokens again, of another request.
        assert_eq!(kv.compute(2, &[1, 2, 3, 4, 8], &[]), Some(4));
        assert_eq!(kv.computed(3, "other", &[1, 2, 3]), 0);
    }

    #[test]
    fn slots_are_taken_from_sequences_that_are_not_used_only() {
        let mut kv = DraftKv::new(10);
        kv.begin_step();
        assert!(kv.compute(1, &[1, 2, 3, 4], &[]).is_some());
        assert!(kv.compute(2, &[5, 6, 7, 8], &[]).is_some());
        assert_eq!(kv.compute(3, &[9, 9, 9, 9], &[]), None, "both are in use");
        kv.begin_step();
        assert!(kv.compute(2, &[5, 6, 7, 8, 9], &[]).is_some());
        assert!(kv.compute(3, &[9, 9, 9, 9], &[]).is_some());
        assert_eq!(kv.compute(1, &[1, 2, 3, 4, 5], &[]), None);
        kv.check();
        for id in 1..4 {
            kv.discard(id);
        }
        kv.check();
        kv.flush();
        assert_eq!(kv.usage().free, 10);
    }
}
