//! Autoscalers by the rule of Kubernetes' HorizontalPodAutoscaler, and the signals that they follow.

use std::collections::VecDeque;

use super::fleet::{FleetRun, PERIOD, Seen, run};
use super::{KEPT, Model};
use crate::sim::disaggregation::workload::Request;

/// The most replicas: three times what the peak needs.
const MOST: usize = 12;
/// A signal that is as near to its target changes nothing.
const TOLERANCE: f64 = 0.1;
/// Replicas stop only after this many periods in which fewer were wanted: five minutes.
const STABILIZATION: usize = (300_000_000_000 / PERIOD) as usize;
/// Periods that a signal is averaged over: a minute.
const AVERAGED: usize = (60_000_000_000 / PERIOD) as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `hearth:saturation:ratio`: running and waiting requests by those that may run.
    Saturation,
    /// Waiting requests of a replica.
    Queue,
    /// The part of the time in which the device computes.
    Busy,
}

impl Signal {
    pub const ALL: [Self; 3] = [Self::Saturation, Self::Queue, Self::Busy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Saturation => "saturation",
            Self::Queue => "queue length",
            Self::Busy => "GPU use",
        }
    }

    /// The targets that are tried, from the most cautious one on.
    fn targets(self) -> &'static [f64] {
        match self {
            Self::Saturation => &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
            Self::Queue => &[0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0],
            Self::Busy => &[0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95],
        }
    }

    fn value(self, seen: Seen) -> f64 {
        let replicas = seen.replicas.max(1) as f64;
        let (running, waiting) = (seen.load.running as f64, seen.load.waiting as f64);
        match self {
            Self::Saturation => (running + waiting) / replicas / seen.max_running as f64,
            Self::Queue => waiting / replicas,
            Self::Busy => seen.busy,
        }
    }
}

/// The run with the fewest replicas of those that keep the objective, with its target; if none does,
/// the run that keeps it for most requests.
pub fn best(model: &Model, requests: &[Request], signal: Signal) -> (f64, FleetRun) {
    let runs = signal.targets().iter().map(|&target| {
        let mut scaler = Scaler::new(signal, target);
        (target, run(model, requests, |_, seen| scaler.desired(seen)))
    });
    let runs: Vec<_> = runs.collect();
    let keeping = runs.iter().filter(|(_, run)| run.kept >= KEPT);
    let fewest = keeping.min_by(|a, b| a.1.mean_replicas.total_cmp(&b.1.mean_replicas));
    let most = runs.iter().max_by(|a, b| a.1.kept.total_cmp(&b.1.kept));
    *fewest.or(most).expect("there are targets")
}

struct Scaler {
    signal: Signal,
    target: f64,
    values: VecDeque<f64>,
    /// The latest wishes.
    wishes: VecDeque<usize>,
}

impl Scaler {
    fn new(signal: Signal, target: f64) -> Self {
        Self {
            signal,
            target,
            values: VecDeque::new(),
            wishes: VecDeque::new(),
        }
    }

    /// As many replicas as bring the mean of the signal to its target.
    fn desired(&mut self, seen: Seen) -> usize {
        self.values.push_back(self.signal.value(seen));
        if self.values.len() > AVERAGED {
            self.values.pop_front();
        }
        let mean = self.values.iter().sum::<f64>() / self.values.len() as f64;
        let ratio = mean / self.target;
        let wish = if (ratio - 1.0).abs() <= TOLERANCE {
            seen.replicas
        } else {
            (seen.replicas as f64 * ratio).ceil() as usize
        };
        self.wishes.push_back(wish.clamp(1, MOST));
        if self.wishes.len() > STABILIZATION {
            self.wishes.pop_front();
        }
        self.wishes.iter().copied().max().unwrap_or(1)
    }
}
