//! Events and batches of events in MessagePack.
//!
//! A batch is an array `[ts, events, data_parallel_rank]`; an event is a map whose key `type` has its
//! name. Keys that vLLM leaves out at their defaults are left out here, too.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::de::{IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The medium of the device's KV cache, whatever the device is.
pub const MEDIUM_DEVICE: &str = "GPU";
/// The medium of the host's memory.
pub const MEDIUM_HOST: &str = "CPU";

/// The hash that names a block. Publishers write an integer or bytes; bytes are reduced to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct BlockHash(pub u64);

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = BlockHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer or bytes")
            }

            fn visit_u64<E>(self, value: u64) -> Result<BlockHash, E> {
                Ok(BlockHash(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<BlockHash, E> {
                Ok(BlockHash(value.cast_unsigned()))
            }

            fn visit_bytes<E>(self, value: &[u8]) -> Result<BlockHash, E> {
                let mut hasher = DefaultHasher::new();
                value.hash(&mut hasher);
                Ok(BlockHash(hasher.finish()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Consecutive blocks of a prompt are cached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStored {
    pub block_hashes: Vec<BlockHash>,
    /// The block before them; `None` if they begin a prompt.
    pub parent_block_hash: Option<BlockHash>,
    /// The tokens of all blocks.
    pub token_ids: Vec<u32>,
    pub block_size: usize,
    pub lora_id: Option<u64>,
    pub medium: Option<String>,
    pub lora_name: Option<String>,
    /// For each block what its hash depends on beside tokens. The cache salt is in the list of a
    /// prompt's first block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_keys: Option<Vec<Option<Vec<ExtraKey>>>>,
}

/// A value in `extra_keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExtraKey {
    Text(String),
    /// A value that is not understood, such as the key of an image.
    #[serde(skip_serializing)]
    Other(Unread),
}

/// Takes the place of a value of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread;

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Blocks are no longer cached in one medium.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRemoved {
    pub block_hashes: Vec<BlockHash>,
    pub medium: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum KvEvent {
    BlockStored(BlockStored),
    BlockRemoved(BlockRemoved),
    AllBlocksCleared,
    /// An event of another kind.
    #[serde(other)]
    Other,
}

/// The events of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventBatch {
    /// Seconds since the Unix epoch.
    pub ts: f64,
    pub events: Vec<KvEvent>,
}

impl EventBatch {
    /// # Errors
    /// Never for batches of this program.
    pub fn encode(&self) -> Result<Vec<u8>, rmp_serde::encode::Error> {
        // This server is one rank.
        let mut bytes = Vec::new();
        let mut writer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
        (self.ts, &self.events, 0u32).serialize(&mut writer)?;
        Ok(bytes)
    }

    /// # Errors
    /// The bytes are no batch.
    pub fn decode(bytes: &[u8]) -> Result<Self, rmp_serde::decode::Error> {
        #[derive(Deserialize)]
        struct Batch(f64, Vec<KvEvent>, #[serde(default)] IgnoredAny);
        let Batch(ts, events, _) = rmp_serde::from_slice(bytes)?;
        Ok(Self { ts, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> BlockStored {
        BlockStored {
            block_hashes: vec![BlockHash(u64::MAX), BlockHash(7)],
            token_ids: vec![1, 2, 3, 70_000],
            block_size: 2,
            medium: Some(MEDIUM_DEVICE.to_owned()),
            extra_keys: Some(vec![Some(vec![ExtraKey::Text("salt".to_owned())]), None]),
            ..BlockStored::default()
        }
    }

    #[test]
    fn a_batch_survives_the_wire() {
        let removed = BlockRemoved {
            block_hashes: vec![BlockHash(7)],
            medium: None,
        };
        let batch = EventBatch {
            ts: 1.5,
            events: vec![
                KvEvent::AllBlocksCleared,
                KvEvent::BlockStored(stored()),
                KvEvent::BlockRemoved(removed),
            ],
        };
        assert_eq!(EventBatch::decode(&batch.encode().unwrap()).unwrap(), batch);
    }

    #[test]
    fn a_batch_of_vllms_is_read() {
        // msgspec.msgpack.encode(KVEventBatch(ts=2.0, events=[BlockStored(block_hashes=[b"\xab"],
        // parent_block_hash=-1, token_ids=[5], block_size=1, lora_id=None, medium="GPU",
        // lora_name=None, extra_keys=[(3, ("a", 1))], locality="LOCAL")])), and an event of a kind that
        // does not exist yet.
        let bytes = b"\x92\xcb\x40\x00\x00\x00\x00\x00\x00\x00\x92\x8a\xa4type\xabBlockStored\xac\
            block_hashes\x91\xc4\x01\xab\xb1parent_block_hash\xff\xa9token_ids\x91\x05\xaablock_size\x01\
            \xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\xaaextra_keys\x91\x92\x03\x92\xa1a\x01\
            \xa8locality\xa5LOCAL\x82\xa4type\xa3New\xa1x\x01";
        let batch = EventBatch::decode(bytes).unwrap();
        let [KvEvent::BlockStored(stored), KvEvent::Other] = &batch.events[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(stored.parent_block_hash, Some(BlockHash(u64::MAX)));
        assert_eq!((&stored.token_ids[..], stored.block_size), (&[5][..], 1));
        let keys = stored.extra_keys.as_ref().unwrap();
        assert_eq!(keys[0].as_ref().unwrap()[0], ExtraKey::Other(Unread));
        assert!(EventBatch::decode(b"\x93").is_err());
    }
}
