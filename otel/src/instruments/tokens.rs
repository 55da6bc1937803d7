//! Generated tokens, and the times between them.
//!
//! Every token of every request is recorded on the thread that serves its connection. If these
//! threads shared a counter and a histogram, each would wait for the other's memory at each token. So
//! each thread gathers what it records. A collection, for a scrape or for an export, takes in what
//! was gathered before it reads the histogram, so that no number is late.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundHistogram, Meter};

use super::build::observed;
use crate::catalog::STREAM;

/// Places in which threads gather; more threads share them.
const PLACES: usize = 16;
/// Times that a place gathers before it records them.
const MOST: usize = 256;

thread_local! {
    /// The place of this thread.
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

#[derive(Debug, Default)]
struct Gathered {
    /// All tokens since the start, indexed by `usize::from(stream)`.
    tokens: [u64; 2],
    /// Times that are not in the histogram yet, in seconds.
    times: Vec<f64>,
}

/// Two cache lines, so that no place shares one with its neighbour.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place(Mutex<Gathered>);

impl Place {
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct Tokens {
    places: [Place; PLACES],
    between: BoundHistogram<f64>,
}

impl Tokens {
    /// The times between tokens go to `between`.
    pub(super) fn new(meter: &Meter, model: &KeyValue, between: BoundHistogram<f64>) -> Arc<Self> {
        let tokens = Arc::new(Self {
            places: Default::default(),
            between,
        });
        let (read, model) = (Arc::clone(&tokens), model.clone());
        observed(meter, "llm.generation_tokens", move || {
            let [whole, streamed] = read.collect();
            [(false, whole), (true, streamed)]
                .map(|(stream, count)| {
                    let attributes = vec![model.clone(), KeyValue::new(STREAM, stream)];
                    (attributes, count as f64)
                })
                .into()
        });
        tokens
    }

    /// Counts `count` tokens, and records the seconds between one of them and the token before it.
    pub(super) fn add(&self, stream: bool, count: u64, since_last: Option<f64>) {
        let mut gathered = self.places[PLACE.with(|place| *place)].lock();
        gathered.tokens[usize::from(stream)] += count;
        gathered.times.extend(since_last);
        if gathered.times.len() >= MOST {
            self.record(&mut gathered);
        }
    }

    fn record(&self, gathered: &mut Gathered) {
        for seconds in gathered.times.drain(..) {
            self.between.record(seconds);
        }
    }

    /// Records the times that were gathered, and returns the numbers of tokens.
    fn collect(&self) -> [u64; 2] {
        let mut sums = [0; 2];
        for place in &self.places {
            let mut gathered = place.lock();
            self.record(&mut gathered);
            for (sum, count) in sums.iter_mut().zip(gathered.tokens) {
                *sum += count;
            }
        }
        sums
    }
}
