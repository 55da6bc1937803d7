//! Architectures that are not supported: why, or which name was meant.

use crate::config::ConfigError;

/// Families that other programs load, and which a plain block computes wrongly: the beginnings of their
/// names in lower case, longer ones before those that they begin with, and the part that is missing.
const REASONS: &[(&str, &str)] = &[
    ("chatglm", NEIGHBOURS),
    ("cohere", PARALLEL),
    ("command-r", PARALLEL),
    ("deepseek", LATENT),
    ("falcon-h1", RECURRENT),
    ("falconh1", RECURRENT),
    ("falcon", PARALLEL),
    ("gemma3n", "its layers have several residual streams"),
    (
        "gemma4",
        "its layers share keys and values, and have two shapes of them",
    ),
    ("gemma", "only Gemma 2 and 3 are supported"),
    ("glm", NEIGHBOURS),
    (
        "gpt2",
        "its positions are learned, and norms subtract the mean",
    ),
    ("gptneox", PARALLEL),
    ("granitehybrid", RECURRENT),
    ("jamba", RECURRENT),
    ("kimi", LATENT),
    ("lfm", "it has convolutions with a state"),
    ("llama4", "its attention is in chunks, with a temperature"),
    ("mamba", RECURRENT),
    ("minicpm3", LATENT),
    ("ministral3", "queries are scaled by their positions"),
    ("mistral4", LATENT),
    ("nemotronh", RECURRENT),
    ("nemotron_h", RECURRENT),
    (
        "nemotron",
        "norms subtract the mean, and the MLP has no gates",
    ),
    ("olmo", "only OLMo 2 is supported"),
    ("phi2", PARALLEL),
    ("phifor", PARALLEL),
    ("phimoe", "it chooses experts by a method of its own"),
    ("qwen35", RECURRENT),
    ("qwen3_5", RECURRENT),
    ("qwen3next", RECURRENT),
    ("qwen3_next", RECURRENT),
];
const LATENT: &str = "it has latent attention (MLA)";
const NEIGHBOURS: &str = "half of each head is rotated, in neighbouring pairs";
const PARALLEL: &str = "attention and MLP are parallel, and norms subtract the mean";
const RECURRENT: &str = "it has recurrent layers";
/// Most edits between a name and the one that was meant.
const NEAR: usize = 2;

/// The error with advice where the architecture is not supported.
pub(crate) fn advised(error: ConfigError) -> ConfigError {
    let ConfigError::UnsupportedArchitecture { given, supported } = error else {
        return error;
    };
    let names: Vec<&str> = supported.split(", ").collect();
    // Files of a bare config name a type only.
    let name = given.trim_start_matches("of model_type").trim();
    let advice = advice(name.trim_matches('"'), &names);
    ConfigError::UnsupportedArchitecture {
        given,
        supported: supported + &advice,
    }
}

/// The words to add to the error that `given` is none of `supported`: the reason, or the nearest name.
pub(crate) fn advice(given: &str, supported: &[&str]) -> String {
    let lower = given.to_lowercase();
    let known = REASONS.iter().find(|(name, _)| lower.starts_with(name));
    if let Some((_, reason)) = known {
        return format!(" ({reason})");
    }
    let near = supported
        .iter()
        .map(|name| (distance(&lower, &name.to_lowercase()), *name))
        .min();
    match near {
        Some((edits, name)) if edits <= NEAR => format!(" (the nearest name is {name})"),
        _ => String::new(),
    }
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(100).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().take(100).enumerate() {
        let mut left_above = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let replaced = left_above + usize::from(letter != *other);
            left_above = row[j + 1];
            row[j + 1] = replaced.min(left_above + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_reason_or_a_nearest_name() {
        let supported = ["LlamaForCausalLM", "Qwen3ForCausalLM"];
        for (given, expected) in [
            ("DeepseekV3ForCausalLM", "latent"),
            ("qwen3next", "recurrent"),
            ("Lama3ForCausalLM", "LlamaForCausalLM"),
            ("Qwen3ForCausalLm", "Qwen3ForCausalLM"),
        ] {
            let advice = advice(given, &supported);
            assert!(advice.contains(expected), "{given}: {advice}");
        }
        assert_eq!(advice("BertForMaskedLM", &supported), "");
        // The first entry with which a given name begins is taken, so longer entries come first.
        for (at, (name, _)) in REASONS.iter().enumerate() {
            let shorter = REASONS[..at]
                .iter()
                .find(|(other, _)| name.starts_with(other));
            assert_eq!(shorter, None, "{name} is never found");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
