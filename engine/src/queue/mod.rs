//! Requests that wait, in the order of a policy.
//!
//! Nothing here costs more when more are waiting, but for logarithms: a step looks
//! at the first in order, at those whose prefixes have just been cached, and at
//! those that waited for a running request's prefix.

mod beginners;
mod dfs;
mod generation;
mod growth;
mod policy;

use std::collections::{BTreeMap, BTreeSet};

use crate::active::ActiveRequest;
use crate::command::AbortTarget;
use crate::inbox::RequestId;
use generation::Generations;
use growth::{Growth, page_key};

pub use policy::SchedulePolicy;

/// Prompts matched anew in one step because the cache has more of them.
const REVIEWS: usize = 256;

/// Smaller starts earlier: by generation or priority, and in that by policy.
type Rank = (u64, u64);

/// The generation of requests that have run before.
const RETURNED: u64 = 0;

#[derive(Debug)]
struct Waiter {
    request: ActiveRequest,
    generation: u64,
    place: Place,
    /// The page whose caching makes it due for a review.
    watched: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Ordered(Rank),
    /// Until `leader` has computed the `shared` tokens that both begin with.
    Parked {
        leader: RequestId,
        shared: usize,
    },
}

#[derive(Debug)]
pub(crate) struct WaitingQueue {
    policy: SchedulePolicy,
    page_size: usize,
    waiters: BTreeMap<RequestId, Waiter>,
    /// Those whose grammars have not told yet what their outputs begin with: they join
    /// the others as if they came only then.
    beginners: BTreeMap<RequestId, ActiveRequest>,
    /// Those that their callers named.
    names: BTreeSet<(String, RequestId)>,
    order: BTreeSet<(Rank, RequestId)>,
    parked: BTreeMap<RequestId, BTreeSet<(usize, RequestId)>>,
    generations: Generations,
    growth: Growth,
    /// Whether the current generation's walk is planned, under `DfsWeight`.
    planned: bool,
}

impl WaitingQueue {
    pub fn new(policy: SchedulePolicy, page_size: usize) -> Self {
        Self {
            policy,
            page_size,
            waiters: BTreeMap::new(),
            beginners: BTreeMap::new(),
            names: BTreeSet::new(),
            order: BTreeSet::new(),
            parked: BTreeMap::new(),
            generations: Generations::new(match policy {
                SchedulePolicy::DfsWeight => 0,
                _ => Generations::JOINERS,
            }),
            growth: Growth::default(),
            planned: false,
        }
    }

    pub fn len(&self) -> usize {
        self.waiters.len() + self.beginners.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.beginners.is_empty()
    }

    /// Whether some wait for what a running request is about to compute.
    pub fn has_followers(&self) -> bool {
        !self.parked.is_empty()
    }

    /// A request that has never run.
    pub fn push(&mut self, request: ActiveRequest) {
        if let Some(name) = &request.name {
            self.names.insert((name.clone(), request.id));
        }
        if request.is_late() {
            self.beginners.insert(request.id, request);
        } else {
            self.join(request);
        }
    }

    fn forget_name(&mut self, request: &ActiveRequest, id: RequestId) {
        if let Some(name) = &request.name {
            self.names.remove(&(name.clone(), id));
        }
    }

    fn join(&mut self, request: ActiveRequest) {
        let generation = self.generations.join();
        if self.policy == SchedulePolicy::Lpm {
            self.growth.is_due(request.id);
        }
        self.insert(request, generation);
    }

    /// A request that had to give its slots back.
    pub fn put_back(&mut self, request: ActiveRequest) {
        if let Some(name) = &request.name {
            self.names.insert((name.clone(), request.id));
        }
        self.insert(request, RETURNED);
    }

    fn insert(&mut self, request: ActiveRequest, generation: u64) {
        let rank = self.rank(&request, generation);
        self.order.insert((rank, request.id));
        let waiter = Waiter {
            generation,
            place: Place::Ordered(rank),
            watched: None,
            request,
        };
        self.waiters.insert(waiter.request.id, waiter);
    }

