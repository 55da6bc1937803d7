//! The last batches, for subscribers that have missed some, and what was cached before them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::EventBatch;
use crate::pages::Pages;

/// A batch with its number.
pub type Numbered = (u64, Arc<[u8]>);

#[derive(Debug)]
pub struct History {
    batches: VecDeque<Numbered>,
    most: usize,
    /// The pages that were cached before the first of the batches.
    before: Pages,
}

impl History {
    pub fn new(most: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            most,
            before: Pages::default(),
        }
    }

    pub fn push(&mut self, batch: Numbered) {
        self.batches.push_back(batch);
        while self.batches.len() > self.most {
            let Some((_, bytes)) = self.batches.pop_front() else {
                return;
            };
            if let Ok(batch) = EventBatch::decode(&bytes) {
                self.before.apply(batch.events);
            }
        }
    }

    /// The batches from number `start` on. If some of them are gone, one with everything that was
    /// cached after them takes their place.
    pub fn since(&self, start: u64) -> Vec<Numbered> {
        let mut batches = Vec::new();
        if let Some(&(first, _)) = self.batches.front()
            && start < first
        {
            let first_ts = self
                .batches
                .front()
                .map(|(_, bytes)| EventBatch::decode(bytes));
            let ts = first_ts.and_then(Result::ok).map_or(0.0, |batch| batch.ts);
            let events = self.before.events();
            let state = EventBatch { ts, events }.encode();
            batches.extend(state.ok().map(|bytes| (first - 1, Arc::from(bytes))));
        }
        let kept = self.batches.iter().filter(|(number, _)| *number >= start);
        batches.extend(kept.cloned());
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{BlockHash, BlockStored, KvEvent};

    fn batch(number: u64) -> Numbered {
        let stored = BlockStored {
            block_hashes: vec![BlockHash(number)],
            token_ids: vec![1],
            block_size: 1,
            ..BlockStored::default()
        };
        let events = vec![KvEvent::BlockStored(stored)];
        let bytes = EventBatch { ts: 1.0, events }.encode().unwrap();
        (number, Arc::from(bytes))
    }

    #[test]
    fn batches_that_are_gone_are_replaced_by_what_they_led_to() {
        let mut history = History::new(3);
        assert!(history.since(0).is_empty());
        (0..5).for_each(|number| history.push(batch(number)));
        let numbers = |start| -> Vec<u64> { history.since(start).iter().map(|b| b.0).collect() };
        assert_eq!(numbers(2), [2, 3, 4]);
        assert_eq!(numbers(4), [4]);
        assert!(numbers(5).is_empty());
        assert_eq!(numbers(0), [1, 2, 3, 4]);
        let state = EventBatch::decode(&history.since(0)[0].1).unwrap();
        assert_eq!(state.events.len(), 3);
        assert_eq!(state.events[0], KvEvent::AllBlocksCleared);
    }
}
