//! Answers to those who look at the engine.

use super::EngineCore;
use crate::command::Look;
use crate::picture::{CachedPrefix, Picture};
use crate::stats::EngineStats;

impl EngineCore {
    /// Answers all looks. `stats` are the statistics of this moment. It is called after the device
    /// got its work, and does nothing if nobody looks.
    pub(super) fn answer_looks(&mut self, stats: EngineStats) {
        for look in std::mem::take(&mut self.looks) {
            match look {
                // The one who looked may have stopped waiting.
                Look::Picture { reply, .. } if reply.is_closed() => {}
                Look::Picture { nodes, reply } => {
                    let batch = match self.in_flight.is_empty() {
                        true => &[][..],
                        false => &self.in_flight.oldest_batch().grants,
                    };
                    let batch = batch.iter().map(|grant| (grant.id, grant.tokens));
                    let picture = Picture {
                        stats,
                        batch: batch.collect(),
                        running: self.scheduler.running_requests(),
                        cache: self.scheduler.outline(nodes),
                    };
                    let _ = reply.send(picture);
                }
                Look::Prefix { node, most, reply } => {
                    let prefix = self.scheduler.cached_prefix(node, most);
                    let prefix = prefix.map(|(tokens, own)| CachedPrefix { tokens, own });
                    let _ = reply.send(prefix);
                }
                Look::Contents { reply } => {
                    let _ = reply.send(self.scheduler.cached_prefixes());
                }
            }
        }
    }
}
