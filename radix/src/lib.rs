//! The prefix cache: a radix tree of token prefixes over KV slots, as pure data.
//!
//! A KV slot holds the keys and values of one token at one position. The tree
//! maps prefixes of token ids, under a namespace, to the slots that hold them,
//! so that requests with a common prefix share memory and computation
//! (RadixAttention, arXiv 2312.07104).
//!
//! [`RadixTree`] is the tree alone. [`KvCache`] joins the tree to the pool of free slots.
//! [`TieredCache`] is the `KvCache` of the device's slots together with an optional second one,
//! which holds copies of cached prefixes in slots of the host's memory. This crate only decides
//! which slot is copied where; the caller makes the copies.
//!
//! Layers that attend a window may have slots of their own, which are given up sooner; see
//! [`KvCache::with_window`].
//!
//! At every moment `free + evictable + protected + held = total`: a slot is free, or
//! cached and covered by no lock, or cached and locked, or held by a request that has not
//! given it to the cache.
//!
//! **Architecture Invariant.** No tensors, no HTTP, no clocks, no threads, no
//! I/O. Recency is a counter. Methods return numbers; nothing is recorded.

mod cache;
mod check;
mod contents;
mod evict;
mod following;
mod host;
mod lock;
mod node;
mod outline;
mod page;
mod pool;
mod record;
mod tiered;
mod tree;
mod window;
mod window_slots;

pub use cache::{KvCache, KvUsage, OutOfSlots, Prefix};
pub use check::Violation;
pub use contents::CachedEdge;
pub use evict::EvictionPolicy;
pub use host::HostWritePolicy;
pub use lock::PrefixLock;
pub use node::common_prefix;
pub use outline::{NodeState, Outline, OutlinedNode};
pub use page::{CacheChange, PageChange, Tier};
pub use pool::SlotPool;
pub use tiered::TieredCache;
pub use tree::{Insertion, PageSizeError, Peeked, RadixTree};
