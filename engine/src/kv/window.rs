//! The window slots of a request: those of layers that attend a window.
//!
//! A request gets them as it computes its tokens, and gives them up when no later token attends
//! them. The last ones go to the cache with its tokens.

use hearth_radix::{OutOfSlots, Peeked, Prefix};

use super::{Kv, RequestKv};
use crate::active::ActiveRequest;

/// Slots that a running request gives up together, so that it need not do so at every step.
const FREED_TOGETHER: usize = 32;
/// Slots of the cache that a running request gives up together: an eighth of a window within these
/// bounds. Each time, the tree may split a node.
const UNLOCKED_TOGETHER: std::ops::RangeInclusive<usize> = FREED_TOGETHER..=128;

/// The window slots of a running request.
#[derive(Debug)]
pub(crate) struct RequestWindow {
    /// In order of position. The entries before `from` are valid slots, but not the request's.
    pub slots: Vec<u32>,
    /// The first position whose slot is the request's or protected for it by its lock; a multiple of
    /// the page size.
    pub from: usize,
}

impl RequestWindow {
    /// The window slots of a cached `prefix`.
    pub fn of(prefix: &Prefix) -> Self {
        let from = prefix.slots.len() - prefix.window.len();
        let mut slots = vec![0; from];
        slots.extend_from_slice(&prefix.window);
        Self { slots, from }
    }
}

impl RequestKv {
    /// How many positions have all of their slots.
    pub fn room(&self) -> usize {
        let window = self.window.as_ref().map_or(usize::MAX, |w| w.slots.len());
        self.slots.len().min(window)
    }

    /// The window slots that belong to the request.
    pub fn own_window(&self) -> &[u32] {
        let cached = self.cached();
        let own = |window: &RequestWindow| window.from.max(cached)..window.slots.len();
        match &self.window {
            Some(window) => window.slots.get(own(window)).unwrap_or_default(),
            None => &[],
        }
    }

    /// How many window slots belong to the request.
    pub fn held_window(&self) -> usize {
        self.own_window().len()
    }

    /// Window slots to allocate so that the first `tokens` positions have theirs.
    pub fn missing_window(&self, tokens: usize) -> usize {
        let window = self.window.as_ref();
        window.map_or(0, |window| tokens.saturating_sub(window.slots.len()))
    }
}

impl Kv {
    /// True if there are window slots.
    pub fn has_windows(&self) -> bool {
        self.windowed
    }

    /// Allocates the window slots of `kv` for its first `tokens` positions, or none.
    pub fn grow_window(&mut self, kv: &mut RequestKv, tokens: usize) -> Result<(), OutOfSlots> {
        let missing = kv.missing_window(tokens);
        match &mut kv.window {
            Some(window) if missing > 0 => self.cache.allocate_window(missing, &mut window.slots),
            _ => Ok(()),
        }
    }

    /// Allocates the window slots of the next `tokens` tokens of `kv`, or of as many as there are
    /// slots for; returns how many.
    pub fn grow_window_for(&mut self, kv: &mut RequestKv, tokens: usize) -> usize {
        let missing = kv.missing_window(kv.computed + tokens);
        if missing == 0 {
            return tokens;
        }
        let lacking = missing.saturating_sub(self.window_usage().available());
        let tokens = tokens - lacking;
        match self.grow_window(kv, kv.computed + tokens) {
            Ok(()) => tokens,
            Err(_) => 0,
        }
    }

    /// Gives up the window slots that no later token of the request attends.
    pub fn free_behind(&mut self, kv: &mut RequestKv) {
        let Some(window) = &kv.window else { return };
        let page = self.cache.page_size();
        let whole = kv.computed / page * page;
        let from = self.cache.window_start(whole);
        if from < window.from + FREED_TOGETHER {
            return;
        }
        let at_once = self.unlocked_together(whole - from);
        if let Some(lock) = &mut kv.lock
            && from >= lock.tokens() - lock.window() + at_once
        {
            self.cache.shrink_window(lock, from);
        }
        let own = from.saturating_sub(window.from.max(kv.cached()));
        self.cache.free_window(&kv.own_window()[..own]);
        if let Some(window) = &mut kv.window {
            window.from = from;
        }
    }

    /// The most window slots that a request of `tokens` tokens holds while it decodes.
    fn most_window(&self, tokens: usize) -> usize {
        let page = self.cache.page_size();
        let reach = tokens - self.cache.window_start(tokens);
        tokens.min(reach + page + self.unlocked_together(reach))
    }

    /// Slots of the cache that a request gives up together where a token attends `reach` positions.
    fn unlocked_together(&self, reach: usize) -> usize {
        let (least, most) = (*UNLOCKED_TOGETHER.start(), *UNLOCKED_TOGETHER.end());
        (reach / 8).clamp(least, most)
    }

    /// The window slots that `kv` takes in addition to its own until its request has `tokens` tokens.
    pub fn window_growth(&self, kv: &RequestKv, tokens: usize) -> usize {
        let Some(window) = &kv.window else { return 0 };
        let has = window.slots.len() - window.from;
        self.most_window(tokens).saturating_sub(has)
    }

    /// True if there are window slots for `request`, which may generate `output` tokens, beside those
    /// that `reserve` counts; there are always if that is `None`. The cache has the prefix `found`.
    pub fn has_window_for(
        &mut self,
        request: &ActiveRequest,
        found: Peeked,
        output: usize,
        reserve: Option<usize>,
    ) -> bool {
        let (true, Some(reserve)) = (self.windowed, reserve) else {
            return true;
        };
        let cached = found.tokens - self.cache.window_start(found.tokens);
        let most = self.most_window(request.tokens.len() + output);
        let available = self.window_usage().available() - found.unlocked_window;
        most.saturating_sub(cached) + reserve <= available
    }
}
