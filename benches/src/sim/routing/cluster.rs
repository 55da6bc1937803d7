//! Routers, workers and the sessions that use them.

use std::collections::BTreeMap;

use anyhow::Context;
use hearth_router::simulated::{Routed, SimulatedRouter};

use super::super::random::Random;
use super::super::workload::{Call, Workload};
use super::Routing;
use super::worker::{Ended, Next, Running, Worker};

/// The results of one run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The share of all prompt tokens that came from a cache.
    pub hit_rate: f64,
    /// Seconds from a request to its first token.
    pub ttft_mean: f64,
    pub ttft_p95: f64,
}

enum Event<'a> {
    Computed {
        worker: usize,
    },
    Ended {
        worker: usize,
        ended: Box<Ended<'a, Routed>>,
    },
}

pub struct Cluster<'a> {
    routers: Vec<SimulatedRouter>,
    workers: Vec<Worker<'a, Routed>>,
    trace: &'a Workload,
    next_session: usize,
    requests: usize,
    random: Random,
    now: f64,
    /// By time in nanoseconds, then in the order in which they were planned.
    events: BTreeMap<(u64, u64), Event<'a>>,
    planned: u64,
    /// When the prompt that each worker computes arrived.
    arrived: Vec<f64>,
    prompt_tokens: usize,
    cached_tokens: usize,
    ttfts: Vec<f64>,
}

impl<'a> Cluster<'a> {
    pub fn new(
        trace: &'a Workload,
        workers: usize,
        kv_tokens: usize,
        routing: Routing,
    ) -> anyhow::Result<Self> {
        let router = |_| SimulatedRouter::new(workers, routing.policy, routing.events);
        Ok(Self {
            routers: (0..routing.routers).map(router).collect(),
            workers: (0..workers)
                .map(|_| Worker::new(kv_tokens))
                .collect::<Result<_, _>>()?,
            trace,
            next_session: 0,
            requests: 0,
            random: Random::new(7),
            now: 0.0,
            events: BTreeMap::new(),
            planned: 0,
            arrived: vec![0.0; workers],
            prompt_tokens: 0,
            cached_tokens: 0,
            ttfts: Vec::new(),
        })
    }

    pub fn run(mut self) -> anyhow::Result<Outcome> {
        for _ in 0..self.trace.concurrent {
            self.start_session()?;
        }
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at as f64 / 1e9;
            match event {
                Event::Computed { worker } => {
                    self.ttfts.push(self.now - self.arrived[worker]);
                    let next = self.workers[worker].computed();
                    self.plan(worker, next);
                    self.begin(worker);
                }
                Event::Ended { worker, ended } => self.end(worker, *ended)?,
            }
        }
        let waiting = self.workers.iter().filter(|worker| worker.waits()).count();
        anyhow::ensure!(
            waiting == 0,
            "a request does not fit into the cache of a worker"
        );
        self.ttfts.sort_by(f64::total_cmp);
        let count = self.ttfts.len().max(1);
        Ok(Outcome {
            hit_rate: self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64,
            ttft_mean: self.ttfts.iter().sum::<f64>() / count as f64,
            ttft_p95: self.ttfts.get(count * 95 / 100).copied().unwrap_or(0.0),
        })
    }

    fn start_session(&mut self) -> anyhow::Result<()> {
        let session = self.next_session;
        let Some(call) = self.trace.sessions.get(session) else {
            return Ok(());
        };
        self.next_session += 1;
        self.send(session, call, Vec::new())
    }

    /// Sends a call whose prompt continues `context`.
    fn send(&mut self, session: usize, call: &'a Call, context: Vec<u32>) -> anyhow::Result<()> {
        let prompt = [context, call.suffix.clone()].concat();
        let output = self.random.tokens(call.output, call.output);
        let router = &self.routers[self.requests % self.routers.len()];
        self.requests += 1;
        let routed = router.route(&prompt).context("there is no worker")?;
        let worker = routed.worker;
        self.prompt_tokens += prompt.len();
        self.workers[worker].arrive(Running {
            call,
            prompt,
            output,
            session,
            arrived: self.now,
            routed,
        });
        self.begin(worker);
        Ok(())
    }

    fn begin(&mut self, worker: usize) {
        let arrived = self.workers[worker].first_arrived();
        let next = self.workers[worker].begin();
        if let (Some(arrived), true) = (arrived, next.is_some()) {
            self.arrived[worker] = arrived;
        }
        self.plan(worker, next);
    }

    fn plan(&mut self, worker: usize, next: Option<Next<'a, Routed>>) {
        let (after, event) = match next {
            None => return self.publish(worker),
            Some(Next::Prompt { after, cached }) => {
                self.cached_tokens += cached;
                (after, Event::Computed { worker })
            }
            Some(Next::Output { after, running }) => {
                let ended = running;
                (after, Event::Ended { worker, ended })
            }
        };
        self.planned += 1;
        let at = ((self.now + after) * 1e9) as u64;
        self.events.insert((at, self.planned), event);
        self.publish(worker);
    }

    fn publish(&mut self, worker: usize) {
        let events = self.workers[worker].events();
        for router in &self.routers {
            router.publish(worker, events.clone());
        }
    }

    /// The calls that follow from a complete output are sent, or another session starts.
    fn end(&mut self, worker: usize, ended: Ended<'a, Routed>) -> anyhow::Result<()> {
        let Running {
            call,
            prompt,
            output,
            session,
            routed,
            ..
        } = self.workers[worker].end(ended);
        drop(routed);
        self.publish(worker);
        self.begin(worker);
        let context = [prompt, output].concat();
        for next in &call.next {
            self.send(session, next, context.clone())?;
        }
        match call.next.is_empty() {
            true => self.start_session(),
            false => Ok(()),
        }
    }
}
