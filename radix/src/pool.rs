//! The free list of KV slots.

/// Slots `0..total`, each free or in use.
#[derive(Debug)]
pub struct SlotPool {
    /// A stack: the slot freed last is allocated next, while its memory is still in caches.
    free: Vec<u32>,
    in_use: Vec<bool>,
}

impl SlotPool {
    /// # Panics
    /// If slot ids would not fit into 32 bits.
    pub fn new(total: usize) -> Self {
        let end = u32::try_from(total).expect("slot ids are 32 bits wide");
        Self {
            free: (0..end).rev().collect(),
            in_use: vec![false; total],
        }
    }

    pub fn total(&self) -> usize {
        self.in_use.len()
    }

    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Appends `count` slots to `slots` and returns `true`; appends nothing and returns `false`
    /// if fewer are free.
    #[must_use]
    pub fn allocate(&mut self, count: usize, slots: &mut Vec<u32>) -> bool {
        let Some(keep) = self.free.len().checked_sub(count) else {
            return false;
        };
        for slot in self.free.drain(keep..).rev() {
            self.in_use[slot as usize] = true;
            slots.push(slot);
        }
        true
    }

    /// # Panics
    /// If a slot is free already: two requests would later write to the same memory, and one
    /// of them would silently continue the other's text.
    pub fn free(&mut self, slots: &[u32]) {
        for &slot in slots {
            let in_use = std::mem::replace(&mut self.in_use[slot as usize], false);
            assert!(in_use, "KV slot {slot} was freed twice");
            self.free.push(slot);
        }
    }

    pub(crate) fn is_free(&self, slot: u32) -> bool {
        !self.in_use[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_pool_hands_out_slots_in_ascending_order_and_takes_them_back() {
        let mut pool = SlotPool::new(4);
        let mut slots = Vec::new();
        assert!(pool.allocate(3, &mut slots));
        assert_eq!(slots, [0, 1, 2]);
        assert_eq!(pool.free_slots(), 1);
        pool.free(&slots);
        assert_eq!(pool.free_slots(), 4);
    }

    #[test]
    fn an_allocation_of_more_slots_than_are_free_takes_none() {
        let mut pool = SlotPool::new(2);
        let mut slots = vec![];
        assert!(!pool.allocate(3, &mut slots));
        assert_eq!((slots.len(), pool.free_slots()), (0, 2));
    }

    #[test]
    #[should_panic(expected = "KV slot 0 was freed twice")]
    fn freeing_a_slot_twice_is_refused() {
        let mut pool = SlotPool::new(2);
        let mut slots = vec![];
        assert!(pool.allocate(1, &mut slots));
        pool.free(&slots);
        pool.free(&slots);
    }
}
