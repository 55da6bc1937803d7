//! The caller's handle on a grammar that is being compiled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type OnCancel = Box<dyn FnOnce() + Send>;

/// Says whether the compilation of one grammar has started, and cancels it.
#[derive(Default)]
pub struct Ticket {
    started: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cancelled: bool,
    on_cancel: Option<OnCancel>,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").finish_non_exhaustive()
    }
}

impl Ticket {
    /// True if a thread has started to compile the grammar.
    pub fn has_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// Cancels the compilation: the caller does not wait for it any longer.
    pub fn cancel(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled = true;
        if let Some(on_cancel) = state.on_cancel.take() {
            on_cancel();
        }
    }

    pub(crate) fn set_started(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled
    }

    /// Calls `call` when the ticket is cancelled, or at once if it is cancelled already.
    pub(crate) fn on_cancel(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.cancelled {
            call();
        } else {
            state.on_cancel = Some(Box::new(call));
        }
    }
}