    /// The place of a request of which the cache is not known to have anything.
    fn rank(&self, request: &ActiveRequest, generation: u64) -> Rank {
        let class = generation.min(1);
        match self.policy {
            SchedulePolicy::Priority => (descending(request.priority), class),
            _ if generation == RETURNED => (RETURNED, 0),
            SchedulePolicy::Fcfs => (class, 0),
            SchedulePolicy::Lpm | SchedulePolicy::DfsWeight => (generation, u64::MAX),
            SchedulePolicy::Lof => (generation, u64::MAX - request.params.max_tokens as u64),
            SchedulePolicy::Random => (generation, request.id.shuffled()),
        }
    }

    /// Who starts next.
    pub fn first(&mut self) -> Option<&ActiveRequest> {
        self.plan();
        let &(_, id) = self.order.first()?;
        let waiter = &self.waiters[&id];
        // Else nobody of the current one is chosen, and whoever comes may still join it.
        if waiter.generation != RETURNED {
            self.generations.begin();
        }
        Some(&waiter.request)
    }

    /// Plans the walk over all that wait, if none is planned that they are in.
    fn plan(&mut self) {
        if self.planned || self.policy != SchedulePolicy::DfsWeight {
            return;
        }
        let current = self.generations.current();
        let mut planned: Vec<_> = self
            .waiters
            .values_mut()
            .filter(|w| w.generation == current && matches!(w.place, Place::Ordered(_)))
            .collect();
        if planned.is_empty() {
            return;
        }
        self.planned = true;
        let prompts: Vec<_> = planned
            .iter()
            .map(|waiter| (&*waiter.request.namespace, &*waiter.request.tokens))
            .collect();
        for (place, index) in (0..).zip(dfs::heaviest_first(&prompts)) {
            let waiter = &mut planned[index];
            let rank = (current, place);
            if let Place::Ordered(before) = waiter.place {
                self.order.remove(&(before, waiter.request.id));
                self.order.insert((rank, waiter.request.id));
            }
            waiter.place = Place::Ordered(rank);
        }
    }

    /// Tells that the cache has the first `matched` tokens of the first in order
    /// and no more; returns whether it is the first in order all the same.
    pub fn confirm(&mut self, id: RequestId, matched: usize) -> bool {
        if self.policy == SchedulePolicy::Lpm {
            self.rerank(id, matched);
        }
        self.order.first().is_some_and(|&(_, first)| first == id)
    }

