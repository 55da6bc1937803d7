//! Vocabularies for measurements: the bytes, or a file of tiktoken's.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hearth_grammar::VocabularySource;

/// The longest token that is tried when a text is encoded.
const MAX_TOKEN_BYTES: usize = 128;

/// Tokens by id. The last one ends an output.
pub struct Words {
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, u32>,
}

impl Words {
    /// A token for each byte.
    pub fn bytes() -> Self {
        Self::new((0..=255).map(|byte| vec![byte]).collect())
    }

    /// The first `count` tokens of a file with the base64 of a token's bytes and its rank per line.
    ///
    /// # Errors
    /// If the file cannot be read, or has a different format.
    pub fn read(path: &Path, count: usize) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut tokens = Vec::new();
        for line in text.lines() {
            let (bytes, rank) = line
                .split_once(' ')
                .ok_or_else(|| anyhow!("a line must have a token and its rank, got {line:?}"))?;
            let rank: usize = rank.parse().with_context(|| format!("the rank {rank:?}"))?;
            if rank < count {
                tokens.resize(tokens.len().max(rank + 1), Vec::new());
                tokens[rank] = STANDARD.decode(bytes)?;
            }
        }
        Ok(Self::new(tokens))
    }

    fn new(mut tokens: Vec<Vec<u8>>) -> Self {
        let ids = tokens.iter().cloned().zip(0..).collect();
        tokens.push(b"<|end|>".to_vec());
        Self { tokens, ids }
    }

    /// The token that ends an output.
    pub fn end(&self) -> u32 {
        self.tokens.len() as u32 - 1
    }
}

impl VocabularySource for Words {
    fn size(&self) -> usize {
        self.tokens.len()
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokens[token as usize].clone()
    }

    fn is_special(&self, token: u32) -> bool {
        token == self.end()
    }

    /// The longest token at each place, which needs no merge rules.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let mut ends = (1..=rest.len().min(MAX_TOKEN_BYTES)).rev();
            let (end, id) = ends.find_map(|end| Some((end, *self.ids.get(&rest[..end])?)))?;
            ids.push(id);
            rest = &rest[end..];
        }
        Some(ids)
    }
}
