//! A bound on how long a request can be overtaken.

/// Divides the waiting into those who are being served and those who come after.
///
/// A policy that prefers some requests could let others wait for as long as
/// preferred ones keep coming. So it chooses among one generation only: who comes
/// comes after the first choice joins it while fewer than
/// [`JOINERS`](Self::JOINERS) have, and otherwise waits for the next one. So between its arrival and its start others start at most
/// as many as: those that waited when it came, those that waited when its generation
/// began, and `JOINERS`; that is, twice what the queue holds, and 256.
#[derive(Debug)]
pub(crate) struct Generations {
    current: u64,
    /// Requests that wait, of the current generation and of the next.
    waiting: [usize; 2],
    /// Who joined since the first choice; `None` before it.
    joined: Option<usize>,
    /// Most that may join a generation after it has begun.
    joiners: usize,
}

impl Generations {
    pub const JOINERS: usize = 256;

    pub fn new(joiners: usize) -> Self {
        Self {
            current: 1,
            waiting: [0, 0],
            joined: None,
            joiners,
        }
    }

    /// The generation of a request that comes now.
    pub fn join(&mut self) -> u64 {
        let is_next = self.joined.is_some_and(|joined| joined >= self.joiners);
        if let Some(joined) = &mut self.joined {
            *joined += usize::from(!is_next);
        }
        self.waiting[usize::from(is_next)] += 1;
        self.current + u64::from(is_next)
    }

    /// A request of `generation` waits no longer. Returns whether another
    /// generation began by that.
    pub fn leave(&mut self, generation: u64) -> bool {
        self.waiting[usize::from(generation > self.current)] -= 1;
        if self.waiting[0] > 0 {
            return false;
        }
        self.current += 1;
        self.joined = None;
        self.waiting = [self.waiting[1], 0];
        true
    }

    /// Somebody of the current generation is being chosen.
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
    fn whoever_comes_too_late_is_in_the_next_generation() {
        let mut generations = Generations::new(1);
        assert_eq!([0; 1].map(|_| generations.join()), [1]);
        generations.begin();
        assert_eq!([0; 3].map(|_| generations.join()), [1, 2, 2]);
        assert!(!generations.leave(1));
        assert!(!generations.leave(2), "one of each is left");
        assert!(generations.leave(1), "the next begins");
        assert_eq!(
            [0; 3].map(|_| generations.join()),
            [2; 3],
            "it has not begun"
        );
        generations.begin();
        generations.begin();
        assert_eq!([0; 2].map(|_| generations.join()), [2, 3]);
    }

    #[test]
    fn a_queue_that_runs_empty_lets_joiners_in_again() {
        let mut generations = Generations::new(1);
        for _ in 0..5 {
            let generation = generations.join();
            generations.begin();
            assert_eq!(generation, generations.current());
            assert!(generations.leave(generation));
        }
    }
}
