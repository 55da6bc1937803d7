//! How many slots to reserve for tokens that have not been generated yet.

/// The share of their `max_tokens` that running requests are expected to use.
///
/// Reserving all of `max_tokens` would leave most of the pool empty, because most outputs end
/// early; reserving nothing would admit requests only to preempt them. The share starts high,
/// falls while no request is preempted, and returns to its start when a preemption shows that it
/// was too low (SGLang's new-token ratio).
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewTokenRatio(f64);

impl NewTokenRatio {
    const INITIAL: f64 = 0.7;
    const LOWEST: f64 = 0.1;
    const STEPS_TO_LOWEST: f64 = 600.0;
    /// A `max_tokens` above this means "no limit", not "this many".
    const MOST_EXPECTED: usize = 4096;

    pub fn new() -> Self {
        Self(Self::INITIAL)
    }

    /// Lowers the share after a step in which every running request got its slots.
    pub fn relax(&mut self) {
        let step = (Self::INITIAL - Self::LOWEST) / Self::STEPS_TO_LOWEST;
        self.0 = (self.0 - step).max(Self::LOWEST);
    }

    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// The slots to reserve for a request that may still generate `remaining` tokens.
    pub fn reserve(self, remaining: usize) -> usize {
        (remaining.min(Self::MOST_EXPECTED) as f64 * self.0).ceil() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_falls_to_a_minimum_and_a_preemption_restores_it() {
        let mut ratio = NewTokenRatio::new();
        assert_eq!(ratio.reserve(100), 70);
        assert_eq!(ratio.reserve(0), 0);
        (0..1000).for_each(|_| ratio.relax());
        assert_eq!(ratio.reserve(100), 10);
        assert_eq!(ratio.reserve(usize::MAX), 410);
        ratio.reset();
        assert_eq!(ratio.reserve(100), 70);
    }
}
