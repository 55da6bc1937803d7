//! Who of the waiting starts.

use hearth_radix::{Peeked, common_prefix};

use super::Scheduler;
use crate::active::{ActiveRequest, Running};
use crate::config::EngineConfig;
use crate::inbox::RequestId;
use crate::kv::RequestKv;
use crate::queue::SchedulePolicy;

/// Waiting requests looked at in one step: bounds what a step costs, and with it
/// how many requests can start in one.
const LOOKED_AT: usize = 128;

/// A prefix that a running request is still computing is worth waiting for from
/// this many tokens on.
const WORTH_WAITING: usize = 32;

impl Scheduler {
    fn is_full(&self) -> bool {
        self.running.len() >= self.config.max_running.min(self.config.max_batch_tokens)
    }

    /// Whether another request could run, or take the place of one that does.
    pub(super) fn has_place(&self) -> bool {
        !self.is_full() || self.config.schedule == SchedulePolicy::Priority
    }

    /// Starts waiting requests in order while there is room for them and for
    /// what the running ones are expected to generate.
    ///
    /// Nobody gives way to them while the device is at a batch.
    pub(super) fn admit(&mut self) {
        self.may_start = false;
        if self.waiting.is_empty() {
            return;
        }
        self.bring_back_followers();
        let kv = &mut self.kv;
        self.waiting.review(|request| kv.peek(request).tokens);
        let mut looked_at = 0;
        // While nothing runs there is no step that more looking could delay.
        while looked_at < LOOKED_AT || self.running.is_empty() {
            looked_at += 1;
            if !self.has_place() {
                return;
            }
            let full = self.is_full();
            let Some(request) = self.waiting.first() else {
                return;
            };
            let (id, priority, remaining) = (request.id, request.priority, request.remaining());
            if full {
                if !self.take_place(priority) {
                    return;
                }
                continue;
            }
            let found = self.kv.peek(request);
            if let Some((leader, shared)) = leader(&self.running, request, found, &self.config) {
                self.waiting.park(id, leader, shared);
                continue;
            }
            let spare = self.spare_beside(remaining);
            if !self.waiting.confirm(id, found.tokens) {
                continue;
            }
            let request = self.waiting.first().expect("it was confirmed");
            match self.kv.admit(request, found, spare) {
                Some(kv) => self.start(id, kv),
                None if self.take_place(priority) => {}
                None => return,
            }
        }
    }

    /// Slots to leave for what the running requests are expected to generate, and
    /// another one that may generate `remaining` tokens.
    fn spare_beside(&self, remaining: usize) -> usize {
        // Alone it needs no reserve: it fits to its last token.
        if self.running.is_empty() {
            return 0;
        }
        let running = self.running.iter().map(|r| r.request.remaining());
        let all = running.chain([remaining]);
        all.map(|tokens| self.ratio.reserve(tokens)).sum()
    }

    /// Who gives way to a waiting request of `priority`, under the policy that has
    /// some give way.
    fn victim_of(&self, priority: i32) -> Option<usize> {
        let victim = self.victim()?;
        let lower = self.running[victim].request.priority < priority;
        (self.config.schedule == SchedulePolicy::Priority && lower).then_some(victim)
    }

    /// Has a running request give way to a waiting one of `priority`; returns whether one
    /// has.
    fn take_place(&mut self, priority: i32) -> bool {
        let victim = self.victim_of(priority);
        match victim {
            Some(_) if self.in_flight > 0 => self.may_start = true,
            Some(victim) => self.preempt(victim),
            None => {}
        }
        victim.is_some() && self.in_flight == 0
    }

    /// Lets those start that waited for a prefix that is there now.
    fn bring_back_followers(&mut self) {
        let running = &self.running;
        self.waiting.unpark(|leader| {
            let leader = running.iter().find(|r| r.request.id == leader)?;
            (leader.pending() > 1).then_some(leader.kv.computed)
        });
    }

    fn start(&mut self, id: RequestId, kv: RequestKv) {
        let mut request = self.waiting.remove(id).expect("it waits");
        if request.start(kv.reused()) {
            self.counters.started += 1;
            self.counters.prompt_tokens += request.prompt_len as u64;
            // What a grammar forces after the prompt may be cached, too.
            let cached = kv.reused().min(request.prompt_len);
            self.counters.cached_tokens += cached as u64;
            self.counters.host_tokens += cached.saturating_sub(kv.computed) as u64;
        }
        self.running.push(Running {
            request,
            kv,
            shares: false,
        });
    }
}

/// The running request that is about to compute more of the prompt of `request`
/// than the cache has, if that is worth waiting for, and how much of it; of several
/// the one that computes most of it.
fn leader(
    running: &[Running],
    request: &ActiveRequest,
    found: Peeked,
    config: &EngineConfig,
) -> Option<(RequestId, usize)> {
    if !config.prefix_cache {
        return None;
    }
    let reusable = &request.tokens[..request.reusable()];
    let prefills = running
        .iter()
        .filter(|leader| leader.pending() > 1 && leader.request.namespace == request.namespace);
    prefills
        .map(|leader| {
            let common = common_prefix(reusable, &leader.request.tokens);
            let shared = common / config.page_size * config.page_size;
            (leader, shared)
        })
        .filter(|(leader, shared)| {
            *shared > leader.kv.computed && *shared >= found.tokens + WORTH_WAITING
        })
        .map(|(leader, shared)| (leader.request.id, shared))
        .max_by_key(|&(_, shared)| shared)
}
