//! The slots for adapters on the device: which adapter is in which slot, and for how many requests.
//!
//! A slot whose adapter no running request uses may be given to another adapter, the one that was
//! used longest ago first. While all slots are in use, requests with other adapters wait, and
//! requests behind them start. So that they do not wait for ever, a slot is emptied for them after a
//! while: no request with its adapter starts until it is free.
//!
//! Only the first slots may have room for whole tables (an embedding, an output projection), which are
//! large. Adapters with such tables go to these slots alone; the others go to any.

use std::sync::Arc;

use hearth_forward::Adapter;

/// How long a slot is kept for the adapter that it was emptied for, in steps.
const KEPT_STEPS: u64 = 16;

#[derive(Debug, Default)]
struct Slot {
    adapter: Option<Arc<Adapter>>,
    /// Running requests with the adapter.
    users: usize,
    /// When the adapter was used last, by `AdapterSlots::clock`.
    used: u64,
    /// True if the adapter has still to be copied to the device.
    is_due: bool,
    /// The step until which no other adapter gets the slot.
    kept_until: u64,
}

/// An adapter that goes to a slot, counted from 1, before the next forward pass.
#[derive(Clone, Debug)]
pub(crate) struct AdapterLoad {
    pub slot: u32,
    pub adapter: Arc<Adapter>,
}

/// How many slots there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotCounts {
    pub all: usize,
    /// The first of all slots, which have room for whole tables.
    pub with_tables: usize,
}

#[derive(Debug)]
pub(crate) struct AdapterSlots {
    slots: Vec<Slot>,
    /// The first slots, which have room for whole tables.
    with_tables: usize,
    clock: u64,
    /// Steps scheduled.
    step: u64,
    /// The slot that is being emptied.
    draining: Option<usize>,
}

impl AdapterSlots {
    pub fn new(counts: SlotCounts) -> Self {
        Self {
            slots: (0..counts.all).map(|_| Slot::default()).collect(),
            with_tables: counts.with_tables,
            clock: 0,
            step: 0,
            draining: None,
        }
    }

    /// Another step begins. `nothing_runs` says that no request would free a slot.
    pub fn begin_step(&mut self, nothing_runs: bool) {
        self.step += 1;
        if nothing_runs {
            self.release_claims();
        }
    }

    /// Ends what keeps a free slot from being used.
    pub fn release_claims(&mut self) {
        self.draining = None;
        for slot in &mut self.slots {
            slot.kept_until = 0;
        }
    }

    fn resident(&self, digest: &str) -> Option<usize> {
        let has = |slot: &Slot| slot.adapter.as_ref().is_some_and(|a| a.digest == digest);
        self.slots.iter().position(has)
    }

    fn is_free(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        let kept = slot.adapter.is_some() && slot.kept_until > self.step;
        slot.users == 0 && !kept && self.draining != Some(index)
    }

    /// True if the slot has room for what the adapter consists of.
    fn fits(&self, index: usize, adapter: &Adapter) -> bool {
        index < self.with_tables || !adapter.has_tables()
    }

    /// The free slot to use next for `adapter`: an empty one, or the one that was used longest ago.
    /// Whole tables take long to copy again, so that they go last where others fit as well.
    fn next_free(&self, adapter: &Adapter) -> Option<usize> {
        let free = (0..self.slots.len())
            .filter(|index| self.is_free(*index) && self.fits(*index, adapter));
        free.min_by_key(|index| {
            let slot = &self.slots[*index];
            let there = slot.adapter.as_ref();
            let has_tables = there.is_some_and(|adapter| adapter.has_tables());
            let has_room = *index < self.with_tables;
            let is_empty = there.is_none();
            (!is_empty, has_tables, is_empty && has_room, slot.used)
        })
    }

    /// How many adapters could be put into slots now.
    pub fn free(&self) -> usize {
        let all = 0..self.slots.len();
        all.filter(|index| self.is_free(*index)).count()
    }

    /// True if the adapter is in a slot, and requests with it may start.
    pub fn is_ready(&self, digest: &str) -> bool {
        let slot = self.resident(digest);
        slot.is_some_and(|index| self.draining != Some(index))
    }

    /// True if a request with the adapter could start.
    pub fn has_slot_for(&self, adapter: &Adapter) -> bool {
        match self.resident(&adapter.digest) {
            Some(index) => self.draining != Some(index),
            None => self.next_free(adapter).is_some(),
        }
    }

    /// A request with `adapter` starts. The result is its slot, counted from 1.
    ///
    /// # Panics
    /// If there is no [slot for it](Self::has_slot_for).
    pub fn acquire(&mut self, adapter: &Arc<Adapter>) -> u32 {
        let index = self.resident(&adapter.digest).unwrap_or_else(|| {
            let index = self.next_free(adapter);
            let index = index.expect("the caller looked for a slot");
            self.put(index, Arc::clone(adapter));
            index
        });
        self.clock += 1;
        let slot = &mut self.slots[index];
        slot.users += 1;
        slot.used = self.clock;
        slot.kept_until = 0;
        index as u32 + 1
    }

