//! What the time of a forward on the CPU goes to, for those who ask.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Embedding,
    Norm,
    /// With a matrix of weights.
    Product {
        rows: usize,
        columns: usize,
    },
    /// The rotation of queries and keys, and storing keys and values.
    Rotation,
    Attention,
    Activation,
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
        }
    }
}

/// What an operation took, over all of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub calls: u64,
    pub time: Duration,
    /// Of weights, keys and values, each counted once for a call.
    pub bytes: u64,
    /// Multiplications and additions with them.
    pub flops: u64,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static SPENT: Mutex<BTreeMap<Operation, Spent>> = Mutex::new(BTreeMap::new());

fn spent() -> MutexGuard<'static, BTreeMap<Operation, Spent>> {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records what all kernels of this process do from now on.
pub fn record() {
    spent().clear();
    RECORDING.store(true, Ordering::Relaxed);
}

/// What they did since [`record`], which is at an end.
pub fn recorded() -> BTreeMap<Operation, Spent> {
    RECORDING.store(false, Ordering::Relaxed);
    std::mem::take(&mut spent())
}

/// Times an operation until it is dropped, if somebody asks; `bytes` and `flops` are its own.
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
