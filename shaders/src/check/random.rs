//! Random numbers from a known seed.

use burn::tensor::{DType, TensorData};

/// The generator SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True with a probability of 1 / `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Standard normal numbers (Box and Muller, 1958).
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let radius = (-2.0 * self.uniform().ln()).sqrt();
                (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
            })
            .collect()
    }

    /// Standard normal numbers, rounded to `dtype`.
    pub fn normal_as(&mut self, dtype: DType, count: usize) -> Vec<f32> {
        let data = TensorData::new(self.normal(count), [count]).convert_dtype(dtype);
        data.convert::<f32>().into_vec().expect("converted to f32")
    }

    /// `count` distinct numbers below `bound`, in random order.
    pub fn distinct(&mut self, count: usize, bound: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..bound as u32).collect();
        for i in 0..count {
            let other = i + self.below(bound - i);
            all.swap(i, other);
        }
        all.truncate(count);
        all
    }
}