    fn put(&mut self, index: usize, adapter: Arc<Adapter>) {
        self.clock += 1;
        self.slots[index] = Slot {
            adapter: Some(adapter),
            users: 0,
            used: self.clock,
            is_due: true,
            kept_until: 0,
        };
    }

    /// A request with the adapter in `slot`, counted from 1, runs no longer. 0 is the base model.
    pub fn release(&mut self, slot: u32) {
        if let Some(index) = slot.checked_sub(1) {
            self.slots[index as usize].users -= 1;
        }
    }

    /// Begins to empty a slot for `adapter`, unless one is being emptied: the one with the fewest
    /// requests.
    pub fn drain(&mut self, adapter: &Adapter) {
        if self.draining.is_none() {
            let used = (0..self.slots.len())
                .filter(|index| self.slots[*index].users > 0 && self.fits(*index, adapter));
            self.draining = used.min_by_key(|index| {
                let slot = &self.slots[*index];
                (slot.users, slot.used)
            });
        }
    }

    /// True if the slot that is being emptied is empty.
    pub fn is_drained(&self) -> bool {
        self.draining
            .is_some_and(|index| self.slots[index].users == 0)
    }

    /// Gives the slot that was emptied to the first of the adapters that are `awaited` for which it
    /// has room, and keeps it for a while. Without one it is left to whoever comes.
    pub fn give_drained<'a>(&mut self, mut awaited: impl Iterator<Item = &'a Arc<Adapter>>) {
        let Some(index) = self.draining.take() else {
            return;
        };
        let Some(adapter) = awaited.find(|adapter| self.fits(index, adapter)) else {
            return;
        };
        let adapter = Arc::clone(adapter);
        if self.resident(&adapter.digest).is_none() {
            self.put(index, adapter);
            self.slots[index].kept_until = self.step + KEPT_STEPS;
        }
    }

    /// The adapters that have to be copied to the device before the next forward pass: those that a
    /// request uses, so that one that cannot be copied fails no other requests.
    pub fn take_loads(&mut self) -> Vec<AdapterLoad> {
        let slots = (1..).zip(&mut self.slots);
        let due = slots.filter(|(_, slot)| slot.is_due && slot.users > 0);
        due.filter_map(|(number, slot)| {
            slot.is_due = false;
            Some(AdapterLoad {
                slot: number,
                adapter: Arc::clone(slot.adapter.as_ref()?),
            })
        })
        .collect()
    }

    /// The step that was to make `loads` has failed: they are made again.
    pub fn fail_loads(&mut self, loads: &[AdapterLoad]) {
        for load in loads {
            let slot = &mut self.slots[load.slot as usize - 1];
            slot.is_due |= slot.adapter.is_some();
        }
    }

    /// Checks that every running request's adapter is in its slot, and how many use each.
    #[cfg(test)]
    pub fn check<'a>(&self, running: impl Iterator<Item = (u32, Option<&'a Adapter>)>) {
        let mut users = vec![0; self.slots.len()];
        for (slot, adapter) in running {
            assert_eq!(slot == 0, adapter.is_none());
            if let Some(adapter) = adapter {
                let index = slot as usize - 1;
                users[index] += 1;
                let there = self.slots[index].adapter.as_ref();
                assert_eq!(there.map(|there| &there.digest), Some(&adapter.digest));
                assert!(self.fits(index, adapter));
            }
        }
        let counted: Vec<usize> = self.slots.iter().map(|slot| slot.users).collect();
        assert_eq!(counted, users);
    }

    /// The device has lost what was in the slots. No request uses one.
    pub fn forget(&mut self) {
        for slot in &mut self.slots {
            *slot = Slot {
                users: slot.users,
                ..Slot::default()
            };
        }
        self.draining = None;
    }
}

#[cfg(test)]
mod tests {
    use hearth_forward::{AdaptedMatrix, TableNumbers, WholeTable};

    use super::*;

    fn adapter(digest: &str) -> Arc<Adapter> {
        Arc::new(Adapter {
            digest: digest.to_owned(),
            ..Adapter::default()
        })
    }

    /// An adapter with a whole table.
    fn with_table(digest: &str) -> Arc<Adapter> {
        Arc::new(Adapter {
            tables: vec![WholeTable {
                matrix: AdaptedMatrix::LmHead,
                numbers: TableNumbers::F32,
                bytes: Arc::default(),
            }],
            ..(*adapter(digest)).clone()
        })
    }

    fn plain(all: usize) -> AdapterSlots {
        AdapterSlots::new(SlotCounts {
            all,
            with_tables: 0,
        })
    }

    fn loaded(slots: &mut AdapterSlots) -> Vec<(u32, String)> {
        let loads = slots.take_loads().into_iter();
        loads.map(|l| (l.slot, l.adapter.digest.clone())).collect()
    }

    #[test]
    fn an_adapter_that_could_not_be_copied_is_copied_when_a_request_uses_it_again() {
        let mut slots = plain(1);
        let a = adapter("a");
        let slot = slots.acquire(&a);
        let loads = slots.take_loads();
        slots.fail_loads(&loads);
        slots.release(slot);
        assert_eq!(loaded(&mut slots), []);
        assert_eq!(slots.acquire(&a), slot);
        assert_eq!(loaded(&mut slots), [(slot, "a".to_owned())]);
        assert_eq!(loaded(&mut slots), []);
    }

