//! The cache against a naive model: a map of every cached prefix.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::collections::HashMap;

use hearth_radix::{EvictionPolicy, KvCache, PrefixLock};
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: usize = 96;

/// A cached page, known by all tokens up to its end.
#[derive(Debug)]
struct Page {
    slots: Vec<u32>,
    last_used: u64,
    locks: usize,
}

/// What the radix tree stands for, without a tree: each operation is a scan.
struct Model {
    page_size: usize,
    pages: HashMap<(u8, Vec<u32>), Page>,
    clock: u64,
}

impl Model {
    /// The ends of the whole pages of `tokens`.
    fn ends(&self, tokens: &[u32]) -> impl Iterator<Item = usize> + use<> {
        (self.page_size..=tokens.len()).step_by(self.page_size)
    }

    fn find(&mut self, namespace: u8, tokens: &[u32]) -> Vec<u32> {
        self.clock += 1;
        let mut slots = Vec::new();
        for end in self.ends(tokens) {
            let Some(page) = self.pages.get_mut(&(namespace, tokens[..end].to_vec())) else {
                break;
            };
            page.last_used = self.clock;
            slots.extend(&page.slots);
        }
        slots
    }

    fn insert(&mut self, namespace: u8, tokens: &[u32], slots: &[u32]) {
        self.clock += 1;
        for end in self.ends(tokens) {
            let page = self
                .pages
                .entry((namespace, tokens[..end].to_vec()))
                .or_insert(Page {
                    slots: slots[end - self.page_size..end].to_vec(),
                    last_used: 0,
                    locks: 0,
                });
            page.last_used = self.clock;
        }
    }

    fn lock(&mut self, namespace: u8, prefix: &[u32], change: isize) {
        for end in self.ends(prefix) {
            let page = self.pages.get_mut(&(namespace, prefix[..end].to_vec()));
            let page = page.expect("a locked page is never evicted");
            page.locks = page.locks.checked_add_signed(change).unwrap();
        }
    }

    /// Drops the least recently used of the unlocked pages that nothing extends.
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
            let Some((key, _)) = idle.min_by_key(|(_, page)| page.last_used) else {
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

/// A request: its slots up to `lock.tokens()` are the cache's, the rest its own.
struct Running {
    namespace: u8,
    tokens: Vec<u32>,
    slots: Vec<u32>,
    lock: PrefixLock,
}

#[derive(Clone, Debug)]
enum Op {
    /// Match, and allocate the rest.
    Admit {
        namespace: u8,
        tokens: Vec<u32>,
    },
    /// Cache a share of what a running request has computed.
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
}

/// Few distinct tokens in long runs, so that prefixes meet at all lengths.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec((0..2_u32, 1..12_usize), 1..5)
        .prop_map(|runs| runs.iter().flat_map(|&(token, n)| vec![token; n]).collect())
}

fn op() -> impl Strategy<Value = Op> {
    let namespace = 0..2_u8;
    prop_oneof![
        4 => (namespace.clone(), tokens())
            .prop_map(|(namespace, tokens)| Op::Admit { namespace, tokens }),
        2 => (any::<usize>(), 0.0..=1.0)
            .prop_map(|(request, share)| Op::Checkpoint { request, share }),
        3 => any::<usize>().prop_map(|request| Op::Finish { request }),
        1 => any::<usize>().prop_map(|request| Op::Abort { request }),
        1 => (namespace, tokens()).prop_map(|(namespace, tokens)| Op::Touch { namespace, tokens }),
    ]
}

struct World {
    cache: KvCache,
    model: Model,
    running: Vec<Running>,
}

impl World {
    fn new(page_size: usize) -> Self {
        Self {
            cache: KvCache::new(SLOTS, page_size, EvictionPolicy::Lru).unwrap(),
            model: Model {
                page_size,
                pages: HashMap::new(),
                clock: 0,
            },
            running: Vec::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        let index = |request: usize| request.checked_rem(self.running.len());
        match op {
            Op::Admit { namespace, tokens } => self.admit(namespace, tokens),
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
                let found = self
                    .cache
                    .match_prefix(&namespace.to_string(), &tokens)
                    .slots;
                assert_eq!(found, self.model.find(namespace, &tokens));
            }
        }
    }

    fn admit(&mut self, namespace: u8, tokens: Vec<u32>) {
        let prefix = self.cache.match_prefix(&namespace.to_string(), &tokens);
        assert_eq!(prefix.slots, self.model.find(namespace, &tokens));
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
            slots,
            lock,
        } = &mut self.running[index];
        let (tokens, slots) = (&tokens[..computed], &mut slots[..computed]);
        self.model.insert(*namespace, tokens, slots);
        let new = self.cache.insert(&namespace.to_string(), tokens, slots);
        self.model.lock(*namespace, &tokens[..new.tokens()], 1);
        self.model.lock(*namespace, &tokens[..lock.tokens()], -1);
        assert_eq!(
            slots[..new.tokens()],
            self.model.find(*namespace, tokens)[..]
        );
        // The model's lookup above counts as a use; let the cache have it too.
        drop(self.cache.match_prefix(&namespace.to_string(), tokens));
        *lock = new;
    }

    fn release(&mut self, index: usize) {
        let Running {
            namespace,
            tokens,
            slots,
            lock,
        } = self.running.swap_remove(index);
        self.cache.free(&slots[lock.tokens()..]);
        self.model.lock(namespace, &tokens[..lock.tokens()], -1);
    }

    fn check(&mut self) {
        let own = |request: &Running| request.slots[request.lock.tokens()..].to_vec();
        let held: Vec<u32> = self.running.iter().flat_map(own).collect();
        self.cache.check(&held).unwrap();
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

proptest! {
    #[test]
    fn the_cache_is_the_map_of_its_prefixes_whatever_happens(
        page_size in prop_oneof![Just(1_usize), Just(2), Just(4)],
        ops in vec(op(), 1..60),
    ) {
        let mut world = World::new(page_size);
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.running.clear();
    }
}
