//! `random`: each worker is equally likely.

use std::sync::Arc;

use rand::Rng;

use super::Policy;
use crate::prompt::Prompt;
use crate::worker::Worker;

#[derive(Debug)]
pub struct Random;

impl Policy for Random {
    fn select(&self, workers: &[Arc<Worker>], _: &Prompt) -> Option<usize> {
        (!workers.is_empty()).then(|| rand::rng().random_range(0..workers.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::worker;

    #[test]
    fn every_worker_gets_requests() {
        let workers = [worker("http://a"), worker("http://b"), worker("http://c")];
        let mut counts = [0; 3];
        for _ in 0..300 {
            counts[Random.select(&workers, &Prompt::default()).unwrap()] += 1;
        }
        // Each count is 100 on average; one below 50 has a probability of about 1e-10.
        assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
        assert_eq!(Random.select(&[], &Prompt::default()), None);
    }
}
