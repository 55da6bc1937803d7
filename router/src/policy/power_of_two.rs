//! `power_of_two`: of two random workers, the one with fewer requests in flight.

use std::sync::Arc;

use rand::Rng;

use super::Policy;
use crate::prompt::Prompt;
use crate::worker::Worker;

#[derive(Debug)]
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn select(&self, workers: &[Arc<Worker>], _: &Prompt) -> Option<usize> {
        match workers.len() {
            0 => None,
            1 => Some(0),
            count => {
                let mut rng = rand::rng();
                let one = rng.random_range(0..count);
                // Any of the others is equally likely.
                let other = (one + rng.random_range(1..count)) % count;
                let less = workers[other].load() < workers[one].load();
                Some(if less { other } else { one })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::worker;

    #[test]
    fn the_worker_with_the_highest_load_is_never_selected() {
        let workers = [worker("http://a"), worker("http://b"), worker("http://c")];
        let _load: Vec<_> = (0..3).map(|_| workers[1].lease().unwrap()).collect();
        let select = || PowerOfTwo.select(&workers, &Prompt::default()).unwrap();
        let mut counts = [0; 3];
        (0..200).for_each(|_| counts[select()] += 1);
        assert_eq!(counts[1], 0);
        assert!(counts[0] > 0 && counts[2] > 0, "{counts:?}");
        assert_eq!(
            PowerOfTwo.select(&workers[..1], &Prompt::default()),
            Some(0)
        );
    }
}
