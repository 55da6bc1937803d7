//! Prompts from a seed: the same on every machine, with a shared prefix of a given length.

use serde_json::{Value, json};

use crate::cli::{Cli, PromptForm};

/// Ids below this are special tokens in most vocabularies.
const FIRST_ID: u32 = 10;
/// Short words, one token each in most vocabularies.
const WORDS: [&str; 16] = [
    "the", "of", "and", "time", "house", "water", "light", "stone", "road", "bird", "green",
    "small", "long", "under", "over", "again",
];

/// SplitMix64. It is written out here so that no update of a crate changes the prompts.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// The prompt of request `index`: the shared prefix, then its own part.
pub fn prompt(cli: &Cli, index: u32) -> Value {
    // Stream 0 gives the shared prefix; every request has its own stream for the rest.
    let stream = |stream: u64| Random(Random(cli.seed.wrapping_add(stream << 32)).next());
    let (mut shared, mut own) = (stream(0), stream(u64::from(index) + 1));
    let draws = (0..cli.shared_prefix)
        .map(|_| shared.next())
        .chain((0..cli.prompt_tokens).map(|_| own.next()))
        .collect::<Vec<_>>();
    match cli.prompts {
        PromptForm::Tokens => {
            let span = u64::from(cli.vocab - FIRST_ID);
            json!(
                draws
                    .iter()
                    .map(|draw| u64::from(FIRST_ID) + draw % span)
                    .collect::<Vec<_>>()
            )
        }
        PromptForm::Words => {
            let word = |draw: &u64| WORDS[(draw % WORDS.len() as u64) as usize];
            json!(draws.iter().map(word).collect::<Vec<_>>().join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn ids(value: &Value) -> Vec<u64> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap())
            .collect()
    }

    #[test]
    fn prompts_share_the_prefix_and_differ_after_it() {
        let cli = Cli::parse_from(["x", "--shared-prefix", "32", "--prompt-tokens", "16"]);
        let (a, b) = (ids(&prompt(&cli, 0)), ids(&prompt(&cli, 1)));
        assert_eq!((a.len(), b.len()), (48, 48));
        assert_eq!(a[..32], b[..32]);
        assert_ne!(a[32], b[32]);
        assert!(a.iter().all(|id| (10..1000).contains(id)));
    }

    #[test]
    fn the_same_seed_gives_the_same_prompts_and_another_seed_others() {
        let cli = |seed| Cli::parse_from(["x", "--prompts", "words", "--seed", seed]);
        assert_eq!(prompt(&cli("1"), 3), prompt(&cli("1"), 3));
        assert_ne!(prompt(&cli("1"), 3), prompt(&cli("2"), 3));
        assert_eq!(
            prompt(&cli("1"), 3).as_str().unwrap().split(' ').count(),
            128
        );
    }
}
