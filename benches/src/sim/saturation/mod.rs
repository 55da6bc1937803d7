//! `hearth:saturation:ratio` (running and waiting requests by those that may run) in simulated time:
//! where it says that a server is full, and how many replicas an autoscaler needs that follows it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`arrivals`] | three arrival processes |
//! | [`knee`] | the rate at which one server misses its objective, and the rate at which it is saturated |
//! | [`fleet`] | replicas that come and go |
//! | [`scaler`] | autoscalers and the signals that they follow |
//!
//! The nodes are those of [`super::disaggregation`], and leave out what these do.

pub mod arrivals;
pub mod fleet;
pub mod knee;
pub mod scaler;

use super::cost::{Device, SEVEN_B, SMALL};
use super::disaggregation::node::Limits;
use super::disaggregation::workload::Workload;
use arrivals::Process;
use scaler::Signal;

/// A model with the objective of its server.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub name: &'static str,
    pub device: Device,
    pub workload: Workload,
    /// Nanoseconds within which 95 of 100 requests should have their first token.
    pub objective: u64,
}

pub const MODELS: [Model; 2] = [
    Model {
        name: "7B",
        device: SEVEN_B,
        workload: Workload {
            name: "chat 256/256",
            prompt: 256,
            output: 256,
        },
        objective: 2_000_000_000,
    },
    Model {
        name: "0.6B",
        device: SMALL,
        workload: Workload {
            name: "documents 1024/128",
            prompt: 1024,
            output: 128,
        },
        objective: 500_000_000,
    },
];

/// The part of the requests that must keep the objective.
pub const KEPT: f64 = 0.95;

impl Model {
    pub fn limits(&self) -> Limits {
        Limits {
            max_running: 64,
            prefill_chunk: 512,
            device: self.device,
        }
    }
}

/// Simulates both tables and gives each line to `print`.
pub fn tables(requests: usize, minutes: u32, seed: u64, mut print: impl FnMut(String)) {
    print(
        "| model | arrivals | requests/s with TTFT kept | with saturation below 1 | ratio |"
            .to_owned(),
    );
    print("|---|---|---|---|---|".to_owned());
    for model in MODELS {
        for process in Process::ALL {
            let found = knee::find(&model, process, requests, seed);
            print(format!(
                "| {} | {} | {:.2} | {:.2} | {:.3} |",
                model.name,
                process.name(),
                found.kept,
                found.saturated,
                found.saturated / found.kept
            ));
        }
    }
    print(String::new());
    print(
        "| model | arrivals | signal | target | replicas, mean | most | TTFT kept, % |".to_owned(),
    );
    print("|---|---|---|---|---|---|---|".to_owned());
    for model in MODELS {
        for process in Process::ALL {
            let rate = knee::find(&model, Process::Poisson, requests, seed).kept;
            let arrivals = fleet::arrivals(&model, process, rate, minutes, seed);
            for signal in Signal::ALL {
                let (target, run) = scaler::best(&model, &arrivals, signal);
                print(format!(
                    "| {} | {} | {} | {target} | {:.2} | {} | {:.1} |",
                    model.name,
                    process.name(),
                    signal.name(),
                    run.mean_replicas,
                    run.most_replicas,
                    100.0 * run.kept
                ));
            }
        }
    }
}