    fn rerank(&mut self, id: RequestId, matched: usize) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let Place::Ordered(before) = waiter.place else {
            return;
        };
        if let Some(page) = waiter.watched.take() {
            self.growth.forget(page, id);
        }
        let ActiveRequest {
            namespace, tokens, ..
        } = &waiter.request;
        if matched + self.page_size <= waiter.request.reusable() {
            let page = page_key(namespace, tokens, matched, self.page_size);
            self.growth.watch(page, id);
            waiter.watched = Some(page);
        }
        if waiter.generation != RETURNED {
            let rank = (waiter.generation, u64::MAX - matched as u64);
            if rank != before {
                waiter.place = Place::Ordered(rank);
                self.order.remove(&(before, id));
                self.order.insert((rank, id));
            }
        }
    }

    /// Tells that tokens `from..to` of `tokens` have been cached, both of them at
    /// page borders.
    pub fn cached(&mut self, namespace: &str, tokens: &[u32], from: usize, to: usize) {
        if self.policy == SchedulePolicy::Lpm && !self.waiters.is_empty() {
            for at in (from..to).step_by(self.page_size) {
                self.growth
                    .cached(page_key(namespace, tokens, at, self.page_size));
            }
        }
    }

    /// Matches those of which the cache has more than was known, by `matched`; a
    /// bounded number of them, the others next time.
    pub fn review(&mut self, mut matched: impl FnMut(&ActiveRequest) -> usize) {
        for _ in 0..REVIEWS {
            let Some(id) = self.growth.take_due() else {
                return;
            };
            let Some(waiter) = self.waiters.get(&id) else {
                continue;
            };
            if let Place::Ordered(_) = waiter.place {
                let matched = matched(&waiter.request);
                self.rerank(id, matched);
            }
        }
    }

    /// Sets the request aside until `leader` has computed the `shared` tokens that
    /// the two begin with.
    pub fn park(&mut self, id: RequestId, leader: RequestId, shared: usize) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if let Place::Ordered(rank) = waiter.place {
            self.order.remove(&(rank, id));
            waiter.place = Place::Parked { leader, shared };
            self.parked.entry(leader).or_default().insert((shared, id));
        }
    }

    /// Brings back those whose leader is done with what they share. `computed` is
    /// how many of its tokens a leader has computed; `None` if it is none any more.
    pub fn unpark(&mut self, computed: impl Fn(RequestId) -> Option<usize>) {
        let mut ready = Vec::new();
        self.parked.retain(|&leader, followers| {
            let computed = computed(leader).unwrap_or(usize::MAX);
            while let Some(&(shared, id)) = followers.first()
                && shared <= computed
            {
                followers.pop_first();
                ready.push((id, shared));
            }
            !followers.is_empty()
        });
        for (id, shared) in ready {
            let waiter = &self.waiters[&id];
            let mut rank = self.rank(&waiter.request, waiter.generation);
            if waiter.generation != RETURNED {
                match self.policy {
                    // If it is not there after all, it is found out in time.
                    SchedulePolicy::Lpm => rank.1 = u64::MAX - shared as u64,
                    // The walk has passed its place.
                    SchedulePolicy::DfsWeight => rank.1 = 0,
                    _ => {}
                }
            }
            self.order.insert((rank, id));
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.place = Place::Ordered(rank);
            }
        }
    }

    /// Takes a request out, to run or to leave.
    pub fn remove(&mut self, id: RequestId) -> Option<ActiveRequest> {
        if let Some(request) = self.beginners.remove(&id) {
            self.forget_name(&request, id);
            return Some(request);
        }
        let waiter = self.waiters.remove(&id)?;
        match waiter.place {
            Place::Ordered(rank) => drop(self.order.remove(&(rank, id))),
            Place::Parked { leader, shared } => {
                if let Some(followers) = self.parked.get_mut(&leader) {
                    followers.remove(&(shared, id));
                    if followers.is_empty() {
                        self.parked.remove(&leader);
                    }
                }
            }
        }
        if let Some(page) = waiter.watched {
            self.growth.forget(page, id);
        }
        self.forget_name(&waiter.request, id);
        if waiter.generation != RETURNED && self.generations.leave(waiter.generation) {
            self.planned = false;
        }
        Some(waiter.request)
    }

    /// Those that `target` means, found without a look at the others.
    pub fn meant_by(&self, target: &AbortTarget) -> Vec<RequestId> {
        let (AbortTarget::Id(start) | AbortTarget::Prefix(start)) = target else {
            return self.iter().map(|request| request.id).collect();
        };
        let from = (start.clone(), RequestId::FIRST);
        self.names
            .range(from..)
            .take_while(|(name, _)| target.matches(Some(name)))
            .map(|&(_, id)| id)
            .collect()
    }

    /// All that wait.
    pub fn iter(&self) -> impl Iterator<Item = &ActiveRequest> {
        let waiters = self.waiters.values().map(|waiter| &waiter.request);
        waiters.chain(self.beginners.values())
    }
}

/// Smaller for higher priorities.
fn descending(priority: i32) -> u64 {
    u64::from(!(priority.cast_unsigned() ^ (1 << 31)))
}
