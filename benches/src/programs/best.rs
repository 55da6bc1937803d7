//! The fewest prompt tokens that a prefix cache without bounds computes.

use std::collections::{HashMap, HashSet};

use hearth_client::lang::backend::Usage;

/// A generation that is done.
pub struct Done {
    pub prompt: String,
    pub output: String,
    pub usage: Usage,
}

/// The fewest prompt tokens that have to be computed for `calls` in any order, where each byte is a
/// token. A position is computed once for all prompts that reach it with the same text before it, and
/// not at all if an output wrote it, except that the last token of each prompt is always computed: its
/// logits are what the output begins with. The last token of an output is not computed by the output.
pub fn fewest_computed(calls: &[Done]) -> u64 {
    let mut tree = Tree::default();
    let mut in_prompts = HashSet::new();
    let mut in_outputs = HashSet::new();
    let mut ends: HashMap<usize, u64> = HashMap::new();
    for call in calls {
        let mut node = 0;
        for &byte in call.prompt.as_bytes() {
            node = tree.child(node, byte);
            in_prompts.insert(node);
        }
        *ends.entry(node).or_default() += 1;
        let output = call.output.as_bytes();
        for &byte in output.split_last().map_or(&[][..], |(_, before)| before) {
            node = tree.child(node, byte);
            in_outputs.insert(node);
        }
    }
    let once = in_prompts.difference(&in_outputs).count() as u64;
    let again = ends
        .iter()
        .map(|(end, calls)| calls - u64::from(!in_outputs.contains(end)));
    once + again.sum::<u64>()
}

/// A tree of bytes; node 0 is its root.
#[derive(Default)]
struct Tree {
    children: HashMap<(usize, u8), usize>,
}

impl Tree {
    fn child(&mut self, node: usize, byte: u8) -> usize {
        let next = self.children.len() + 1;
        *self.children.entry((node, byte)).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(prompt: &str, output: &str) -> Done {
        Done {
            prompt: prompt.to_owned(),
            output: output.to_owned(),
            usage: Usage::default(),
        }
    }

    #[test]
    fn what_prompts_share_is_computed_once() {
        // "abc", "d", "e" once each.
        assert_eq!(fewest_computed(&[done("abcd", "x"), done("abce", "x")]), 5);
        // The same prompt again computes its last token.
        assert_eq!(fewest_computed(&[done("abcd", "x"), done("abcd", "y")]), 5);
    }

    #[test]
    fn what_an_output_wrote_is_there_but_for_its_last_token() {
        // "ab"; then "y", which the output did not compute, and "z".
        assert_eq!(fewest_computed(&[done("ab", "xy"), done("abxyz", "")]), 4);
        // The prompt ends with a token that an output computed, which is computed again.
        assert_eq!(fewest_computed(&[done("ab", "xy"), done("abx", "")]), 3);
    }
}
