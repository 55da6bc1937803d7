//! The requests of a simulated cluster.

use crate::sim::random::Random;

/// The kind of the requests, by the mean lengths of prompt and output in tokens.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub name: &'static str,
    pub prompt: usize,
    pub output: usize,
}

pub const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "chat 256/512",
        prompt: 256,
        output: 512,
    },
    Workload {
        name: "documents 2048/256",
        prompt: 2048,
        output: 256,
    },
    Workload {
        name: "agents 8192/128",
        prompt: 8192,
        output: 128,
    },
];

/// One request: its arrival in nanoseconds, and its lengths in tokens.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub arrival: u64,
    pub prompt: u64,
    pub output: u64,
}

impl Workload {
    /// `count` requests, which arrive as a Poisson process with `rate` requests a second. An
    /// infinite rate makes all of them arrive at the start. Each length is drawn uniformly between
    /// half and one and a half of the mean. `seed` must not be 0.
    pub fn requests(&self, count: usize, rate: f64, seed: u64) -> Vec<Request> {
        let mut random = Random::new(seed);
        let mut seconds = 0.0;
        (0..count)
            .map(|_| {
                seconds += random.exponential() / rate;
                let mut length = |mean: usize| random.between(mean / 2, mean + mean / 2) as u64;
                Request {
                    arrival: (seconds * 1e9) as u64,
                    prompt: length(self.prompt),
                    output: length(self.output),
                }
            })
            .collect()
    }
}
