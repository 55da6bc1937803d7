//! Compares the cache with a naive model: a map of every cached prefix.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::collections::HashMap;

use hearth_radix::{EvictionPolicy, KvCache, PrefixLock};
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: usize = 96;

/// A cached page; its key in the map is all tokens up to its end.
#[derive(Debug)]
struct Page {
    slots: Vec<u32>,
    last_used: u64,
    created: u64,
    uses: u64,
    priority: i32,
    locks: usize,
}

/// Does what the radix tree does, without a tree: each operation scans the map.
struct Model {
    page_size: usize,
    policy: EvictionPolicy,
    pages: HashMap<(u8, Vec<u32>), Page>,
    clock: u64,
}

impl Model {
    /// The ends of the whole pages of `tokens`.
    fn ends(&self, tokens: &[u32]) -> impl Iterator<Item = usize> + use<> {
        (self.page_size..=tokens.len()).step_by(self.page_size)
    }

    fn find(&mut self, namespace: u8, tokens: &[u32], priority: i32) -> Vec<u32> {
        self.clock += 1;
        let mut slots = Vec::new();
        for end in self.ends(tokens) {
            let Some(page) = self.pages.get_mut(&(namespace, tokens[..end].to_vec())) else {
                break;
            };
            page.last_used = self.clock;
            page.uses += 1;
            page.priority = page.priority.max(priority);
            slots.extend(&page.slots);
        }
        slots
    }

    fn insert(&mut self, namespace: u8, tokens: &[u32], priority: i32, slots: &[u32]) {
        self.clock += 1;
        for end in self.ends(tokens) {
            let page = self
                .pages
                .entry((namespace, tokens[..end].to_vec()))
                .or_insert(Page {
                    slots: slots[end - self.page_size..end].to_vec(),
                    last_used: 0,
                    created: self.clock,
                    uses: 1,
                    priority,
                    locks: 0,
                });
            page.last_used = self.clock;
            page.priority = page.priority.max(priority);
        }
    }

    fn lock(&mut self, namespace: u8, prefix: &[u32], change: isize) {
        for end in self.ends(prefix) {
            let page = self.pages.get_mut(&(namespace, prefix[..end].to_vec()));
            let page = page.expect("a locked page is never evicted");
            page.locks = page.locks.checked_add_signed(change).unwrap();
        }
    }

    /// The page with the smallest rank is evicted first.
    fn rank(&self, page: &Page) -> (i64, u64) {
        let first = match self.policy {
            EvictionPolicy::Lru => 0,
            EvictionPolicy::Lfu => page.uses as i64,
            EvictionPolicy::Fifo => page.created as i64,
            EvictionPolicy::Slru => i64::from(page.uses > 1),
            EvictionPolicy::Priority => i64::from(page.priority),
            _ => panic!("a policy without a model"),
        };
        (first, page.last_used)
    }

    /// Drops at least `count` slots of unlocked pages that no longer prefix extends, in order of
    /// rank.
    fn evict(&mut self, count: usize) -> Vec<u32> {
        let mut evicted = Vec::new();
        while evicted.len() < count {
            let extended = |key: &(u8, Vec<u32>)| {
                let longer = |(space, tokens): &(u8, Vec<u32>)| {
                    *space == key.0 && tokens.len() > key.1.len() && tokens.starts_with(&key.1)
                };
                self.pages.keys().any(longer)
            };
            let idle = self
                .pages
                .iter()
                .filter(|(key, page)| page.locks == 0 && !extended(key));
            let Some((key, _)) = idle.min_by_key(|(_, page)| self.rank(page)) else {
                break;
            };
            let key = key.clone();
            evicted.extend(self.pages.remove(&key).unwrap().slots);
        }
        evicted
    }

    fn tokens_where(&self, keep: impl Fn(&Page) -> bool) -> usize {
        self.pages.values().filter(|page| keep(page)).count() * self.page_size
    }
}

/// A request. Its slots up to `lock.tokens()` belong to the cache, the rest to the request.
struct Running {
    namespace: u8,
    tokens: Vec<u32>,
    priority: i32,
    slots: Vec<u32>,
    lock: PrefixLock,
}

#[derive(Clone, Debug)]
enum Op {
    /// Match a prefix, and allocate slots for the other tokens.
    Admit {
        namespace: u8,
        tokens: Vec<u32>,
        priority: i32,
    },
    /// Cache a share of the tokens of a running request.
    Checkpoint {
        request: usize,
        share: f64,
    },
    Finish {
        request: usize,
    },
    Abort {
        request: usize,
    },
    /// A lookup that keeps nothing.
    Touch {
        namespace: u8,
        tokens: Vec<u32>,
    },
    /// Drop everything that no request uses.
    Flush,
}

/// Few distinct tokens in long runs, so that prefixes meet at all lengths.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec((0..2_u32, 1..12_usize), 1..5)
        .prop_map(|runs| runs.iter().flat_map(|&(token, n)| vec![token; n]).collect())
}

fn op() -> impl Strategy<Value = Op> {
    let namespace = 0..2_u8;
    prop_oneof![
        8 => (namespace.clone(), tokens(), -2..3_i32).prop_map(
            |(namespace, tokens, priority)| Op::Admit { namespace, tokens, priority }
        ),
        4 => (any::<usize>(), 0.0..=1.0)
            .prop_map(|(request, share)| Op::Checkpoint { request, share }),
        6 => any::<usize>().prop_map(|request| Op::Finish { request }),
        2 => any::<usize>().prop_map(|request| Op::Abort { request }),
        1 => Just(Op::Flush),
        2 => (namespace, tokens()).prop_map(|(namespace, tokens)| Op::Touch { namespace, tokens }),
    ]
}

