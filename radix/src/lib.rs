//! The prefix cache: a radix tree of token prefixes over KV slots, as pure data.
//!
//! A KV slot holds the keys and values of one token at one position. The tree
//! maps prefixes of token ids, under a namespace, to the slots that hold them,
//! so that requests with a common prefix share memory and computation
//! (RadixAttention, arXiv 2312.07104). [`KvCache`] joins the tree to the pool of
//! free slots; [`RadixTree`] is the tree alone.
//!
//! A second tier may hold copies of what was cached, in slots of its own somewhere else
//! (the host's memory): this crate says which slot is to be copied where.
//!
//! At every moment `free + evictable + protected + held = total`: a slot is free,
//! or cached and idle, or cached and in use, or held by a request that has not
//! given it to the tree.
//!
//! **Architecture invariant.** No tensors, no HTTP, no clocks, no threads, no
//! I/O. Recency is a counter. Methods return numbers; nothing is recorded.

mod cache;
mod check;
mod evict;
mod host;
mod lock;
mod node;
mod pool;
mod tree;

pub use cache::{KvCache, KvUsage, OutOfSlots, Prefix};
pub use check::Violation;
pub use evict::EvictionPolicy;
pub use host::{CopyDirection, HostWritePolicy, KvCopy};
pub use lock::PrefixLock;
pub use node::common_prefix;
pub use pool::SlotPool;
pub use tree::{Insertion, PageSizeError, Peeked, RadixTree};
