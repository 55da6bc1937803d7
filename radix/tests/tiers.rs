//! Both tiers with simulated memory: every slot holds the value of its prefix, and prefixes
//! are found where the write policy says.
#![allow(clippy::unwrap_used)] // helpers are not #[test] functions, which may

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use hearth_forward::{CopyDirection, KvCopy};
use hearth_radix::{EvictionPolicy, HostWritePolicy, Prefix, PrefixLock, TieredCache};
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: usize = 48;

/// The value that stands for the keys and values of the last token of a prefix.
fn value(namespace: u8, prefix: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, prefix).hash(&mut hasher);
    hasher.finish()
}

/// A request whose first `computed` tokens are in its slots, and which loads more from `host`.
struct Running {
    namespace: u8,
    tokens: Vec<u32>,
    slots: Vec<u32>,
    computed: usize,
    lock: PrefixLock,
    host: Option<Prefix>,
}

struct World {
    cache: TieredCache,
    page_size: usize,
    device: Vec<u64>,
    host: Vec<u64>,
    running: Vec<Running>,
    /// Every prefix of whole pages that was cached at any time since the last flush.
    ever: HashSet<(u8, Vec<u32>)>,
    /// Those of them that another request found in the cache.
    shared: HashSet<(u8, Vec<u32>)>,
    copied: [usize; 2],
}

impl World {
    fn new(
        page_size: usize,
        host_slots: usize,
        eviction: EvictionPolicy,
        policy: HostWritePolicy,
    ) -> Self {
        let cache = TieredCache::new(SLOTS, page_size, eviction).unwrap();
        Self {
            cache: cache.with_host(host_slots, eviction, policy).unwrap(),
            page_size,
            device: vec![0; SLOTS],
            host: vec![0; host_slots],
            running: Vec::new(),
            ever: HashSet::new(),
            shared: HashSet::new(),
            copied: [0; 2],
        }
    }

    fn carry_out(&mut self) {
        for copy in self.cache.take_copies() {
            let KvCopy {
                direction,
                device,
                host,
            } = copy;
            assert_eq!(device.len(), host.len());
            for (&device, &host) in device.iter().zip(&host) {
                let (device, host) = (
                    &mut self.device[device as usize],
                    &mut self.host[host as usize],
                );
                match direction {
                    CopyDirection::ToHost => *host = *device,
                    CopyDirection::ToDevice => *device = *host,
                }
            }
            let index = usize::from(direction == CopyDirection::ToDevice);
            self.copied[index] += device.len();
        }
    }

    fn admit(&mut self, namespace: u8, tokens: Vec<u32>) {
        let name = namespace.to_string();
        let Prefix {
            mut slots, lock, ..
        } = self.cache.match_prefix(&name, &tokens, 0);
        self.assert_holds(namespace, &tokens, &slots, false);
        for end in (self.page_size..=slots.len()).step_by(self.page_size) {
            self.shared.insert((namespace, tokens[..end].to_vec()));
        }
        let host = self.cache.match_host(&name, &tokens, 0);
        let on_host = host.as_ref().map_or(0, |host| host.slots.len());
        assert_eq!(on_host, host.as_ref().map_or(0, |host| host.lock.tokens()));
        let computed = slots.len();
        if self
            .cache
            .allocate(tokens.len() - computed, &mut slots)
            .is_ok()
        {
            self.running.push(Running {
                namespace,
                tokens,
                slots,
                computed,
                lock,
                host: host.filter(|_| on_host > computed),
            });
        }
    }

    fn assert_holds(&self, namespace: u8, tokens: &[u32], slots: &[u32], host: bool) {
        let memory = if host { &self.host } else { &self.device };
        for (at, &slot) in slots.iter().enumerate() {
            let expected = value(namespace, &tokens[..=at]);
            assert_eq!(memory[slot as usize], expected, "token {at}, host {host}");
        }
    }

    /// One step of a request: loads as many tokens as it may, or computes `share` of the rest.
    fn advance(&mut self, index: usize, share: f64) {
        let Running {
            namespace,
            tokens,
            slots,
            computed,
            host,
            ..
        } = &mut self.running[index];
        let name = namespace.to_string();
        let before = *computed;
        let mut loaded = 0;
        if let Some(prefix) = host {
            loaded = self.cache.load(&prefix.slots[before..], &slots[before..]);
            *computed += loaded;
            if *computed == prefix.slots.len() {
                *host = None;
            }
        } else {
            let rest = (tokens.len() - before) as f64;
            *computed += (rest * share).ceil() as usize;
            for at in before..*computed {
                self.device[slots[at] as usize] = value(*namespace, &tokens[..=at]);
            }
        }
        let (computed, tokens, namespace) = (*computed, tokens.clone(), *namespace);
        if loaded > 0 {
            self.carry_out();
        }
        let running = &mut self.running[index];
        let done = &tokens[..computed];
        running.lock = self
            .cache
            .insert(&name, done, 0, &mut running.slots[..computed]);
        for end in (self.page_size..=computed).step_by(self.page_size) {
            self.ever.insert((namespace, tokens[..end].to_vec()));
        }
    }

    fn release(&mut self, index: usize) {
        let Running { slots, lock, .. } = self.running.swap_remove(index);
        self.cache.free(&slots[lock.tokens()..]);
    }

    fn check(&mut self) {
        let own = |request: &Running| request.slots[request.lock.tokens()..].to_vec();
        let held: Vec<u32> = self.running.iter().flat_map(own).collect();
        self.cache.check(&held, &[]).unwrap();
        let host = self.cache.host_usage();
        assert_eq!(host.free + host.evictable + host.protected, host.total);
        assert_eq!(host.total, self.host.len());
    }
}

