//! A vocabulary of OpenAI's tiktoken: base64 bytes and rank.

use std::collections::HashMap;
use std::time::Duration;

use hearth_grammar::VocabularySource;

pub struct Tiktoken {
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, u32>,
}

impl Tiktoken {
    pub fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut tokens: Vec<Vec<u8>> = Vec::new();
        for line in text.lines() {
            let (bytes, rank) = line.split_once(' ').unwrap();
            let rank: usize = rank.parse().unwrap();
            tokens.resize(tokens.len().max(rank + 1), Vec::new());
            tokens[rank] = base64(bytes);
        }
        let ids = tokens.iter().cloned().zip(0..).collect();
        // The end of an output.
        tokens.push(b"<|endoftext|>".to_vec());
        Self { tokens, ids }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for letter in text.bytes().filter(|&byte| byte != b'=') {
        let value = alphabet.iter().position(|&a| a == letter).unwrap();
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

impl VocabularySource for Tiktoken {
    fn size(&self) -> usize {
        self.tokens.len()
    }
    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokens[token as usize].clone()
    }
    fn is_special(&self, token: u32) -> bool {
        token as usize == self.tokens.len() - 1
    }
    /// The longest token at each place: what is forced is then a little other than
    /// tiktoken's, and as long.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let longest = (1..=rest.len().min(128)).rev();
            let (end, id) = longest
                .filter_map(|end| Some((end, *self.ids.get(&rest[..end])?)))
                .next()?;
            ids.push(id);
            rest = &rest[end..];
        }
        Some(ids)
    }
}

pub fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{what:<24} {:>6} times  p50 {:>8.1}  p90 {:>8.1}  p99 {:>8.1}  max {:>9.1} us",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
    );
}
