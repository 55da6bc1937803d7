//! Measures how fast this machine reads memory, which bounds the speed of decoding one
//! sequence.

use std::hint::black_box;
use std::time::Instant;

/// Larger than the caches of desktop CPUs, and small enough for a small machine.
const BUFFER_BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

/// The memory bandwidth in bytes per second: the best of a few rounds in which all threads read
/// a buffer together.
pub fn read_bytes_per_second() -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // Writing the buffer makes its pages exist.
    let buffer: Vec<u64> = (0..(BUFFER_BYTES / 8) as u64).collect();
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(buffer.len().div_ceil(threads)) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        best = best.max(BUFFER_BYTES as f64 / started.elapsed().as_secs_f64());
    }
    best
}

/// Adds up `words` in independent sums, so that the compiler can vectorise and no addition waits
/// for the one before it.
fn sum(words: &[u64]) -> u64 {
    const LANES: usize = 32;
    let mut lanes = [0u64; LANES];
    for chunk in words.chunks_exact(LANES) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_whole_chunk_is_read() {
        assert_eq!(sum(&[1; 64]), 64);
        assert_eq!(sum(&(0..32).collect::<Vec<_>>()), 496);
    }
}
