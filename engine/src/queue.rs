//! Requests that wait, in the order of a policy.
//!
//! Except for logarithms, no cost here grows with the number of waiting requests: a step looks
//! at the first in order, at requests whose prefixes have just been cached, and at requests
//! that were parked until a running request has computed their prefix.

mod awaiting_adapter;
mod awaiting_grammar;
mod dfs;
mod growth;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};

use crate::active::ActiveRequest;
use crate::command::AbortTarget;
use crate::policy::SchedulePolicy;
use crate::request_id::RequestId;
use awaiting_adapter::AwaitingAdapter;
use growth::{Growth, page_key};
use rounds::Rounds;

/// The most prompts that are matched again in one step because more of them was cached.
const REVIEWS: usize = 256;

/// Requests with smaller ranks start earlier: ordered by round or priority, then by
/// policy.
type Rank = (u64, u64);

/// The round of requests that were preempted.
const PREEMPTED: u64 = 0;

#[derive(Debug)]
struct Waiter {
    request: ActiveRequest,
    round: u64,
    place: Place,
    /// The page that, when it is cached, makes the request due for a review.
    watched: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Ordered(Rank),
    /// The request waits until `leader`, a running request, has computed the `shared` tokens
    /// that both begin with.
    Parked {
        leader: RequestId,
        shared: usize,
    },
    /// The request waits for a slot for its adapter.
    AwaitingAdapter,
}

#[derive(Debug)]
pub(crate) struct WaitingQueue {
    policy: SchedulePolicy,
    page_size: usize,
    waiters: BTreeMap<RequestId, Waiter>,
    /// Requests whose grammars have not answered yet what their outputs begin with. They join
    /// the others when the answer is there, as if they arrived only then.
    awaiting_grammar: BTreeMap<RequestId, ActiveRequest>,
    /// Requests with names, by name.
    names: BTreeSet<(String, RequestId)>,
    order: BTreeSet<(Rank, RequestId)>,
    /// By leader, then in the order of the shared tokens.
    parked: BTreeMap<RequestId, BTreeSet<(usize, RequestId)>>,
    awaiting_adapter: AwaitingAdapter,
    rounds: Rounds,
    growth: Growth,
    /// Whether the walk of the current round is planned, under `DfsWeight`.
    planned: bool,
}

impl WaitingQueue {
    pub fn new(policy: SchedulePolicy, page_size: usize) -> Self {
        Self {
            policy,
            page_size,
            waiters: BTreeMap::new(),
            awaiting_grammar: BTreeMap::new(),
            names: BTreeSet::new(),
            order: BTreeSet::new(),
            parked: BTreeMap::new(),
            awaiting_adapter: AwaitingAdapter::default(),
            rounds: Rounds::new(match policy {
                SchedulePolicy::DfsWeight => 0,
                _ => Rounds::JOINERS,
            }),
            growth: Growth::default(),
            planned: false,
        }
    }

    pub fn len(&self) -> usize {
        self.waiters.len() + self.awaiting_grammar.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.awaiting_grammar.is_empty()
    }

    /// Whether requests wait for a prefix that a running request is about to compute.
    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// How many requests wait for something else than room: for a grammar's answer, or for a prefix
    /// that a running request is about to compute.
    pub fn deferred(&self) -> usize {
        let parked: usize = self.parked.values().map(BTreeSet::len).sum();
        self.awaiting_grammar.len() + parked
    }

