//! Random numbers of the simulated workloads.

use super::vocab::VOCAB;

/// Random numbers, the same everywhere (xorshift64*).
pub struct Random(u64);

impl Random {
    /// The seed must not be 0, from which only zeros would follow.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.next() as usize % (high - low + 1)
    }

    /// A number from the exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        let unit = self.next() as f64 / (1_u64 << 48) as f64;
        -(1.0 - unit).ln()
    }

    pub fn tokens(&mut self, low: usize, high: usize) -> Vec<u32> {
        let len = self.between(low, high);
        (0..len)
            .map(|_| (self.next() % VOCAB as u64) as u32)
            .collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.between(0, i));
        }
    }
}
