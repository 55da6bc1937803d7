//! The pages that one worker has cached, by the KV events that it publishes.
//!
//! A block of tokens is named here by a hash of all tokens up to its end, so that the blocks of a
//! prompt are looked up without the worker's own hashes, and once for all workers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use hearth_events::{BlockHash, BlockStored, ExtraKey, KvEvent, Update};

/// Most blocks that are remembered of one worker. What it has beyond them is not known.
const MOST_BLOCKS: usize = 1 << 23;

/// Keyed at random, so that no client can make prompts whose blocks have one name.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn root_key(namespace: &str) -> u64 {
    KEYS.hash_one(namespace)
}

fn block_key(before: u64, tokens: &[u32]) -> u64 {
    KEYS.hash_one((before, tokens))
}

/// A prompt in the tokens of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenPrompt {
    /// Prompts of different namespaces share nothing; requests that name none have `""`.
    pub namespace: String,
    pub ids: Vec<u32>,
}

impl TokenPrompt {
    /// The names of the whole blocks of `size` tokens that the prompt begins with.
    fn keys(&self, size: usize) -> Vec<u64> {
        let mut before = root_key(&self.namespace);
        let blocks = self.ids.chunks_exact(size);
        let next = blocks.map(|tokens| {
            before = block_key(before, tokens);
            before
        });
        next.collect()
    }
}

/// The names of a prompt's blocks, by their size; computed when they are first needed.
#[derive(Debug)]
pub struct PromptBlocks<'a> {
    pub prompt: &'a TokenPrompt,
    keys: Vec<(usize, Vec<u64>)>,
}

impl<'a> PromptBlocks<'a> {
    pub fn new(prompt: &'a TokenPrompt) -> Self {
        Self {
            prompt,
            keys: Vec::new(),
        }
    }

    fn of_size(&mut self, size: usize) -> &[u64] {
        let found = self.keys.iter().position(|(own, _)| *own == size);
        let at = found.unwrap_or_else(|| {
            self.keys.push((size, self.prompt.keys(size)));
            self.keys.len() - 1
        });
        &self.keys[at].1
    }
}

/// The part of a prompt that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Tokens of the longest cached prefix.
    pub tokens: usize,
    /// True if the worker has no more than that; otherwise it may have.
    pub complete: bool,
}

#[derive(Debug, Default)]
struct Blocks {
    /// True if all that is cached is known; `None` if the worker is not followed.
    complete: Option<bool>,
    /// Tokens of a block; 0 before the first one.
    size: usize,
    /// The media that have each block, as bits.
    media: HashMap<u64, u8>,
    /// The name of each block by the worker's own hash.
    names: HashMap<BlockHash, u64>,
}

/// The blocks that one worker has cached.
#[derive(Debug, Default)]
pub struct KvIndex {
    blocks: Mutex<Blocks>,
    /// True if requests with different API keys share nothing on the worker.
    isolated: AtomicBool,
}

impl KvIndex {
    fn locked(&self) -> MutexGuard<'_, Blocks> {
        // Nothing that panics runs under this lock.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the worker has published.
    pub fn update(&self, update: Update) {
        let mut blocks = self.locked();
        match update {
            Update::Disconnected => *blocks = Blocks::default(),
            Update::Lost => {
                *blocks = Blocks {
                    complete: blocks.complete,
                    ..Blocks::default()
                }
            }
            Update::Following { complete } => blocks.complete = Some(complete),
            Update::Events(events) => events.into_iter().for_each(|event| blocks.apply(event)),
        }
    }

    /// Sets whether the prompts of different API keys have namespaces of their own on the worker.
    pub fn set_isolated(&self, isolated: bool) {
        self.isolated.store(isolated, Ordering::Relaxed);
    }

    /// True if the prompts of different API keys have namespaces of their own on the worker, which
    /// tells them where it is asked with the key.
    pub fn is_isolated(&self) -> bool {
        self.isolated.load(Ordering::Relaxed)
    }

    pub fn is_followed(&self) -> bool {
        self.locked().complete.is_some()
    }

    /// The number of blocks, and whether all are known; `None` if the worker is not followed.
    pub fn state(&self) -> Option<(usize, bool)> {
        let blocks = self.locked();
        Some((blocks.media.len(), blocks.complete?))
    }

    /// The part of a prompt that the worker has; `None` if it is not followed.
    pub fn matched(&self, prompt: &mut PromptBlocks<'_>) -> Option<Known> {
        let blocks = self.locked();
        let complete = blocks.complete?;
        if blocks.size == 0 {
            return Some(Known {
                tokens: 0,
                complete,
            });
        }
        // A worker has no block without those before it.
        let keys = prompt.of_size(blocks.size);
        let matched = keys.partition_point(|key| blocks.media.contains_key(key));
        Some(Known {
            tokens: matched * blocks.size,
            complete,
        })
    }
}

/// The bit of a medium.
fn bit(medium: Option<&str>) -> u8 {
    match medium {
        None | Some("GPU") => 1,
        Some("CPU" | "CPU_PINNED") => 2,
        Some(_) => 4,
    }
}

/// The namespace of a prompt's first block: the texts in its extra keys.
fn namespace(stored: &BlockStored) -> String {
    let first = stored.extra_keys.as_ref().and_then(|keys| keys.first());
    let texts = first.into_iter().flatten().flatten().map(|key| match key {
        ExtraKey::Text(text) => text.as_str(),
        // Something that no prompt of text has.
        ExtraKey::Other(_) => "\0",
    });
    texts.collect::<Vec<_>>().join("\0")
}

