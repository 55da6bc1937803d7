//! Which waiting requests start.

use hearth_radix::{Peeked, common_prefix};

use super::{DeviceIs, Scheduler};
use crate::active::ActiveRequest;
use crate::config::EngineConfig;
use crate::kv::RequestKv;
use crate::policy::SchedulePolicy;
use crate::request_id::RequestId;
use crate::running::Running;

/// The most waiting requests that are looked at in one step. This bounds the time that a step
/// takes, and with it how many requests can start in a step.
const MOST_LOOKED_AT: usize = 128;

/// A request waits for a prefix that a running request is still computing if at least this many
/// tokens of it are not cached yet.
const WORTH_WAITING: usize = 8;

impl Scheduler {
    fn is_full(&self) -> bool {
        self.running.len() >= self.config.max_running.min(self.config.max_batch_tokens)
    }

    /// Whether another request could run, or preempt one that does.
    pub(super) fn has_place(&self) -> bool {
        !self.is_full() || self.config.schedule == SchedulePolicy::Priority
    }

    /// Starts waiting requests in order while there is room for them, and for the tokens that
    /// the running requests are expected to generate. Requests are preempted for them only
    /// while the device is idle.
    pub(super) fn admit(&mut self, device: DeviceIs) {
        self.may_start = false;
        if self.waiting.is_empty() {
            return;
        }
        self.unpark();
        self.unpark_adapters();
        let kv = &mut self.kv;
        self.waiting.review(|request| kv.peek(request).tokens);
        let mut looked_at = 0;
        // While nothing runs, there is no step that a longer look could delay.
        while looked_at < MOST_LOOKED_AT || self.running.is_empty() {
            looked_at += 1;
            if !self.has_place() {
                return;
            }
            let full = self.is_full();
            let Some(request) = self.waiting.first() else {
                return;
            };
            let (id, priority, remaining) =
                (request.id, request.priority, request.remaining_here());
            if let Some(adapter) = &request.adapter
                && !self.adapters.has_slot_for(adapter)
            {
                // Requests behind it may start.
                self.waiting.park_for_adapter(id, self.scheduled);
                continue;
            }
            if full {
                if !self.preempt_for(priority, device) {
                    return;
                }
                continue;
            }
            let found = self.kv.peek(request);
            if let Some((leader, shared)) = leader(&self.running, request, found, &self.config) {
                self.waiting.park(id, leader, shared);
                continue;
            }
            let reserve = self.reserve_beside(remaining);
            let window_reserve = self.window_reserve();
            if !self.waiting.confirm(id, found.tokens) {
                continue;
            }
            let request = self.waiting.first().expect("it is still first in order");
            let output = self.new_token_ratio.reserve(remaining);
            let has_window = self
                .kv
                .has_window_for(request, found, output, window_reserve);
            let kv = match has_window {
                true => self.kv.admit(request, found, reserve),
                false => None,
            };
            match kv {
                Some(kv) => self.start(id, kv),
                None if self.preempt_for(priority, device) => {}
                None => return,
            }
        }
    }

    /// The slots to reserve for the tokens that the running requests are expected to generate,
    /// together with one more request that may generate `remaining` tokens.
    fn reserve_beside(&self, remaining: usize) -> usize {
        // A request that runs alone needs no reserve: its longest output fits.
        if self.running.is_empty() {
            return 0;
        }
        let running = self.running.iter().map(|r| r.request.remaining_here());
        let all = running.chain([remaining]);
        all.map(|tokens| self.new_token_ratio.reserve(tokens)).sum()
    }

    /// The window slots that the running requests are expected to take in addition to theirs; `None`
    /// if none runs: a request that runs alone needs no reserve.
    fn window_reserve(&self) -> Option<usize> {
        if !self.kv.has_windows() {
            return None;
        }
        let running = self.running.iter().map(|running| {
            let output = self
                .new_token_ratio
                .reserve(running.request.remaining_here());
            let tokens = running.request.tokens.len() + output;
            self.kv.window_growth(&running.kv, tokens)
        });
        (!self.running.is_empty()).then(|| running.sum())
    }

    /// Preempts a running request for a waiting one of `priority`, if the policy has such
    /// preemptions. Returns whether a request was preempted. While the device is busy this
    /// must wait for the end of the step.
    fn preempt_for(&mut self, priority: i32, device: DeviceIs) -> bool {
        let victim = self.victim().filter(|&victim| {
            let is_lower = self.running[victim].request.priority < priority;
            self.config.schedule == SchedulePolicy::Priority && is_lower
        });
        match (victim, device) {
            (Some(victim), DeviceIs::Idle) => self.preempt(victim),
            (Some(_), DeviceIs::Busy) => self.may_start = true,
            (None, _) => {}
        }
        victim.is_some() && device == DeviceIs::Idle
    }

    /// Puts requests back in order whose leaders have computed the shared prefix.
    fn unpark(&mut self) {
        let running = &self.running;
        self.waiting.unpark(|leader| {
            let leader = running.iter().find(|r| r.request.id == leader)?;
            (leader.pending() > 1).then_some(leader.kv.computed)
        });
    }

    fn start(&mut self, id: RequestId, kv: RequestKv) {
        let mut request = self.waiting.remove(id).expect("the request is waiting");
        if request.start(kv.reused()) {
            self.counters.started += 1;
            self.counters.prompt_tokens += request.prompt_len as u64;
            // Forced tokens after the prompt may be cached, too, but are no prompt tokens.
            let cached = kv.reused().min(request.prompt_len);
            self.counters.cached_tokens += cached as u64;
            self.counters.host_tokens += cached.saturating_sub(kv.computed) as u64;
        }
        request.awaits_adapter_since = None;
        let adapter = request.adapter.as_ref();
        let adapter_slot = adapter.map_or(0, |adapter| self.adapters.acquire(adapter));
        self.running.push(Running {
            request,
            kv,
            adapter_slot,
            to_cache: false,
        });
    }
}

/// The running request that is about to compute more of the prompt of `request` than the cache
/// has, if that is worth waiting for, with the number of tokens that they share. Of several
/// such requests, the one that shares the most.
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
