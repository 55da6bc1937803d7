//! Window slots: which prefixes can be used, and that no slot is lost or given away too early.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::hash::{DefaultHasher, Hash, Hasher};

use hearth_radix::{EvictionPolicy, KvCache, PrefixLock};
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: usize = 200;

/// A request that computes its tokens and keeps only the window slots that it needs.
struct Request {
    namespace: &'static str,
    tokens: Vec<u32>,
    slots: Vec<u32>,
    window: Vec<u32>,
    from: usize,
    computed: usize,
    lock: PrefixLock,
}

impl Request {
    fn own(&self) -> usize {
        self.lock.tokens()
    }

    fn own_window(&self) -> &[u32] {
        self.window
            .get(self.from.max(self.own())..)
            .unwrap_or_default()
    }
}

/// A cache, and what is in each slot: a hash of the tokens up to the one that was written there.
struct World {
    cache: KvCache,
    reach: usize,
    content: Vec<u64>,
    window_content: Vec<u64>,
    running: Vec<Request>,
}

fn hash_of(namespace: &str, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, tokens).hash(&mut hasher);
    hasher.finish()
}

impl World {
    fn new(page: usize, reach: usize, window_slots: usize) -> Self {
        let cache = KvCache::new(SLOTS, page, EvictionPolicy::Lru).unwrap();
        Self {
            cache: cache.with_window(window_slots, reach),
            reach,
            content: vec![0; SLOTS],
            window_content: vec![0; window_slots],
            running: Vec::new(),
        }
    }

    /// Starts a request, unless there are too few slots. Returns how many tokens it reuses.
    fn admit(&mut self, namespace: &'static str, tokens: Vec<u32>) -> Option<usize> {
        let reusable = &tokens[..tokens.len() - 1];
        let found = self.cache.peek(namespace, reusable);
        let evictable = self.cache.window_usage().evictable;
        let prefix = self.cache.match_prefix(namespace, reusable, 0);
        assert_eq!(prefix.slots.len(), found.tokens);
        let unlocked = evictable - self.cache.window_usage().evictable;
        assert_eq!(unlocked, found.unlocked_window);
        let from = found.tokens - prefix.window.len();
        assert!(from <= found.tokens.saturating_sub(self.reach));
        for (index, &slot) in prefix.slots.iter().enumerate() {
            let hash = hash_of(namespace, &tokens[..=index]);
            assert_eq!(self.content[slot as usize], hash, "a slot of the prefix");
        }
        let mut window = vec![0; from];
        window.extend(prefix.window);
        let mut request = Request {
            namespace,
            slots: prefix.slots,
            window,
            from,
            computed: found.tokens,
            lock: prefix.lock,
            tokens,
        };
        request.check(self);
        let missing = request.tokens.len() - request.computed;
        self.cache.allocate(missing, &mut request.slots).ok()?;
        self.running.push(request);
        Some(found.tokens)
    }

    /// Computes the next `count` tokens, as far as there are window slots.
    fn compute(&mut self, index: usize, count: usize) {
        let request = &mut self.running[index];
        let count = count.min(request.tokens.len() - request.computed);
        let missing = (request.computed + count).saturating_sub(request.window.len());
        if self
            .cache
            .allocate_window(missing, &mut request.window)
            .is_err()
        {
            return;
        }
        for position in request.computed..request.computed + count {
            let hash = hash_of(request.namespace, &request.tokens[..=position]);
            self.content[request.slots[position] as usize] = hash;
            self.window_content[request.window[position] as usize] = hash;
        }
        request.computed += count;
        let request = self.running.remove(index);
        request.check(self);
        self.running.insert(index, request);
    }

    fn insert(&mut self, index: usize) {
        let Request {
            namespace,
            tokens,
            slots,
            window,
            from,
            computed,
            lock,
        } = &mut self.running[index];
        let tokens = &tokens[..*computed];
        let from = (*from).max(lock.tokens());
        let mut new = self
            .cache
            .insert(namespace, tokens, 0, &mut slots[..*computed]);
        if new.tokens() > lock.tokens() {
            self.cache
                .insert_window(&mut new, from, &mut window[from..*computed]);
            *lock = new;
        }
    }

    /// Gives up what no later token attends, and at most `shrink` pages of what is locked.
    fn free_behind(&mut self, index: usize, shrink: usize) {
        let request = &mut self.running[index];
        let page = self.cache.page_size();
        let whole = request.computed / page * page;
        let from = self.cache.window_start(whole);
        let start = request.from.max(request.own());
        if start < from {
            self.cache.free_window(&request.window[start..from]);
        }
        // A part of what is possible, too.
        let unlocked = from.min(request.lock.tokens() - request.lock.window() + shrink * page);
        self.cache.shrink_window(&mut request.lock, unlocked);
        request.from = request.from.max(from);
    }

    fn finish(&mut self, index: usize, keep: bool) {
        if keep {
            self.insert(index);
        }
        let request = self.running.swap_remove(index);
        self.cache.free(&request.slots[request.own()..]);
        self.cache.free_window(request.own_window());
    }

    fn check(&mut self) {
        let (mut held, mut held_window) = (Vec::new(), Vec::new());
        for request in &self.running {
            held.extend_from_slice(&request.slots[request.own()..]);
            held_window.extend_from_slice(request.own_window());
            request.check_contents(&self.window_content, self.reach);
        }
        self.cache.check(&held, &held_window).unwrap();
    }
}

impl Request {
    fn check(&self, world: &World) {
        self.check_contents(&world.window_content, world.reach);
    }