impl Blocks {
    fn apply(&mut self, event: KvEvent) {
        match event {
            KvEvent::AllBlocksCleared => {
                self.media.clear();
                self.names.clear();
            }
            KvEvent::BlockRemoved(removed) => {
                let bit = bit(removed.medium.as_deref());
                for hash in removed.block_hashes {
                    self.remove(hash, bit);
                }
            }
            KvEvent::BlockStored(stored) => self.store(&stored),
            KvEvent::Other => {}
        }
    }

    fn store(&mut self, stored: &BlockStored) {
        if stored.block_size == 0 {
            return;
        }
        if self.size != stored.block_size {
            self.size = stored.block_size;
            self.media.clear();
            self.names.clear();
        }
        let before = match stored.parent_block_hash {
            None => Some(root_key(&namespace(stored))),
            // Unknown if the block before was stored before the worker was followed.
            Some(parent) => self.names.get(&parent).copied(),
        };
        let Some(mut key) = before else { return };
        let bit = bit(stored.medium.as_deref());
        let tokens = stored.token_ids.chunks_exact(stored.block_size);
        for (hash, tokens) in stored.block_hashes.iter().zip(tokens) {
            if self.media.len() >= MOST_BLOCKS {
                self.complete = self.complete.map(|_| false);
                return;
            }
            key = block_key(key, tokens);
            *self.media.entry(key).or_default() |= bit;
            self.names.insert(*hash, key);
        }
    }

    fn remove(&mut self, hash: BlockHash, bit: u8) {
        let Some(&key) = self.names.get(&hash) else {
            return;
        };
        if let Some(media) = self.media.get_mut(&key) {
            *media &= !bit;
            if *media != 0 {
                return;
            }
        }
        self.media.remove(&key);
        self.names.remove(&hash);
    }
}

#[cfg(test)]
pub mod tests {
    use hearth_events::BlockRemoved;

    use super::*;

    /// Blocks of two tokens; each block's hash is its place, from `first` on.
    pub fn stored(first: u64, parent: Option<u64>, tokens: &[u32]) -> KvEvent {
        KvEvent::BlockStored(BlockStored {
            block_hashes: (first..).take(tokens.len() / 2).map(BlockHash).collect(),
            parent_block_hash: parent.map(BlockHash),
            token_ids: tokens.to_vec(),
            block_size: 2,
            medium: Some("GPU".to_owned()),
            ..BlockStored::default()
        })
    }

    pub fn prompt(ids: &[u32]) -> TokenPrompt {
        TokenPrompt {
            namespace: String::new(),
            ids: ids.to_vec(),
        }
    }

    fn matched(index: &KvIndex, prompt: &TokenPrompt) -> Option<(usize, bool)> {
        let known = index.matched(&mut PromptBlocks::new(prompt))?;
        Some((known.tokens, known.complete))
    }

    fn removed(hashes: &[u64], medium: &str) -> KvEvent {
        KvEvent::BlockRemoved(BlockRemoved {
            block_hashes: hashes.iter().map(|&hash| BlockHash(hash)).collect(),
            medium: Some(medium.to_owned()),
        })
    }

    #[test]
    fn a_prompt_is_matched_with_what_is_there() {
        let index = KvIndex::default();
        assert_eq!(matched(&index, &prompt(&[1, 2])), None);
        index.update(Update::Following { complete: true });
        assert_eq!(matched(&index, &prompt(&[1, 2])), Some((0, true)));
        let events = vec![stored(1, None, &[1, 2, 3, 4]), stored(3, Some(2), &[5, 6])];
        index.update(Update::Events(events));
        let whole = prompt(&[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(matched(&index, &whole), Some((6, true)));
        assert_eq!(matched(&index, &prompt(&[1, 2, 3, 9])), Some((2, true)));
        assert_eq!(matched(&index, &prompt(&[3, 4])), Some((0, true)));
        assert_eq!(index.state(), Some((3, true)));
        // A block in the host's memory counts until it is gone from both.
        let mut host = stored(3, Some(2), &[5, 6]);
        if let KvEvent::BlockStored(stored) = &mut host {
            stored.medium = Some("CPU".to_owned());
        }
        index.update(Update::Events(vec![host, removed(&[3], "GPU")]));
        assert_eq!(matched(&index, &whole), Some((6, true)));
        index.update(Update::Events(vec![
            removed(&[3], "CPU"),
            removed(&[2, 9], "GPU"),
        ]));
        assert_eq!(matched(&index, &whole), Some((2, true)));
        index.update(Update::Events(vec![KvEvent::AllBlocksCleared]));
        assert_eq!(matched(&index, &whole), Some((0, true)));
    }

    #[test]
    fn namespaces_share_nothing_and_blocks_of_unknown_origin_are_left_out() {
        let index = KvIndex::default();
        index.update(Update::Following { complete: false });
        let mut salted = stored(1, None, &[1, 2, 3, 4]);
        if let KvEvent::BlockStored(stored) = &mut salted {
            stored.extra_keys = Some(vec![Some(vec![ExtraKey::Text("salt".to_owned())]), None]);
        }
        index.update(Update::Events(vec![salted, stored(7, Some(6), &[1, 2])]));
        assert_eq!(matched(&index, &prompt(&[1, 2])), Some((0, false)));
        let salted = TokenPrompt {
            namespace: "salt".to_owned(),
            ids: vec![1, 2, 3, 4],
        };
        assert_eq!(matched(&index, &salted), Some((4, false)));
        index.update(Update::Lost);
        assert_eq!(matched(&index, &salted), Some((0, false)));
        index.update(Update::Disconnected);
        assert_eq!(matched(&index, &salted), None);
    }
}