    /// Adds a request that has never run.
    pub fn push(&mut self, request: ActiveRequest) {
        if let Some(name) = &request.name {
            self.names.insert((name.clone(), request.id));
        }
        if request.is_late() {
            self.awaiting_grammar.insert(request.id, request);
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
        let round = self.rounds.join();
        if self.policy == SchedulePolicy::Lpm {
            self.growth.make_due(request.id);
        }
        self.insert(request, round);
    }

    /// Adds a request that was preempted.
    pub fn put_back(&mut self, request: ActiveRequest) {
        if let Some(name) = &request.name {
            self.names.insert((name.clone(), request.id));
        }
        self.insert(request, PREEMPTED);
    }

    fn insert(&mut self, request: ActiveRequest, round: u64) {
        let rank = self.rank(&request, round);
        self.order.insert((rank, request.id));
        let waiter = Waiter {
            round,
            place: Place::Ordered(rank),
            watched: None,
            request,
        };
        self.waiters.insert(waiter.request.id, waiter);
    }

    /// The rank of a request of which, as far as is known, the cache has nothing.
    fn rank(&self, request: &ActiveRequest, round: u64) -> Rank {
        let class = round.min(1);
        match self.policy {
            SchedulePolicy::Priority => (descending(request.priority), class),
            _ if round == PREEMPTED => (PREEMPTED, 0),
            SchedulePolicy::Fcfs => (class, 0),
            SchedulePolicy::Lpm | SchedulePolicy::DfsWeight => (round, u64::MAX),
            SchedulePolicy::Lof => (round, u64::MAX - request.params.max_tokens as u64),
            SchedulePolicy::Random => (round, request.id.shuffled()),
        }
    }

    /// The request that starts next.
    pub fn first(&mut self) -> Option<&ActiveRequest> {
        self.plan();
        let &(_, id) = self.order.first()?;
        let waiter = &self.waiters[&id];
        // Otherwise no request of the current round is chosen yet, and requests that
        // arrive may still join it.
        if waiter.round != PREEMPTED {
            self.rounds.begin();
        }
        Some(&waiter.request)
    }

    /// Plans the walk over all requests of the current round, unless it is planned.
    fn plan(&mut self) {
        if self.planned || self.policy != SchedulePolicy::DfsWeight {
            return;
        }
        let current = self.rounds.current();
        let mut planned: Vec<_> = self
            .waiters
            .values_mut()
            .filter(|w| w.round == current && matches!(w.place, Place::Ordered(_)))
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

    /// Records that the cache has the first `matched` tokens, and no more, of the request that
    /// was first in order. Returns whether it is still first in order.
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
        if waiter.round != PREEMPTED {
            let rank = (waiter.round, u64::MAX - matched as u64);
            if rank != before {
                waiter.place = Place::Ordered(rank);
                self.order.remove(&(before, id));
                self.order.insert((rank, id));
            }
        }
    }

    /// Records that tokens `from..to` of `tokens` have been cached, both at page boundaries.
    pub fn cached(&mut self, namespace: &str, tokens: &[u32], from: usize, to: usize) {
        if self.policy == SchedulePolicy::Lpm && !self.waiters.is_empty() {
            for at in (from..to).step_by(self.page_size) {
                self.growth
                    .cached(page_key(namespace, tokens, at, self.page_size));
            }
        }
    }

    /// Matches requests of which the cache has more than was known, by `matched`. Their number
    /// is bounded; the others follow in the next step.
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

    /// Parks the request until `leader` has computed the `shared` tokens that both begin with.
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

    /// Puts parked requests back in order once their leaders have computed the shared tokens.
    /// `computed` returns how many of its tokens a leader has computed; `None` if it is not a
    /// leader any more.
    pub fn unpark(&mut self, computed: impl Fn(RequestId) -> Option<usize>) {
        let mut ready = Vec::new();
        self.parked.retain(|&leader, parked| {
            let computed = computed(leader).unwrap_or(usize::MAX);
            while let Some(&(shared, id)) = parked.first()
                && shared <= computed
            {
                parked.pop_first();
                ready.push((id, shared));
            }
            !parked.is_empty()
        });
        for (id, shared) in ready {
            let waiter = &self.waiters[&id];
            let mut rank = self.rank(&waiter.request, waiter.round);
            if waiter.round != PREEMPTED {
                match self.policy {
                    // If the prefix is not cached after all, `confirm` corrects the rank.
                    SchedulePolicy::Lpm => rank.1 = u64::MAX - shared as u64,
                    // The walk has passed the request's place.
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

    /// Takes a request out of the queue.
    pub fn remove(&mut self, id: RequestId) -> Option<ActiveRequest> {
        if let Some(request) = self.awaiting_grammar.remove(&id) {
            self.forget_name(&request, id);
            return Some(request);
        }
        let waiter = self.waiters.remove(&id)?;
        match waiter.place {
            Place::Ordered(rank) => drop(self.order.remove(&(rank, id))),
            Place::Parked { leader, shared } => {
                if let Some(parked) = self.parked.get_mut(&leader) {
                    parked.remove(&(shared, id));
                    if parked.is_empty() {
                        self.parked.remove(&leader);
                    }
                }
            }
            Place::AwaitingAdapter => {
                if let Some(adapter) = &waiter.request.adapter {
                    self.awaiting_adapter.remove(&adapter.digest, id);
                }
            }
        }
        if let Some(page) = waiter.watched {
            self.growth.forget(page, id);
        }
        self.forget_name(&waiter.request, id);
        if waiter.round != PREEMPTED && self.rounds.leave(waiter.round) {
            self.planned = false;
        }
        Some(waiter.request)
    }

    /// The requests that `target` names, found without a look at the others.
    pub fn named_by(&self, target: &AbortTarget) -> Vec<RequestId> {
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

    /// All waiting requests.
    pub fn iter(&self) -> impl Iterator<Item = &ActiveRequest> {
        let waiters = self.waiters.values().map(|waiter| &waiter.request);
        waiters.chain(self.awaiting_grammar.values())
    }

    /// The requests that wait for a prefix that a running request is about to compute.
    #[cfg(test)]
    pub fn parked(&self) -> impl Iterator<Item = RequestId> {
        self.parked.values().flatten().map(|&(_, id)| id)
    }
}

/// A number that is smaller for higher priorities.
fn descending(priority: i32) -> u64 {
    u64::from(!(priority.cast_unsigned() ^ (1 << 31)))
}
