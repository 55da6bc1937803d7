//! A bound on how often a request can be overtaken.

/// Divides the waiting requests into the round that is being started and the next one.
///
/// A policy that prefers some requests could let others wait for as long as preferred ones
/// keep arriving. So it chooses within one round only. A request that arrives after the
/// first choice joins the current round while fewer than [`JOINERS`](Self::JOINERS) have
/// joined, and otherwise belongs to the next one. So between the arrival of a request and its
/// start, at most these others start: those that waited when it arrived, those that waited
/// when its round began, and `JOINERS`; that is, twice the size of the queue, and 256.
#[derive(Debug)]
pub(crate) struct Rounds {
    current: u64,
    /// Waiting requests of the current round, and of the next.
    waiting: [usize; 2],
    /// Requests that joined since the first choice; `None` before it.
    joined: Option<usize>,
    /// The most requests that may join a round after the first choice.
    joiners: usize,
}

impl Rounds {
    pub const JOINERS: usize = 256;

    pub fn new(joiners: usize) -> Self {
        Self {
            current: 1,
            waiting: [0, 0],
            joined: None,
            joiners,
        }
    }

    /// The round of a request that arrives now.
    pub fn join(&mut self) -> u64 {
        let is_next = self.joined.is_some_and(|joined| joined >= self.joiners);
        if let Some(joined) = &mut self.joined {
            *joined += usize::from(!is_next);
        }
        self.waiting[usize::from(is_next)] += 1;
        self.current + u64::from(is_next)
    }

    /// A request of `round` waits no longer. Returns whether that begins the next
    /// round.
    pub fn leave(&mut self, round: u64) -> bool {
        self.waiting[usize::from(round > self.current)] -= 1;
        if self.waiting[0] > 0 {
            return false;
        }
        self.current += 1;
        self.joined = None;
        self.waiting = [self.waiting[1], 0];
        true
    }

    /// A request of the current round is being chosen.
    pub fn begin(&mut self) {
        self.joined.get_or_insert(0);
    }

    pub fn current(&self) -> u64 {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_arrives_too_late_is_in_the_next_round() {
        let mut rounds = Rounds::new(1);
        assert_eq!([0; 1].map(|_| rounds.join()), [1]);
        rounds.begin();
        assert_eq!([0; 3].map(|_| rounds.join()), [1, 2, 2]);
        assert!(!rounds.leave(1));
        assert!(!rounds.leave(2), "one request of each round is left");
        assert!(rounds.leave(1), "the next round begins");
        assert_eq!(
            [0; 3].map(|_| rounds.join()),
            [2; 3],
            "there was no choice in it yet"
        );
        rounds.begin();
        rounds.begin();
        assert_eq!([0; 2].map(|_| rounds.join()), [2, 3]);
    }

    #[test]
    fn an_empty_queue_begins_a_round_that_requests_can_join() {
        let mut rounds = Rounds::new(1);
        for _ in 0..5 {
            let round = rounds.join();
            rounds.begin();
            assert_eq!(round, rounds.current());
            assert!(rounds.leave(round));
        }
    }
}
