//! The pages that are cached after a sequence of events, as events of an empty cache.

use std::collections::{BTreeMap, HashMap};

use crate::event::{BlockHash, BlockStored, ExtraKey, KvEvent};

/// One block in one medium.
#[derive(Debug)]
struct Block {
    hash: BlockHash,
    parent: Option<BlockHash>,
    tokens: Vec<u32>,
    medium: Option<String>,
    extra: Option<Vec<ExtraKey>>,
}

/// All blocks in the order in which they were stored: a block comes after the one before it.
#[derive(Debug, Default)]
pub struct Pages {
    blocks: BTreeMap<u64, Block>,
    places: HashMap<(BlockHash, Option<String>), u64>,
    next: u64,
}

impl Pages {
    pub fn apply(&mut self, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::BlockStored(stored) => self.store(stored),
                KvEvent::BlockRemoved(removed) => {
                    for hash in removed.block_hashes {
                        let place = self.places.remove(&(hash, removed.medium.clone()));
                        place.map(|place| self.blocks.remove(&place));
                    }
                }
                KvEvent::AllBlocksCleared => *self = Self::default(),
                KvEvent::Other => {}
            }
        }
    }

    fn store(&mut self, stored: BlockStored) {
        let mut extra_keys = stored.extra_keys.unwrap_or_default().into_iter();
        let mut parent = stored.parent_block_hash;
        let tokens = stored.token_ids.chunks(stored.block_size.max(1));
        for (hash, tokens) in stored.block_hashes.into_iter().zip(tokens) {
            let block = Block {
                hash,
                parent,
                tokens: tokens.to_vec(),
                medium: stored.medium.clone(),
                extra: extra_keys.next().flatten(),
            };
            parent = Some(hash);
            let place = self.next;
            self.next += 1;
            let key = (hash, stored.medium.clone());
            if let Some(before) = self.places.insert(key, place) {
                self.blocks.remove(&before);
            }
            self.blocks.insert(place, block);
        }
    }

    /// The events that lead from an unknown state to this one.
    pub fn events(&self) -> Vec<KvEvent> {
        let mut events = vec![KvEvent::AllBlocksCleared];
        for block in self.blocks.values() {
            if let Some(KvEvent::BlockStored(run)) = events.last_mut()
                && run.block_hashes.last() == block.parent.as_ref()
                && run.medium == block.medium
                && run.block_size == block.tokens.len()
            {
                run.block_hashes.push(block.hash);
                run.token_ids.extend(&block.tokens);
                if let Some(keys) = &mut run.extra_keys {
                    keys.push(block.extra.clone());
                }
                continue;
            }
            events.push(KvEvent::BlockStored(BlockStored {
                block_hashes: vec![block.hash],
                parent_block_hash: block.parent,
                token_ids: block.tokens.clone(),
                block_size: block.tokens.len(),
                medium: block.medium.clone(),
                extra_keys: block.extra.clone().map(|extra| vec![Some(extra)]),
                ..BlockStored::default()
            }));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::BlockRemoved;

    fn stored(hashes: &[u64], parent: Option<u64>, medium: &str) -> KvEvent {
        KvEvent::BlockStored(BlockStored {
            block_hashes: hashes.iter().map(|&hash| BlockHash(hash)).collect(),
            parent_block_hash: parent.map(BlockHash),
            token_ids: hashes.iter().map(|&hash| hash as u32).collect(),
            block_size: 1,
            medium: Some(medium.to_owned()),
            extra_keys: parent
                .is_none()
                .then(|| vec![Some(vec![ExtraKey::Text("s".to_owned())]), None]),
            ..BlockStored::default()
        })
    }

    #[test]
    fn what_remains_is_told_in_order() {
        let mut pages = Pages::default();
        pages.apply(vec![
            stored(&[9], None, "GPU"),
            KvEvent::AllBlocksCleared,
            stored(&[1, 2], None, "GPU"),
            stored(&[3, 4], Some(2), "GPU"),
            stored(&[1], None, "CPU"),
            KvEvent::BlockRemoved(BlockRemoved {
                block_hashes: vec![BlockHash(4)],
                medium: Some("GPU".to_owned()),
            }),
        ]);
        let events = pages.events();
        let mut joined = stored(&[1, 2, 3], None, "GPU");
        if let KvEvent::BlockStored(stored) = &mut joined {
            stored.extra_keys.as_mut().unwrap().push(None);
        }
        let mut alone = stored(&[1], None, "CPU");
        if let KvEvent::BlockStored(stored) = &mut alone {
            stored.extra_keys.as_mut().unwrap().truncate(1);
        }
        assert_eq!(events, [KvEvent::AllBlocksCleared, joined, alone]);
    }
}
