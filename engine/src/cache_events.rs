//! Reports of what the prefix cache holds, for routers that send requests where their prefixes are.

use std::fmt::Debug;

use hearth_radix::CacheChange;

/// Gets the changes of the prefix cache on the engine thread, so that none of its methods may block.
pub trait CacheObserver: Debug + Send {
    /// True if the next [`observe`](Self::observe) will not be lost. Changes for which there was no
    /// room are made up for: the next report begins with [`CacheChange::Cleared`] and then has
    /// everything that is cached.
    fn has_room(&mut self) -> bool;

    fn observe(&mut self, changes: Vec<CacheChange>);
}
