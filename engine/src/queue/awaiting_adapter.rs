//! Requests that wait for a slot for their adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hearth_forward::Adapter;

use super::{PREEMPTED, Place, WaitingQueue};
use crate::policy::SchedulePolicy;
use crate::request_id::RequestId;

/// The requests by the digests of their adapters.
#[derive(Debug, Default)]
pub(super) struct AwaitingAdapter(BTreeMap<String, BTreeSet<RequestId>>);

impl AwaitingAdapter {
    pub fn remove(&mut self, digest: &str, id: RequestId) {
        if let Some(ids) = self.0.get_mut(digest) {
            ids.remove(&id);
            if ids.is_empty() {
                self.0.remove(digest);
            }
        }
    }
}

impl WaitingQueue {
    /// Takes a request out of the order until there is a slot for its adapter. `step` is the number
    /// of the current step.
    pub fn park_for_adapter(&mut self, id: RequestId, step: u64) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let (Place::Ordered(rank), Some(adapter)) = (waiter.place, &waiter.request.adapter) else {
            return;
        };
        self.order.remove(&(rank, id));
        let digest = adapter.digest.clone();
        self.awaiting_adapter
            .0
            .entry(digest)
            .or_default()
            .insert(id);
        waiter.place = Place::AwaitingAdapter;
        waiter.request.awaits_adapter_since.get_or_insert(step);
    }

    /// The adapters that requests wait for, the one that was asked for first at the front, with the
    /// step since which that request waits for it. Their number is that of different adapters, which
    /// the caller bounds, and not that of requests.
    pub fn awaited_adapters(&self) -> Vec<(Arc<Adapter>, u64)> {
        let groups = self.awaiting_adapter.0.values();
        let mut oldest: Vec<_> = groups.filter_map(|ids| ids.first()).collect();
        oldest.sort_unstable();
        let request = |id| &self.waiters[id].request;
        oldest
            .into_iter()
            .filter_map(|id| {
                let request = request(id);
                let since = request.awaits_adapter_since.unwrap_or_default();
                Some((Arc::clone(request.adapter.as_ref()?), since))
            })
            .collect()
    }

    /// Puts the requests with an adapter back in order.
    pub fn unpark_adapter(&mut self, digest: &str) {
        for id in self.awaiting_adapter.0.remove(digest).unwrap_or_default() {
            let waiter = &self.waiters[&id];
            let mut rank = self.rank(&waiter.request, waiter.round);
            if waiter.round != PREEMPTED {
                match self.policy {
                    // How much of it is cached is found out by a review.
                    SchedulePolicy::Lpm => self.growth.make_due(id),
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
}
