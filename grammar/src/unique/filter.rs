//! Takes tokens out of a mask that would repeat an item.

use llguidance::Matcher;

use super::tracker::Tracker;
use crate::mask::Mask;
use crate::vocabulary::Vocabulary;

/// How many tokens ahead it is checked whether an item can still become a new one.
const MAX_AHEAD: usize = 6;
/// The most tokens at one place that are followed.
const MAX_FOLLOWED: usize = 32;

/// `mask`, the tokens that may come next at the position of `matcher` and `tracker`, without those
/// that complete an item which is in its array already, and without those after which only such
/// items can follow.
pub(crate) fn filtered(
    mask: Mask,
    tracker: &Tracker,
    matcher: &Matcher,
    vocabulary: &Vocabulary,
) -> Mask {
    if !tracker.is_concerned() || !tracker.is_like_seen() {
        return mask;
    }
    let mut words = mask.to_vec();
    let plain = vocabulary.plain(false);
    // A token without a quote, a bracket or a comma completes nothing.
    let ending = words.iter().zip(plain).map(|(mask, plain)| mask & !plain);
    let mut staying = Vec::new();
    for token in tokens(&ending.collect::<Vec<u32>>()) {
        let mut after = tracker.clone();
        if !after.advance(vocabulary.trie().token(token)) {
            remove(&mut words, token);
        } else if after.is_like_seen() {
            staying.push(token);
        }
    }
    if !tracker.is_open() {
        staying.extend(
            tracker
                .repeating(vocabulary.trie())
                .filter(|&token| has(&words, token)),
        );
        staying.sort_unstable();
        staying.dedup();
        for token in staying.into_iter().take(MAX_FOLLOWED) {
            if !is_viable(token, tracker, matcher, vocabulary, MAX_AHEAD) {
                remove(&mut words, token);
            }
        }
    }
    words.into()
}

/// True if a new item may still follow `token`.
fn is_viable(
    token: u32,
    tracker: &Tracker,
    matcher: &Matcher,
    vocabulary: &Vocabulary,
    ahead: usize,
) -> bool {
    let (mut tracker, mut probe) = (tracker.clone(), matcher.clone());
    let bytes = |token: u32| vocabulary.trie().token(token);
    if !tracker.advance(bytes(token)) || probe.consume_token(token).is_err() {
        return false;
    }
    let forced = probe.consume_ff_tokens();
    if !forced.iter().all(|&token| tracker.advance(bytes(token))) {
        return false;
    }
    if ahead == 0 || probe.is_stopped() || !tracker.is_like_seen() {
        return true;
    }
    let Ok(mask) = probe.compute_mask() else {
        return false;
    };
    let mut staying = Vec::new();
    for token in mask.iter().filter(|&token| vocabulary.is_text(token)) {
        let mut after = tracker.clone();
        if !after.advance(bytes(token)) {
            continue;
        }
        if !after.is_like_seen() || staying.len() >= MAX_FOLLOWED {
            return true;
        }
        staying.push(token);
    }
    staying
        .into_iter()
        .any(|token| is_viable(token, &tracker, &probe, vocabulary, ahead - 1))
}

fn tokens(words: &[u32]) -> impl Iterator<Item = u32> {
    let bits = |word: u32| (0..32).filter(move |bit| word & (1 << bit) != 0);
    let words = words.iter().zip(0_u32..);
    words.flat_map(move |(&word, index)| bits(word).map(move |bit| 32 * index + bit))
}

fn has(words: &[u32], token: u32) -> bool {
    words[token as usize / 32] & (1 << (token % 32)) != 0
}

fn remove(words: &mut [u32], token: u32) {
    words[token as usize / 32] &= !(1 << (token % 32));
}
