//! Which requests use an adapter.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hearth_engine::Adapter;

/// The choices with an adapter: those that wait, and those that have started.
#[derive(Debug, Default)]
pub struct Uses {
    waiting: AtomicUsize,
    running: AtomicUsize,
}

impl Uses {
    pub(super) fn has_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// The most bytes of a label: as many as a name may have.
const MAX_LABEL: usize = super::MAX_NAME;
/// The label of several adapters that one request adds up. A label for each sum would let clients make
/// any number of series.
const SEVERAL: &str = "_SEVERAL";

/// The labels by which metrics and spans name the adapters of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterLabels {
    /// The name, or the names of all with `+` between them as far as they fit into 256 bytes.
    pub traces: String,
    /// The name, or `_SEVERAL`.
    pub metrics: String,
}

impl AdapterLabels {
    pub(super) fn of(names: &[&str]) -> Self {
        let mut traces = names.join("+");
        traces.truncate(traces.floor_char_boundary(MAX_LABEL));
        let metrics = match names {
            [name] => (*name).to_owned(),
            _ => SEVERAL.to_owned(),
        };
        Self { traces, metrics }
    }
}

/// The base model or the adapters that a request computes with.
#[derive(Clone, Debug)]
pub struct AdapterUse {
    /// The name that the answer has for the model, where the request selected an adapter by it.
    pub name: Option<String>,
    pub labels: AdapterLabels,
    pub adapter: Arc<Adapter>,
    pub(super) uses: Vec<Arc<Uses>>,
}

impl AdapterUse {
    /// Counts one more choice, which waits.
    pub fn begin(&self) -> InUse {
        for uses in &self.uses {
            uses.waiting.fetch_add(1, Ordering::Relaxed);
        }
        InUse {
            uses: self.uses.clone(),
            counts: Some(false),
        }
    }
}

/// A choice that is counted until this is dropped.
#[derive(Debug)]
pub struct InUse {
    uses: Vec<Arc<Uses>>,
    /// True if the choice has started; `None` for one that is not counted.
    counts: Option<bool>,
}

impl InUse {
    /// A look at what is counted, which counts nothing itself.
    pub(super) fn of(uses: Arc<Uses>) -> Self {
        Self {
            uses: vec![uses],
            counts: None,
        }
    }

    /// True if any choice is counted.
    pub fn is_in_use(&self) -> bool {
        let mut uses = self.uses.iter();
        uses.any(|uses| uses.has_running() || uses.has_waiting())
    }

    /// The choice started, or after a preemption it waits again.
    pub fn set_running(&mut self, running: bool) {
        let Some(before) = self.counts.filter(|before| *before != running) else {
            return;
        };
        for uses in &self.uses {
            let (from, to) = match before {
                false => (&uses.waiting, &uses.running),
                true => (&uses.running, &uses.waiting),
            };
            to.fetch_add(1, Ordering::Relaxed);
            from.fetch_sub(1, Ordering::Relaxed);
        }
        self.counts = Some(running);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Some(running) = self.counts else { return };
        for uses in &self.uses {
            let count = if running {
                &uses.running
            } else {
                &uses.waiting
            };
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
