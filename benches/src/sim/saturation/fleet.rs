//! Replicas that come and go, behind a router that knows how many requests each has.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Model;
use super::arrivals::Process;
use crate::sim::disaggregation::measure::Recorder;
use crate::sim::disaggregation::node::{Computed, Load, Node};
use crate::sim::disaggregation::workload::Request;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// How often the autoscaler looks, as Kubernetes' does.
pub const PERIOD: u64 = 15 * SECOND;
/// The time from the decision to a replica that serves.
const START: u64 = 60 * SECOND;
/// The load at the peak, in servers.
const PEAK: f64 = 4.0;

/// The signals of a period, over the replicas that serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub replicas: usize,
    /// Requests that ran and waited at the end of the period, over all replicas.
    pub load: Load,
    pub max_running: usize,
    /// The part of the period in which the devices computed, on average.
    pub busy: f64,
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct FleetRun {
    pub mean_replicas: f64,
    pub most_replicas: usize,
    /// The part of the requests whose first token came in time.
    pub kept: f64,
}

/// The requests of `minutes`: from a quarter of the peak to the peak and back, twice. `rate` is
/// what one server sustains.
pub fn arrivals(
    model: &Model,
    process: Process,
    rate: f64,
    minutes: u32,
    seed: u64,
) -> Vec<Request> {
    let end = f64::from(minutes) * 60.0;
    let at = |seconds: f64| {
        let turn = (seconds / end * 2.0 * std::f64::consts::TAU).cos();
        rate * PEAK * (0.625 - 0.375 * turn)
    };
    process.requests(model.workload, usize::MAX, end, at, seed)
}

struct Replica {
    node: Node,
    /// When it serves for the first time.
    ready: u64,
    /// Gets no more requests, and ends with its last one.
    leaves: bool,
    requests: usize,
    busy: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    StepEnd(usize),
    Look,
}

struct Fleet<'a> {
    model: &'a Model,
    requests: &'a [Request],
    /// Replicas are never removed, so that events keep their numbers.
    replicas: Vec<Replica>,
    of_request: Vec<usize>,
    first: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    caused: u64,
    recorder: Recorder,
    /// Sum over time of the replicas that exist, in nanoseconds.
    paid: u64,
    most: usize,
}

/// Serves `requests` with as many replicas as `desired` says at the end of each period.
pub fn run(
    model: &Model,
    requests: &[Request],
    mut desired: impl FnMut(u64, Seen) -> usize,
) -> FleetRun {
    let mut fleet = Fleet {
        model,
        requests,
        replicas: Vec::new(),
        of_request: vec![0; requests.len()],
        first: vec![0; requests.len()],
        events: BinaryHeap::new(),
        caused: 0,
        recorder: Recorder::new(0..0),
        paid: 0,
        most: 0,
    };
    // The first replicas are there from the start.
    fleet.start(2, 0);
    fleet.cause(PERIOD, Event::Look);
    let end = requests.last().map_or(0, |last| last.arrival);
    for (request, arrival) in requests.iter().map(|r| r.arrival).enumerate() {
        fleet.handle_until(arrival, end, &mut desired);
        fleet.arrival(arrival, request);
    }
    fleet.handle_until(u64::MAX, end, &mut desired);
    let kept = requests.iter().zip(&fleet.first);
    let kept = kept.filter(|(request, first)| *first - request.arrival <= model.objective);
    FleetRun {
        mean_replicas: fleet.paid as f64 / end as f64,
        most_replicas: fleet.most,
        kept: kept.count() as f64 / requests.len() as f64,
    }
}

impl Fleet<'_> {
    fn cause(&mut self, time: u64, event: Event) {
        self.caused += 1;
        self.events.push(Reverse((time, self.caused, event)));
    }

    fn start(&mut self, replicas: usize, ready: u64) {
        let new = (0..replicas).map(|_| Replica {
            node: Node::new(self.model.limits()),
            ready,
            leaves: false,
            requests: 0,
            busy: 0,
        });
        self.replicas.extend(new);
    }

    fn handle_until(&mut self, time: u64, end: u64, desired: &mut impl FnMut(u64, Seen) -> usize) {
        while let Some(&Reverse((now, _, event))) = self.events.peek() {
            if now >= time {
                return;
            }
            self.events.pop();
            match event {
                Event::StepEnd(replica) => self.step_end(now, replica),
                Event::Look if now <= end => {
                    self.look(now, desired);
                    self.cause(now + PERIOD, Event::Look);
                }
                Event::Look => {}
            }
        }
    }

    fn arrival(&mut self, now: u64, request: usize) {
        let serving = self.replicas.iter().enumerate();
        let serving = serving.filter(|(_, replica)| replica.ready <= now && !replica.leaves);
        let least = serving.min_by_key(|(_, replica)| replica.requests);
        let replica = least.map_or(0, |(index, _)| index);
        self.of_request[request] = replica;
        self.replicas[replica].requests += 1;
        let prompt = self.requests[request].prompt;
        self.replicas[replica].node.prefill(request, prompt);
        self.proceed(now, replica);
    }

    fn step_end(&mut self, now: u64, replica: usize) {
        let ended = self.replicas[replica]
            .node
            .end_step(now, &mut self.recorder);
        self.replicas[replica].requests -= ended.complete.len();
        for chunk in ended.chunks.iter().filter(|chunk| chunk.last) {
            let Request { prompt, output, .. } = self.requests[chunk.request];
            self.replicas[replica].node.decode(Computed {
                request: chunk.request,
                context: prompt,
                left: output - 1,
            });
        }
        self.proceed(now, replica);
    }

    fn proceed(&mut self, now: u64, replica: usize) {
        let this = &mut self.replicas[replica];
        for admitted in this.node.admit(now) {
            self.first[admitted.request] = now;
            this.requests -= usize::from(admitted.left == 0);
        }
        if let Some(time) = this.node.start_step() {
            this.busy += time;
            self.cause(now + time, Event::StepEnd(replica));
        }
    }

    /// The end of a period: pays for it, reads the signals, and starts or stops replicas.
    fn look(&mut self, now: u64, desired: &mut impl FnMut(u64, Seen) -> usize) {
        let exists = |replica: &Replica| !replica.leaves || replica.requests > 0;
        let existing = self.replicas.iter().filter(|r| exists(r)).count();
        self.paid += existing as u64 * PERIOD;
        self.most = self.most.max(existing);
        let mut seen = Seen {
            max_running: self.model.limits().max_running,
            ..Seen::default()
        };
        for replica in &mut self.replicas {
            let busy = std::mem::take(&mut replica.busy);
            if replica.leaves || replica.ready > now {
                continue;
            }
            let load = replica.node.load();
            seen.replicas += 1;
            seen.load.running += load.running;
            seen.load.waiting += load.waiting;
            // A step may last beyond the period.
            seen.busy += (busy as f64 / PERIOD as f64).min(1.0);
        }
        seen.busy /= seen.replicas.max(1) as f64;
        let staying = self.replicas.iter().filter(|r| !r.leaves).count();
        let wanted = desired(now, seen).max(1);
        if wanted > staying {
            self.start(wanted - staying, now + START);
        }
        // Replicas that still start leave first, then those with the fewest requests.
        for _ in wanted..staying {
            let candidates = self.replicas.iter_mut().filter(|r| !r.leaves);
            if let Some(least) = candidates.min_by_key(|r| (Reverse(r.ready), r.requests)) {
                least.leaves = true;
            }
        }
    }
}