    /// The window slots that the next token attends have the contents of this request.
    fn check_contents(&self, window_content: &[u64], reach: usize) {
        for position in self.computed.saturating_sub(reach)..self.computed {
            let hash = hash_of(self.namespace, &self.tokens[..=position]);
            let slot = self.window[position];
            assert_eq!(
                window_content[slot as usize], hash,
                "window slot {slot} at {position} of {}",
                self.computed
            );
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Admit { second: bool, tokens: Vec<u32> },
    Compute { request: usize, count: usize },
    Insert { request: usize },
    FreeBehind { request: usize, shrink: usize },
    Finish { request: usize, keep: bool },
    Flush,
}

/// Few distinct tokens in long runs, so that prefixes meet at all lengths.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec((0..2_u32, 1..25_usize), 1..5)
        .prop_map(|runs| runs.iter().flat_map(|&(token, n)| vec![token; n]).collect())
}

fn op() -> impl Strategy<Value = Op> {
    let request = any::<usize>();
    prop_oneof![
        4 => (0..4_u8, tokens())
            .prop_map(|(other, tokens)| Op::Admit { second: other == 0, tokens }),
        12 => (request, 1..30_usize).prop_map(|(request, count)| Op::Compute { request, count }),
        6 => request.prop_map(|request| Op::Insert { request }),
        6 => (request, 0..20_usize)
            .prop_map(|(request, shrink)| Op::FreeBehind { request, shrink }),
        3 => (request, 0..4_u8).prop_map(|(request, r)| Op::Finish { request, keep: r > 0 }),
        1 => Just(Op::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn windows_hold_what_their_requests_wrote(
        page in prop::sample::select(vec![1_usize, 2, 8]),
        reach in 0..40_usize,
        window_slots in 20..200_usize,
        ops in vec(op(), 1..150),
    ) {
        let mut world = World::new(page, reach, window_slots);
        for op in ops {
            let index = |request: usize| request.checked_rem(world.running.len());
            match op {
                Op::Admit { second, tokens } => {
                    world.admit(if second { "second" } else { "" }, tokens);
                }
                Op::Compute { request, count } => {
                    if let Some(index) = index(request) {
                        world.compute(index, count);
                    }
                }
                Op::Insert { request } => {
                    if let Some(index) = index(request) {
                        world.insert(index);
                    }
                }
                Op::FreeBehind { request, shrink } => {
                    if let Some(index) = index(request) {
                        world.free_behind(index, shrink);
                    }
                }
                Op::Finish { request, keep } => {
                    if let Some(index) = index(request) {
                        world.finish(index, keep);
                    }
                }
                Op::Flush => drop(world.cache.flush()),
            }
            world.check();
        }
        while !world.running.is_empty() {
            world.finish(0, true);
            world.check();
        }
        world.cache.flush();
        let (usage, window) = (world.cache.usage(), world.cache.window_usage());
        prop_assert_eq!((usage.free, window.free), (usage.total, window.total));
    }
}

/// Computes `tokens` in chunks of `chunk`, as a server does. Returns how many were reused.
fn serve(world: &mut World, tokens: &[u32], chunk: usize) -> usize {
    let reused = world.admit("", tokens.to_vec()).unwrap();
    let index = world.running.len() - 1;
    while world.running[index].computed < tokens.len() {
        let before = world.running[index].computed;
        world.compute(index, chunk);
        assert!(world.running[index].computed > before, "a chunk fits");
        world.insert(index);
        world.free_behind(index, usize::MAX / 64);
        world.check();
    }
    world.finish(index, true);
    reused
}

#[test]
fn a_prompt_longer_than_all_window_slots_runs_through_them() {
    let mut world = World::new(4, 10, 40);
    let tokens: Vec<u32> = (0..150).collect();
    assert_eq!(serve(&mut world, &tokens, 16), 0);
    // Its end can be used again: 10 positions before the 149th, in whole pages.
    let reused = world.admit("", tokens).unwrap();
    assert_eq!(reused, 148);
    assert_eq!(world.cache.window_usage().protected, 12);
    world.check();
}

#[test]
fn prompts_that_part_reuse_what_is_before_as_long_as_its_window_is_there() {
    let mut world = World::new(1, 10, 60);
    let first: Vec<u32> = (0..50).collect();
    let mut second = first.clone();
    second[30..].fill(7);
    assert_eq!(serve(&mut world, &first, 20), 0);
    assert_eq!(serve(&mut world, &second, 20), 30);
    // Another prompt takes the window slots, those of the beginnings first. The ends that were used
    // last can be used the longest.
    let other: Vec<u32> = (100..140).collect();
    assert_eq!(serve(&mut world, &other, 20), 0);
    let [first, second] = [first, second].map(|t| world.cache.peek("", &t).tokens);
    assert!(first < 50 && second == 50, "{first} {second}");
}

#[test]
fn a_prefix_without_its_window_is_computed_again_and_can_be_used_then() {
    let mut world = World::new(1, 10, 24);
    let tokens: Vec<u32> = (0..40).collect();
    serve(&mut world, &tokens, 8);
    let other: Vec<u32> = (100..140).collect();
    serve(&mut world, &other, 8);
    assert_eq!(world.cache.peek("", &tokens).tokens, 0);
    // The slots of the other layers are still there, and stay where they are.
    let cached = world.cache.usage().evictable;
    assert_eq!(serve(&mut world, &tokens, 8), 0);
    assert_eq!(world.cache.usage().evictable, cached);
    assert_eq!(world.cache.peek("", &tokens).tokens, 40);
}
