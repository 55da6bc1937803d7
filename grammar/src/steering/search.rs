//! Finds tokens that complete an output, by trying short texts that close what is open.

use llguidance::Matcher;

use crate::json_text::Position;
use crate::vocabulary::Vocabulary;

/// The most tokens of a way.
const MAX_WAY: usize = 600;
/// Texts to try between strings, in this order: ends, values, and what must come before them.
const BETWEEN: &[u8] = b"}]01234567\"[{tnf-89,: \n)>;.";
/// Texts to try within a string after its end. Digits and letters take turns, so that no repetition
/// within a pattern lasts for ever.
const WITHIN: &[u8] = b"0aA1-@.bB2/:cC3 _+dD4eE5fF6gG7hH8iI9jJ{}[]kKlLmMnNoOpPqQrRsStTuUvVwWxXyYzZ\
                        ,;()<>!?#$%&*'=|~^`";

/// A way from the position of `matcher` to its end, the token that ends it included if one is
/// needed. It need not be the shortest. `None` if none is found.
pub(crate) fn search(
    matcher: &Matcher,
    vocabulary: &Vocabulary,
    mut position: Position,
) -> Option<Vec<u32>> {
    // A clone shares the lexer, and with it the states that it has computed.
    let mut probe = matcher.clone();
    let mut way = Vec::new();
    let mut within = 0;
    while way.len() < MAX_WAY {
        if probe.is_stopped() {
            return probe.stop_reason().is_ok().then_some(way);
        }
        if probe.is_accepting().ok()? {
            way.push(*vocabulary.eos().first()?);
            return Some(way);
        }
        let forced = probe.consume_ff_tokens();
        if !forced.is_empty() {
            position.advance(&vocabulary.bytes_of(&forced));
            way.extend(forced);
            continue;
        }
        let token = match position.in_string() {
            true => {
                within += 1;
                let turn = within % WITHIN.len();
                let later = WITHIN[turn..].iter().chain(&WITHIN[..turn]);
                first_valid(&mut probe, vocabulary, std::iter::once(&b'"').chain(later))
            }
            false => first_valid(&mut probe, vocabulary, BETWEEN.iter()),
        };
        let token = token.or_else(|| any_allowed(&mut probe, vocabulary))?;
        probe.consume_token(token).ok()?;
        position.advance(&vocabulary.bytes_of(&[token]));
        way.push(token);
    }
    None
}

/// `way` with a token that ends the output behind it, if it completes the output from the position
/// of `matcher`: behind another text than that for which it was found, the end may be needed.
pub(crate) fn completing(
    matcher: &mut Matcher,
    mut way: Vec<u32>,
    vocabulary: &Vocabulary,
) -> Option<Vec<u32>> {
    let &end = vocabulary.eos().first()?;
    if way.last() != Some(&end) {
        way.push(end);
    }
    let valid = matcher.validate_tokens(&way).ok()?;
    (valid == way.len()).then_some(way)
}

fn first_valid<'a>(
    probe: &mut Matcher,
    vocabulary: &Vocabulary,
    mut bytes: impl Iterator<Item = &'a u8>,
) -> Option<u32> {
    bytes.find_map(|&byte| {
        let token = vocabulary.token_of(byte)?;
        (probe.validate_tokens(&[token]).ok()? == 1).then_some(token)
    })
}

/// The allowed token with the fewest bytes.
fn any_allowed(probe: &mut Matcher, vocabulary: &Vocabulary) -> Option<u32> {
    let mask = probe.compute_mask().ok()?;
    let text = mask.iter().filter(|&token| vocabulary.is_text(token));
    text.min_by_key(|&token| vocabulary.trie().token_len(token))
}