#[derive(Clone, Debug)]
enum Op {
    Admit(u8, Vec<u32>),
    Advance(usize, f64),
    Release(usize),
    Flush,
    /// How many tokens each of the next operations may copy.
    Allow(usize),
}

/// Few distinct tokens in long runs, so that prefixes meet at all lengths.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec((0..2_u32, 1..12_usize), 1..5)
        .prop_map(|runs| runs.iter().flat_map(|&(token, n)| vec![token; n]).collect())
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..2_u8, tokens()).prop_map(|(namespace, tokens)| Op::Admit(namespace, tokens)),
        12 => (any::<usize>(), 0.0..=1.0).prop_map(|(request, share)| Op::Advance(request, share)),
        6 => any::<usize>().prop_map(Op::Release),
        1 => Just(Op::Flush),
        3 => (0..40_usize).prop_map(Op::Allow),
    ]
}

/// 3,000 short histories, or as many as `PROPTEST_CASES` says.
fn cases() -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok();
    given.map_or(3_000, |cases| cases.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn slots_of_both_tiers_hold_their_prefixes_and_a_large_host_has_the_prefixes_its_policy_copies(
        page_size in prop_oneof![Just(1_usize), Just(2), Just(8)],
        host_slots in prop_oneof![Just(0_usize), Just(7), Just(40), Just(5000)],
        eviction in prop_oneof![
            Just(EvictionPolicy::Lru),
            Just(EvictionPolicy::Lfu),
            Just(EvictionPolicy::Slru),
        ],
        policy in prop_oneof![
            Just(HostWritePolicy::WriteBack),
            Just(HostWritePolicy::WriteThrough),
            Just(HostWritePolicy::WriteThroughSelective),
        ],
        bounded in any::<bool>(),
        ops in vec(op(), 1..40),
    ) {
        let mut world = World::new(page_size, host_slots, eviction, policy);
        let mut allowed = usize::MAX;
        world.cache.allow_copies(allowed);
        for op in ops {
            world.copied = [0; 2];
            let index = |request: usize| request.checked_rem(world.running.len());
            match op {
                Op::Admit(namespace, tokens) => world.admit(namespace, tokens),
                Op::Advance(request, share) => {
                    if let Some(index) = index(request) {
                        world.advance(index, share);
                    }
                }
                Op::Release(request) => {
                    if let Some(index) = index(request) {
                        world.release(index);
                    }
                }
                Op::Flush => {
                    if world.running.is_empty() {
                        world.cache.flush();
                        world.ever.clear();
                        world.shared.clear();
                    }
                }
                Op::Allow(tokens) if bounded => allowed = tokens,
                Op::Allow(_) => {}
            }
            world.carry_out();
            prop_assert!(world.copied.iter().all(|&copied| copied <= allowed));
            world.cache.allow_copies(allowed);
            world.check();
            if bounded || host_slots < 5000 {
                continue;
            }
            // The naive model. With write-back, every prefix that was ever cached is in one of
            // the tiers; with write-through, it is on the host; with selective write-through,
            // it is on the host if and only if it was shared.
            for key in &world.ever {
                let (namespace, prefix) = key;
                let name = namespace.to_string();
                let on_host = world.cache.match_host(&name, prefix, 0);
                let on_host = on_host.map_or(0, |prefix| prefix.slots.len());
                match policy {
                    HostWritePolicy::WriteBack => {
                        let on_device = world.cache.peek(&name, prefix).tokens;
                        prop_assert_eq!(on_device.max(on_host), prefix.len());
                    }
                    HostWritePolicy::WriteThrough => prop_assert_eq!(on_host, prefix.len()),
                    HostWritePolicy::WriteThroughSelective => {
                        prop_assert_eq!(on_host == prefix.len(), world.shared.contains(key));
                    }
                }
            }
        }
        for (namespace, prefix) in world.ever.clone() {
            let name = namespace.to_string();
            let device = world.cache.match_prefix(&name, &prefix, 0).slots;
            // The match may have caused a copy to the host.
            world.carry_out();
            world.assert_holds(namespace, &prefix, &device, false);
            if let Some(host) = world.cache.match_host(&name, &prefix, 0) {
                world.assert_holds(namespace, &prefix, &host.slots, true);
            }
        }
        while !world.running.is_empty() {
            world.release(0);
        }
        world.cache.flush();
        world.check();
        let (device, host) = (world.cache.usage(), world.cache.host_usage());
        prop_assert_eq!((device.free, host.free), (device.total, host.total));
    }
}

#[test]
fn tokens_loaded_from_the_host_are_not_copied_to_it_again() {
    let mut world = World::new(1, 200, EvictionPolicy::Lru, HostWritePolicy::WriteBack);
    world.cache.allow_copies(usize::MAX);
    let first: Vec<u32> = (0..40).collect();
    let second: Vec<u32> = (100..140).collect();
    let mut copies = Vec::new();
    // The device has 48 slots: 8 tokens of the earlier prompt are not evicted.
    for tokens in [&first, &second, &first, &second] {
        world.copied = [0; 2];
        world.admit(0, tokens.clone());
        world.carry_out();
        while world.running[0].computed < tokens.len() {
            world.advance(0, 1.0);
        }
        world.release(0);
        world.check();
        copies.push(world.copied);
    }
    assert_eq!(copies, [[0, 0], [40, 0], [40, 32], [0, 32]]);
}
