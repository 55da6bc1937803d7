//! Three arrival processes.

use crate::sim::disaggregation::workload::{Request, Workload};
use crate::sim::random::Random;

/// Requests of a burst, on average.
const BURST: f64 = 6.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Equal gaps.
    Even,
    /// Clients that know nothing of each other.
    Poisson,
    /// A Poisson process of bursts, whose sizes are geometric.
    Bursts,
}

impl Process {
    pub const ALL: [Self; 3] = [Self::Even, Self::Poisson, Self::Bursts];

    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Poisson => "Poisson",
            Self::Bursts => "bursts",
        }
    }

    /// The gap before the next request, in units of the mean gap.
    fn gap(self, random: &mut Random) -> f64 {
        match self {
            Self::Even => 1.0,
            Self::Poisson => random.exponential(),
            Self::Bursts if random.between(1, 1000) as f64 > 1000.0 / BURST => 0.0,
            Self::Bursts => random.exponential() * BURST,
        }
    }

    /// The requests until `count` is reached or `end`, in seconds, has come. `rate` gives the requests
    /// a second at a time in seconds. `seed` must not be 0.
    pub fn requests(
        self,
        workload: Workload,
        count: usize,
        end: f64,
        rate: impl Fn(f64) -> f64,
        seed: u64,
    ) -> Vec<Request> {
        let mut random = Random::new(seed);
        let (mut seconds, mut requests) = (0.0, Vec::new());
        while requests.len() < count {
            seconds += self.gap(&mut random) / rate(seconds);
            if seconds >= end {
                break;
            }
            let mut length = |mean: usize| random.between(mean / 2, mean + mean / 2) as u64;
            requests.push(Request {
                arrival: (seconds * 1e9) as u64,
                prompt: length(workload.prompt),
                output: length(workload.output),
            });
        }
        requests
    }
}
