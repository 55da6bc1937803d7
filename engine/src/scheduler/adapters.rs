//! Which requests with adapters may start.

use super::Scheduler;

/// After so many steps of waiting for a slot, one is emptied for the request.
const PATIENCE_STEPS: u64 = 64;

impl Scheduler {
    /// Puts requests back in order for whose adapters there are slots, and has a slot emptied for a
    /// request that has waited for long.
    pub(super) fn unpark_adapters(&mut self) {
        self.adapters.begin_step(self.running.is_empty());
        let awaited = self.waiting.awaited_adapters();
        if self.adapters.is_drained() {
            let adapters = awaited.iter().map(|(adapter, _)| adapter);
            self.adapters.give_drained(adapters);
        }
        let mut free = self.adapters.free();
        let mut still_waits = None;
        for (adapter, since) in &awaited {
            let digest = &adapter.digest;
            let is_ready = self.adapters.is_ready(digest);
            if is_ready || (free > 0 && self.adapters.has_slot_for(adapter)) {
                free -= usize::from(!is_ready);
                self.waiting.unpark_adapter(digest);
            } else {
                still_waits.get_or_insert((adapter, since));
            }
        }
        if let Some((adapter, since)) = still_waits
            && self.scheduled > since + PATIENCE_STEPS
        {
            self.adapters.drain(adapter);
        }
    }
}