struct World {
    cache: KvCache,
    model: Model,
    running: Vec<Running>,
}

impl World {
    fn new(page_size: usize, policy: EvictionPolicy) -> Self {
        Self {
            cache: KvCache::new(SLOTS, page_size, policy).unwrap(),
            model: Model {
                page_size,
                policy,
                pages: HashMap::new(),
                clock: 0,
            },
            running: Vec::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        let index = |request: usize| request.checked_rem(self.running.len());
        match op {
            Op::Admit {
                namespace,
                tokens,
                priority,
            } => self.admit(namespace, tokens, priority),
            Op::Checkpoint { request, share } => {
                let Some(index) = index(request) else { return };
                let len = self.running[index].tokens.len() as f64;
                // A request only ever caches more of itself.
                let computed = ((len * share) as usize).max(self.running[index].lock.tokens());
                self.checkpoint(index, computed);
            }
            Op::Finish { request } => {
                let Some(index) = index(request) else { return };
                self.checkpoint(index, self.running[index].tokens.len());
                self.release(index);
            }
            Op::Abort { request } => {
                let Some(index) = index(request) else { return };
                self.release(index);
            }
            Op::Touch { namespace, tokens } => {
                let name = namespace.to_string();
                let peeked = self.cache.peek(&name, &tokens).tokens;
                let found = self.cache.match_prefix(&name, &tokens, i32::MIN).slots;
                assert_eq!(found, self.model.find(namespace, &tokens, i32::MIN));
                assert_eq!(found.len(), peeked);
            }
            Op::Flush => {
                let flushed = self.model.evict(usize::MAX).len();
                assert_eq!(self.cache.flush(), flushed);
            }
        }
    }

    fn admit(&mut self, namespace: u8, tokens: Vec<u32>, priority: i32) {
        let name = namespace.to_string();
        let peeked = self.cache.peek(&name, &tokens);
        let protected = self.cache.usage().protected;
        let prefix = self.cache.match_prefix(&name, &tokens, priority);
        assert_eq!(prefix.slots, self.model.find(namespace, &tokens, priority));
        assert_eq!(peeked.tokens, prefix.slots.len());
        assert_eq!(protected + peeked.unlocked, self.cache.usage().protected);
        assert_eq!(prefix.slots.len(), prefix.lock.tokens());
        self.model
            .lock(namespace, &tokens[..prefix.lock.tokens()], 1);
        let mut slots = prefix.slots;
        let before = self.cache.usage();
        let need = tokens.len() - slots.len();
        match self.cache.allocate(need, &mut slots) {
            Ok(()) => {
                drop(self.model.evict(need.saturating_sub(before.free)));
                self.running.push(Running {
                    namespace,
                    tokens,
                    priority,
                    slots,
                    lock: prefix.lock,
                });
            }
            Err(error) => {
                assert_eq!((error.wanted, error.available), (need, before.available()));
                assert!(need > before.available());
                self.model
                    .lock(namespace, &tokens[..prefix.lock.tokens()], -1);
            }
        }
    }

    fn checkpoint(&mut self, index: usize, computed: usize) {
        let Running {
            namespace,
            tokens,
            priority,
            slots,
            lock,
        } = &mut self.running[index];
        let (tokens, slots) = (&tokens[..computed], &mut slots[..computed]);
        let name = namespace.to_string();
        self.model.insert(*namespace, tokens, *priority, slots);
        let new = self.cache.insert(&name, tokens, *priority, slots);
        self.model.lock(*namespace, &tokens[..new.tokens()], 1);
        self.model.lock(*namespace, &tokens[..lock.tokens()], -1);
        assert_eq!(
            slots[..new.tokens()],
            self.model.find(*namespace, tokens, *priority)[..]
        );
        // The model's lookup above counts as a use, so the cache has to have the same use.
        drop(self.cache.match_prefix(&name, tokens, *priority));
        *lock = new;
    }

    fn release(&mut self, index: usize) {
        let Running {
            namespace,
            tokens,
            slots,
            lock,
            ..
        } = self.running.swap_remove(index);
        self.cache.free(&slots[lock.tokens()..]);
        self.model.lock(namespace, &tokens[..lock.tokens()], -1);
    }

    fn check(&mut self) {
        let own = |request: &Running| request.slots[request.lock.tokens()..].to_vec();
        let held: Vec<u32> = self.running.iter().flat_map(own).collect();
        self.cache.check(&held, &[]).unwrap();
        let usage = self.cache.usage();
        assert_eq!(
            usage.evictable,
            self.model.tokens_where(|page| page.locks == 0)
        );
        assert_eq!(
            usage.protected,
            self.model.tokens_where(|page| page.locks > 0)
        );
    }
}

/// 10,000 short histories, or as many as `PROPTEST_CASES` says.
fn cases() -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok();
    given.map_or(10_000, |cases| cases.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn the_cache_equals_the_model_after_every_operation(
        page_size in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8), Just(64)],
        policy in prop_oneof![
            Just(EvictionPolicy::Lru),
            Just(EvictionPolicy::Lfu),
            Just(EvictionPolicy::Fifo),
            Just(EvictionPolicy::Slru),
            Just(EvictionPolicy::Priority),
        ],
        ops in vec(op(), 1..40),
    ) {
        let mut world = World::new(page_size, policy);
        for op in ops {
            world.apply(op);
            world.check();
        }
        while !world.running.is_empty() {
            world.release(0);
        }
        world.apply(Op::Flush);
        let usage = world.cache.usage();
        prop_assert_eq!(usage.free, usage.total);
    }
}
