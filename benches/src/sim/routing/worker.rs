//! A worker: a real prefix cache, and times by a formula.

use std::collections::VecDeque;

use hearth_events::KvEvent;
use hearth_radix::{EvictionPolicy, PrefixLock, TieredCache};

use super::super::workload::Call;

/// Tokens of a page.
const PAGE: usize = 16;
/// Prompt tokens that a worker computes in a second.
const PREFILL: f64 = 5_000.0;
/// Seconds from one token of an output to the next.
const ITL: f64 = 0.02;

/// A call that reached a worker.
#[derive(Debug)]
pub struct Running<'a, R> {
    pub call: &'a Call,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    pub session: usize,
    pub arrived: f64,
    /// The router's note of the request.
    pub routed: R,
}

/// A call that holds slots.
struct Started {
    slots: Vec<u32>,
    lock: PrefixLock,
}

/// The next event at a worker.
pub enum Next<'a, R> {
    /// The prompt is computed after so many seconds. So many of its tokens were cached.
    Prompt { after: f64, cached: usize },
    /// The output is complete.
    Output {
        after: f64,
        running: Box<Ended<'a, R>>,
    },
}

/// A call whose output is being generated.
pub struct Ended<'a, R> {
    pub running: Running<'a, R>,
    started: Started,
}

pub struct Worker<'a, R> {
    cache: TieredCache,
    waiting: VecDeque<Running<'a, R>>,
    computing: Option<(Running<'a, R>, Started)>,
}

impl<'a, R> Worker<'a, R> {
    pub fn new(kv_tokens: usize) -> anyhow::Result<Self> {
        let mut cache = TieredCache::new(kv_tokens, PAGE, EvictionPolicy::Lru)?;
        cache.record_changes();
        Ok(Self {
            cache,
            waiting: VecDeque::new(),
            computing: None,
        })
    }

    pub fn arrive(&mut self, running: Running<'a, R>) {
        self.waiting.push_back(running);
    }

    /// Begins with the prompt that waits longest, if none is computed and there is room for it and
    /// its output.
    pub fn begin(&mut self) -> Option<Next<'a, R>> {
        if self.computing.is_some() {
            return None;
        }
        let running = self.waiting.front()?;
        // The last token is always computed.
        let reusable = &running.prompt[..running.prompt.len() - 1];
        let prefix = self.cache.match_prefix("", reusable, 0);
        let (mut slots, cached) = (prefix.slots, prefix.lock.tokens());
        let need = running.prompt.len() + running.output.len() - cached;
        self.cache.allocate(need, &mut slots).ok()?;
        let after = (running.prompt.len() - cached) as f64 / PREFILL;
        let lock = prefix.lock;
        let running = self.waiting.pop_front()?;
        self.computing = Some((running, Started { slots, lock }));
        Some(Next::Prompt { after, cached })
    }

    /// The prompt is computed, and others may use it.
    pub fn computed(&mut self) -> Option<Next<'a, R>> {
        let (running, mut started) = self.computing.take()?;
        let prompt = &running.prompt;
        let slots = &mut started.slots[..prompt.len()];
        started.lock = self.cache.insert("", prompt, 0, slots);
        let after = running.output.len() as f64 * ITL;
        let running = Box::new(Ended { running, started });
        Some(Next::Output { after, running })
    }

    /// The output is complete.
    pub fn end(&mut self, ended: Ended<'a, R>) -> Running<'a, R> {
        let Ended { running, started } = ended;
        let Started { mut slots, lock } = started;
        let tokens = [&running.prompt[..], &running.output].concat();
        let all = self.cache.insert("", &tokens, 0, &mut slots);
        self.cache.free(&slots[all.tokens()..]);
        drop((lock, all));
        running
    }

    /// The changes of the cache since the last call.
    pub fn events(&mut self) -> Vec<KvEvent> {
        let changes = self.cache.take_changes().into_iter();
        changes.map(|change| KvEvent::of(change, PAGE)).collect()
    }

    /// When the prompt that waits longest arrived.
    pub fn first_arrived(&self) -> Option<f64> {
        self.waiting.front().map(|running| running.arrived)
    }

    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}
