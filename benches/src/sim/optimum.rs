//! The highest possible hit rate of a workload.

use hearth_radix::{EvictionPolicy, RadixTree};

use super::driver::Answered;

/// The hit rate of an unbounded cache that serves `calls` one after another. Every token of
/// their radix tree is computed once, and the last token of each prompt always.
pub fn hit_rate(calls: &[Answered]) -> f64 {
    let Ok(mut tree) = RadixTree::new(1, EvictionPolicy::Lru) else {
        return f64::NAN;
    };
    let (mut hits, mut tokens, mut next_slot) = (0, 0, 0);
    for Answered { prompt, output } in calls {
        tokens += prompt.len();
        hits += tree.peek("", &prompt[..prompt.len() - 1]).tokens;
        // The last token of an output is never computed, so it is not cached.
        let computed = &output[..output.len().saturating_sub(1)];
        let whole = [&prompt[..], computed].concat();
        let mut slots: Vec<u32> = (next_slot..).take(whole.len()).collect();
        next_slot += whole.len() as u32;
        drop(tree.insert("", &whole, 0, &mut slots));
    }
    hits as f64 / tokens as f64
}
