//! Changes of a prefix cache as events.

use hearth_radix::{CacheChange, PageChange, Tier};

use crate::event::{
    BlockHash, BlockRemoved, BlockStored, ExtraKey, KvEvent, MEDIUM_DEVICE, MEDIUM_HOST,
};

impl KvEvent {
    /// The event that tells of `change` in a cache with pages of `block_size` tokens.
    pub fn of(change: CacheChange, block_size: usize) -> Self {
        let (tier, change) = match change {
            CacheChange::Cleared => return Self::AllBlocksCleared,
            CacheChange::Pages(tier, change) => (tier, change),
        };
        let medium = match tier {
            Tier::Device => MEDIUM_DEVICE,
            Tier::Host => MEDIUM_HOST,
        };
        let medium = Some(medium.to_owned());
        let hashes = |hashes: Vec<u64>| hashes.into_iter().map(BlockHash).collect();
        match change {
            PageChange::Removed { hashes: gone } => Self::BlockRemoved(BlockRemoved {
                block_hashes: hashes(gone),
                medium,
            }),
            PageChange::Stored {
                namespace,
                parent,
                hashes: stored,
                tokens,
            } => {
                let begins = parent.is_none() && !namespace.is_empty();
                let extra_keys = begins.then(|| {
                    let salt = vec![ExtraKey::Text(namespace.to_string())];
                    let mut keys = vec![None; stored.len()];
                    keys[0] = Some(salt);
                    keys
                });
                Self::BlockStored(BlockStored {
                    block_hashes: hashes(stored),
                    parent_block_hash: parent.map(BlockHash),
                    token_ids: tokens,
                    block_size,
                    medium,
                    extra_keys,
                    ..BlockStored::default()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_a_key_of_a_prompts_first_block() {
        let stored = |parent| PageChange::Stored {
            namespace: "salt".into(),
            parent,
            hashes: vec![5, 6],
            tokens: vec![1, 2, 3, 4],
        };
        let event = |parent| KvEvent::of(CacheChange::Pages(Tier::Host, stored(parent)), 2);
        let expected = BlockStored {
            block_hashes: vec![BlockHash(5), BlockHash(6)],
            token_ids: vec![1, 2, 3, 4],
            block_size: 2,
            medium: Some("CPU".to_owned()),
            extra_keys: Some(vec![Some(vec![ExtraKey::Text("salt".to_owned())]), None]),
            ..BlockStored::default()
        };
        assert_eq!(event(None), KvEvent::BlockStored(expected.clone()));
        let later = BlockStored {
            parent_block_hash: Some(BlockHash(4)),
            extra_keys: None,
            ..expected
        };
        assert_eq!(event(Some(4)), KvEvent::BlockStored(later));
    }
}