    #[test]
    fn the_slot_that_was_used_longest_ago_is_given_away() {
        let mut slots = plain(2);
        let (a, b, c) = (adapter("a"), adapter("b"), adapter("c"));
        assert_eq!((slots.acquire(&a), slots.acquire(&b)), (1, 2));
        assert!(slots.has_slot_for(&adapter("a")) && !slots.has_slot_for(&adapter("c")));
        assert_eq!(loaded(&mut slots), [(1, "a".into()), (2, "b".into())]);
        assert_eq!(slots.acquire(&a), 1);
        assert!(loaded(&mut slots).is_empty(), "it is there");
        slots.release(1);
        assert!(
            !slots.has_slot_for(&adapter("c")),
            "one request still uses it"
        );
        slots.release(2);
        slots.release(1);
        // The other one was used last.
        assert_eq!(slots.acquire(&c), 2);
        assert_eq!(loaded(&mut slots), [(2, "c".into())]);
        assert!(slots.is_ready("a") && !slots.is_ready("b"));
    }

    #[test]
    fn an_emptied_slot_is_kept_for_the_adapter_that_waited() {
        let mut slots = plain(1);
        let (a, b) = (adapter("a"), adapter("b"));
        slots.acquire(&a);
        slots.drain(&adapter("z"));
        assert!(
            !slots.has_slot_for(&adapter("a")),
            "no further request with it"
        );
        assert!(!slots.is_drained());
        slots.release(1);
        assert!(slots.is_drained() && !slots.has_slot_for(&adapter("c")));
        slots.give_drained([&b].into_iter());
        assert!(slots.has_slot_for(&adapter("b")) && !slots.has_slot_for(&adapter("a")));
        assert_eq!(slots.acquire(&b), 1);
        slots.release(1);
        assert!(slots.has_slot_for(&adapter("a")));
    }

    #[test]
    fn a_slot_is_not_kept_for_an_adapter_that_never_comes() {
        for nothing_runs in [true, false] {
            let mut slots = plain(1);
            slots.acquire(&adapter("a"));
            slots.drain(&adapter("z"));
            slots.release(1);
            slots.give_drained([&adapter("b")].into_iter());
            let steps = if nothing_runs { 1 } else { KEPT_STEPS };
            for _ in 0..steps {
                assert!(!slots.has_slot_for(&adapter("c")));
                slots.begin_step(nothing_runs);
            }
            assert!(slots.has_slot_for(&adapter("c")));
        }
    }

    #[test]
    fn what_a_failed_step_or_a_lost_device_did_not_keep_is_loaded_again() {
        let mut slots = plain(1);
        let a = adapter("a");
        slots.acquire(&a);
        let loads = slots.take_loads();
        slots.fail_loads(&loads);
        assert_eq!(loaded(&mut slots), [(1, "a".into())]);
        slots.release(1);
        slots.forget();
        assert!(!slots.is_ready("a"));
        slots.acquire(&a);
        assert_eq!(loaded(&mut slots), [(1, "a".into())]);
    }

    #[test]
    fn whole_tables_go_only_to_slots_with_room_for_them() {
        let mut slots = AdapterSlots::new(SlotCounts {
            all: 3,
            with_tables: 1,
        });
        let (a, b, t, u) = (adapter("a"), adapter("b"), with_table("t"), with_table("u"));
        // The slot with room is the last empty one that an adapter without tables takes.
        assert_eq!((slots.acquire(&a), slots.acquire(&t)), (2, 1));
        assert!(!slots.has_slot_for(&u) && slots.has_slot_for(&b));
        slots.release(1);
        slots.release(2);
        slots.acquire(&a);
        slots.release(2);
        // Tables go last, though these were used longest ago.
        slots.acquire(&b);
        slots.acquire(&adapter("c"));
        assert!(slots.is_ready("t") && !slots.is_ready("a"));
        assert_eq!(slots.acquire(&u), 1);
        assert!(!slots.has_slot_for(&t));
        assert!(!plain(3).has_slot_for(&t), "there is no room at all");
    }

    #[test]
    fn a_slot_is_emptied_for_tables_only_if_it_has_room_for_them() {
        let mut slots = AdapterSlots::new(SlotCounts {
            all: 2,
            with_tables: 1,
        });
        let (a, t, u) = (adapter("a"), with_table("t"), with_table("u"));
        slots.acquire(&t);
        slots.acquire(&t);
        slots.acquire(&a);
        // The other slot has fewer requests.
        slots.drain(&u);
        slots.release(1);
        slots.release(1);
        assert!(slots.is_drained());
        slots.give_drained([&u].into_iter());
        assert!(slots.has_slot_for(&u) && !slots.has_slot_for(&t));
        // A slot without room is given to the first adapter that fits.
        slots.drain(&adapter("b"));
        slots.release(2);
        assert!(slots.is_drained());
        slots.give_drained([&t, &adapter("b")].into_iter());
        assert!(slots.is_ready("b"));
    }
}
