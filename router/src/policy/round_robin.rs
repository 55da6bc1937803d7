//! `round_robin`: the workers in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Policy;
use crate::prompt::Prompt;
use crate::worker::Worker;

#[derive(Debug, Default)]
pub struct RoundRobin(AtomicUsize);

impl Policy for RoundRobin {
    fn select(&self, workers: &[Arc<Worker>], _: &Prompt) -> Option<usize> {
        let turn = self.0.fetch_add(1, Ordering::Relaxed);
        turn.checked_rem(workers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::worker;

    #[test]
    fn the_workers_take_turns() {
        let workers = [worker("http://a"), worker("http://b")];
        let policy = RoundRobin::default();
        let select = || policy.select(&workers, &Prompt::default()).unwrap();
        assert_eq!([select(), select(), select(), select()], [0, 1, 0, 1]);
        assert_eq!(policy.select(&[], &Prompt::default()), None);
    }
}
