//! A counter-based random number generator.
//!
//! Draw `n` of sample `index` is a pure function of `(seed, index, n)`, so a sample can be made
//! again alone, in any order and on any thread. The mixing function is SplitMix64's finaliser
//! (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The random stream of one sample.
#[derive(Debug, Clone)]
pub struct Rng {
    key: u64,
    counter: u64,
}

impl Rng {
    pub fn new(seed: u64, index: u64) -> Self {
        Self {
            key: mix(mix(seed ^ GOLDEN).wrapping_add(index.wrapping_mul(GOLDEN))),
            counter: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.counter += 1;
        mix(self.key.wrapping_add(self.counter.wrapping_mul(GOLDEN)))
    }

    /// Uniform in `0..bound`; `bound` must not be 0. The bias (below 2^-50 for the small bounds
    /// used here) does not matter to a corpus.
    pub fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        (self.next() % bound as u64) as usize
    }

    /// Uniform in `low..=high`.
    pub fn range(&mut self, low: u32, high: u32) -> u32 {
        low + self.below((high - low + 1) as usize) as u32
    }

    /// True in `percent` of 100 draws.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    pub fn item<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// An index into `weights`, drawn in proportion to them.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u32 = weights.iter().sum();
        let mut draw = self.below(total as usize) as u32;
        for (i, weight) in weights.iter().enumerate() {
            if draw < *weight {
                return i;
            }
            draw -= weight;
        }
        weights.len() - 1
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// FNV-1a of `text`, which decides for all seeds whether a text is held out.
pub fn stable_hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_and_index_give_the_same_draws_and_others_do_not() {
        let draws = |seed, index| {
            let mut rng = Rng::new(seed, index);
            (0..32).map(|_| rng.below(1 << 20)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7, 3), draws(7, 3));
        assert_ne!(draws(7, 3), draws(7, 4));
        assert_ne!(draws(7, 3), draws(8, 3));
    }

    #[test]
    fn weighted_draws_follow_their_weights() {
        let mut rng = Rng::new(1, 1);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            counts[rng.weighted(&[1, 0, 3])] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((2_200..2_800).contains(&counts[0]), "{counts:?}");
    }
}
