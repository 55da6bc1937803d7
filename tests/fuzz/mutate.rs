//! Damages inputs at random, for the tests that feed programs with strangers' bytes. Each crate includes
//! this file; the numbers of cases are seeds, so that a failure can be repeated.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::{Duration, Instant};

/// SplitMix64.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }
}

/// The cases of one target: `usual` of them, or `HEARTH_FUZZ_CASES`, or as many as
/// `HEARTH_FUZZ_SECONDS` allow. `HEARTH_FUZZ_FIRST` is the number of the first one.
pub fn cases(usual: u64) -> impl Iterator<Item = u64> {
    let number = |name| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse::<u64>().expect("a number"))
    };
    let first = number("HEARTH_FUZZ_FIRST").unwrap_or(0);
    let seconds = number("HEARTH_FUZZ_SECONDS").map(Duration::from_secs);
    let until = seconds.map(|seconds| Instant::now() + seconds);
    let count = match until {
        Some(_) => u64::MAX - first,
        None => number("HEARTH_FUZZ_CASES").unwrap_or(usual),
    };
    (first..first + count).take_while(move |_| until.is_none_or(|until| Instant::now() < until))
}

/// Makes up to four changes, most of them near the front, where a file has its header.
pub fn bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    const WORDS: [u64; 8] = [
        0,
        1,
        u64::MAX,
        i64::MAX as u64,
        1 << 32,
        u32::MAX as u64,
        1 << 62,
        255,
    ];
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let reach = match random.below(4) {
            0 => 64,
            1 => 2048,
            2 => 16384,
            _ => bytes.len(),
        };
        let at = random.below(reach.min(bytes.len()));
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.word() as u8,
            2 | 3 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let width = [1, 4, 8][random.below(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&word[..width]);
            }
            4 => {
                let (from, width) = (random.below(reach.min(bytes.len())), random.below(64));
                let piece: Vec<u8> = bytes.iter().skip(from).take(width).copied().collect();
                let end = (at + piece.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&piece[..end - at]);
            }
            5 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                // Rarely, because a short file has little left that can be wrong.
                if random.below(4) == 0 {
                    bytes.truncate(at);
                }
            }
        }
    }
}

/// Makes up to four changes of characters; some insert one of `pieces`.
pub fn text(text: &str, pieces: &[&str], random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(3) {
        if letters.is_empty() {
            break;
        }
        let at = random.below(letters.len());
        match random.below(5) {
            0 => drop(letters.drain(at..(at + random.below(8)).min(letters.len()))),
            1 => {
                let end = (at + random.below(30)).min(letters.len());
                let piece = letters[at..end].to_vec();
                letters.splice(at..at, piece);
            }
            2 => letters.truncate(at + 1),
            _ => drop(letters.splice(at..at, pieces[random.below(pieces.len())].chars())),
        }
    }
    letters.into_iter().collect()
}
