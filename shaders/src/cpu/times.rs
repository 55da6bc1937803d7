//! Records where the time of a forward pass on the CPU goes, on request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The kind of work that a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Embedding,
    Norm,
    /// A multiplication with a matrix of weights of this size.
    Product {
        rows: usize,
        columns: usize,
    },
    /// The rotation of queries and keys, and the store of keys and values.
    Rotation,
    Attention,
    Activation,
    /// The low-rank products of adapters. The second one of a single adapter is computed by the tasks
    /// of the product that it is added to, and counts as a part of that.
    Adapters,
    /// The choice of experts.
    Routing,
    /// The MLPs of the chosen experts.
    Experts,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Embedding => f.write_str("embedding"),
            Operation::Norm => f.write_str("norms, residual sums"),
            Operation::Product { rows, columns } => write!(f, "product, {rows} x {columns}"),
            Operation::Rotation => f.write_str("rotation, store of K and V"),
            Operation::Attention => f.write_str("attention"),
            Operation::Activation => f.write_str("activation"),
            Operation::Adapters => f.write_str("adapters"),
            Operation::Routing => f.write_str("choice of experts"),
            Operation::Experts => f.write_str("experts"),
        }
    }
}

/// The time of an operation, over all of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub calls: u64,
    pub time: Duration,
    /// Bytes of weights, keys and values, each counted once per call.
    pub bytes: u64,
    /// Floating-point operations with them.
    pub flops: u64,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static SPENT: Mutex<BTreeMap<Operation, Spent>> = Mutex::new(BTreeMap::new());

fn spent() -> MutexGuard<'static, BTreeMap<Operation, Spent>> {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to record what all kernels of this process do.
pub fn record() {
    spent().clear();
    RECORDING.store(true, Ordering::Relaxed);
}

/// Stops recording, and returns what was recorded since [`record`].
pub fn recorded() -> BTreeMap<Operation, Spent> {
    RECORDING.store(false, Ordering::Relaxed);
    std::mem::take(&mut spent())
}

/// Times an operation until the timer is dropped, if times are being recorded. `operation` returns
/// the operation, its bytes and its floating-point operations.
pub(super) fn time(operation: impl FnOnce() -> (Operation, usize, usize)) -> Option<Timer> {
    RECORDING.load(Ordering::Relaxed).then(|| {
        let (operation, bytes, flops) = operation();
        Timer {
            operation,
            bytes: bytes as u64,
            flops: flops as u64,
            started: Instant::now(),
        }
    })
}

/// Adds the time of its life to the records when it is dropped.
pub(super) struct Timer {
    operation: Operation,
    bytes: u64,
    flops: u64,
    started: Instant,
}

impl Drop for Timer {
    fn drop(&mut self) {
        let time = self.started.elapsed();
        let mut spent = spent();
        let spent = spent.entry(self.operation).or_default();
        spent.calls += 1;
        spent.time += time;
        spent.bytes += self.bytes;
        spent.flops += self.flops;
    }
}
