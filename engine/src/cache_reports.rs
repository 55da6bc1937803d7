//! Passes changes of the prefix cache on to an observer.

use hearth_radix::CacheChange;

use crate::cache_events::CacheObserver;
use crate::kv::Kv;

/// Passes changes of the cache on to the observer.
#[derive(Debug, Default)]
pub(crate) struct CacheReports {
    observer: Option<Box<dyn CacheObserver>>,
    /// True if the observer lacks changes that were dropped.
    behind: bool,
}

impl CacheReports {
    /// Reports to `observer` from now on, beginning with what is cached already.
    pub fn start(&mut self, observer: Box<dyn CacheObserver>) {
        self.observer = Some(observer);
        self.behind = true;
    }

    pub fn report(&mut self, kv: &mut Kv) {
        let mut changes = kv.take_changes();
        let Some(observer) = &mut self.observer else {
            return;
        };
        if changes.is_empty() && !self.behind {
            return;
        }
        if !observer.has_room() {
            self.behind = true;
            return;
        }
        if std::mem::take(&mut self.behind) {
            changes = vec![CacheChange::Cleared];
            changes.extend(kv.all_pages());
        }
        observer.observe(changes);
    }
}
