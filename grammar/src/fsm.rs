//! The compressed finite-state machine of a regular language (SGLang, arXiv:2312.07104,
//! section 4): a dense automaton over bytes, with chains of states that leave no choice
//! compressed into one edge.

mod edges;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use regex_syntax::hir::Hir;
use toktrie::{Recognizer, TokTrie};

use self::edges::Edges;
pub(crate) use self::table::BuildError;
use self::table::Table;
use crate::mask::Mask;
use crate::mask_cache::MaskCache;
use crate::ticket::Ticket;
use crate::vocabulary::Vocabulary;

/// A machine.
#[derive(Debug)]
pub(crate) struct Fsm {
    /// Identifies the machine in the cache of masks.
    id: u64,
    table: Table,
    edges: Edges,
    /// `[states]`: the fewest bytes from each state to one that accepts. They are computed when an
    /// output is steered for the first time.
    distances: OnceLock<Vec<u32>>,
}

impl Fsm {
    /// The first state.
    pub const START: u32 = 0;

    /// The machine of all texts that `hir` matches as a whole.
    ///
    /// # Errors
    /// If the machine would be too large, or would match nothing, or if `ticket` is cancelled.
    pub fn new(hir: &Hir, ticket: &Ticket) -> Result<Self, BuildError> {
        let table = Table::new(hir, ticket)?;
        let edges = Edges::new(&table);
        Ok(Self {
            id: fresh_id(),
            table,
            edges,
            distances: OnceLock::new(),
        })
    }

    /// The state after `bytes`; `None` if they cannot follow `state`.
    pub fn walk(&self, state: u32, bytes: &[u8]) -> Option<u32> {
        let mut bytes = bytes.iter();
        bytes.try_fold(state, |state, &byte| self.table.step(state, byte))
    }

    pub fn is_accepting(&self, state: u32) -> bool {
        self.table.is_accepting(state)
    }

    /// True if nothing can follow.
    pub fn is_final(&self, state: u32) -> bool {
        self.table.is_final(state)
    }

    /// The bytes that must follow `state`, up to a choice or a bound, and the state after them.
    pub fn forced(&self, state: u32) -> (Vec<u8>, u32) {
        self.edges.forced(state)
    }

    /// The tokens that may follow `state`, including those that end an output.
    pub fn mask(&self, state: u32, vocabulary: &Vocabulary, cache: &MaskCache) -> Mask {
        cache.get((self.id, state), || self.make_mask(state, vocabulary))
    }

    fn make_mask(&self, state: u32, vocabulary: &Vocabulary) -> Mask {
        let trie = vocabulary.trie();
        let mut allowed = trie.alloc_token_set();
        trie.add_bias(&mut Walker::new(self, state), &mut allowed, &[]);
        if self.is_accepting(state) {
            for &end in vocabulary.eos() {
                allowed.allow_token(end);
            }
        }
        Arc::from(&allowed.as_slice()[..vocabulary.mask_words()])
    }

    /// `mask`, the tokens that may follow `state`, without those after which the output needs more
    /// than the `left` tokens. If all do, those remain that need the fewest.
    pub fn steered(&self, state: u32, mask: &Mask, left: usize, vocabulary: &Vocabulary) -> Mask {
        let distances = self.distances.get_or_init(|| self.table.distances());
        let reached = distances.iter().filter(|&&distance| distance != u32::MAX);
        let longest = reached.max().copied().unwrap_or(0) as usize;
        // The token itself, and one that ends the output.
        if left >= longest + 2 {
            return Mask::clone(mask);
        }
        let needed = |token: u32| {
            if vocabulary.eos().contains(&token) {
                return 1;
            }
            let end = self.walk(state, vocabulary.trie().token(token));
            end.map_or(usize::MAX, |end| 1 + self.needed(distances, end))
        };
        let set_bits = |word: u32| (0..32).filter(move |bit| word & (1 << bit) != 0);
        let tokens = || {
            let words = mask.iter().zip(0_u32..);
            words.flat_map(move |(&word, index)| set_bits(word).map(move |bit| 32 * index + bit))
        };
        let fewest = tokens().map(needed).min().unwrap_or(usize::MAX);
        let bound = left.max(fewest);
        let mut words = vec![0; mask.len()];
        for token in tokens().filter(|&token| needed(token) <= bound) {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        words.into()
    }

    /// The tokens that are enough to complete an output from `state`, the one that ends it included.
    pub fn shortest(&self, state: u32) -> usize {
        let distances = self.distances.get_or_init(|| self.table.distances());
        self.needed(distances, state)
    }

    fn needed(&self, distances: &[u32], state: u32) -> usize {
        // Every byte is a token, and an output that could go on needs a token that ends it.
        distances[state as usize] as usize + usize::from(!self.is_final(state))
    }

    /// How many of `tokens`, which lead to `state`, to hold back because a longer token could
    /// replace the last ones.
    pub fn held_back(&self, state: u32, tokens: &[u32], trie: &TokTrie) -> usize {
        trie.chop_tokens(&mut Walker::new(self, state), tokens).0
    }

    /// The memory that the machine takes.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.edges.bytes()
    }
}

fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Walks the trie of tokens and the machine together.
struct Walker<'a> {
    fsm: &'a Fsm,
    stack: Vec<u32>,
}

impl<'a> Walker<'a> {
    fn new(fsm: &'a Fsm, state: u32) -> Self {
        Self {
            fsm,
            stack: vec![state],
        }
    }

    fn top(&self) -> u32 {
        *self.stack.last().expect("the start is never popped")
    }
}

impl Recognizer for Walker<'_> {
    fn pop_bytes(&mut self, count: usize) {
        self.stack.truncate(self.stack.len() - count);
    }

    fn collapse(&mut self) {
        let top = self.top();
        self.stack.clear();
        self.stack.push(top);
    }

    fn trie_finished(&mut self) {
        self.stack.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        match self.fsm.table.step(self.top(), byte) {
            Some(state) => {
                self.stack.push(state);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regex::{MAX_PATTERN_BYTES, parse};
    use proptest::prelude::*;

    const PATTERNS: [&str; 18] = [
        "a|ab|abc",
        "(a|b)*a(a|b){3}",
        "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
        "\\{\"name\": \"[a-z]{1,5}\", \"age\": [1-9][0-9]?\\}",
        "(foo|foobar|fob)(baz)?",
        "héllo|hérisson",
        "霍格|霍比",
        "[^x]{0,3}x",
        "a{20}",
        "(ab){3,}c",
        "^start$",
        "(?i)yes|no",
        "\\d{4}-\\d{2}-\\d{2}",
        "x*",
        "",
        "(?s).{2}",
        "[\\u{1F600}-\\u{1F64F}]",
        "a.*b",
    ];

    fn fsm(pattern: &str) -> Fsm {
        Fsm::new(
            &parse(pattern, MAX_PATTERN_BYTES).unwrap(),
            &Ticket::default(),
        )
        .unwrap()
    }

    fn accepts(fsm: &Fsm, text: &[u8]) -> bool {
        fsm.walk(Fsm::START, text)
            .is_some_and(|state| fsm.is_accepting(state))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn it_accepts_the_texts_that_the_regex_crate_matches(
            index in 0..PATTERNS.len(),
            text in prop_oneof![
                "[abcx]{0,8}", "[0-9.\\-]{0,16}", "\\PC{0,4}",
                "(foo|foobar|fob)(baz)?", "a{18,22}", "(ab){2,5}c?", "start|yes|NO|héllo|霍格",
                "\\{\"name\": \"[a-z]{1,6}\", \"age\": [0-9]{1,3}\\}",
            ],
        ) {
            let pattern = PATTERNS[index];
            let theirs = ::regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
            prop_assert_eq!(accepts(&fsm(pattern), text.as_bytes()), theirs.is_match(&text));
        }

        #[test]
        fn every_prefix_of_a_match_leads_to_a_state(
            (index, text) in (0..PATTERNS.len()).prop_flat_map(|index| {
                let bare = PATTERNS[index].trim_matches(['^', '$']);
                (Just(index), proptest::string::string_regex(bare).unwrap())
            }),
        ) {
            let fsm = fsm(PATTERNS[index]);
            prop_assert!(accepts(&fsm, text.as_bytes()), "{text:?}");
            for end in 0..text.len() {
                prop_assert!(fsm.walk(Fsm::START, &text.as_bytes()[..end]).is_some());
            }
        }
    }

    #[test]
    fn every_state_that_can_be_reached_accepts_or_goes_on() {
        for pattern in PATTERNS {
            let fsm = fsm(pattern);
            let mut reached = vec![0];
            let mut seen = vec![false; fsm.table.states() as usize];
            while let Some(state) = reached.pop() {
                if std::mem::replace(&mut seen[state as usize], true) {
                    continue;
                }
                assert!(
                    fsm.is_accepting(state) || !fsm.is_final(state),
                    "{pattern}: a dead end"
                );
                reached.extend((0..=u8::MAX).filter_map(|byte| fsm.table.step(state, byte)));
            }
        }
    }

    #[test]
    fn a_compressed_edge_leads_where_its_bytes_lead() {
        let mut jumped = 0;
        for pattern in PATTERNS {
            let fsm = fsm(pattern);
            for state in 0..fsm.table.states() {
                let (bytes, end) = fsm.forced(state);
                assert_eq!(fsm.walk(state, &bytes), Some(end), "{pattern}");
                let mut at = state;
                for &byte in &bytes {
                    let ways = (0..=u8::MAX).filter(|&other| fsm.table.step(at, other).is_some());
                    assert_eq!(ways.collect::<Vec<_>>(), [byte], "{pattern}: a choice");
                    assert!(!fsm.is_accepting(at), "{pattern}: it could have ended");
                    at = fsm.table.step(at, byte).unwrap();
                }
                jumped += bytes.len();
                // It stops only at a choice, a possible end, or the bound.
                let ways = (0..=u8::MAX).filter(|&byte| fsm.table.step(end, byte).is_some());
                assert!(ways.count() != 1 || fsm.is_accepting(end), "{pattern}");
            }
        }
        assert!(jumped > 400, "{jumped}");
    }

    #[test]
    fn a_regex_without_matches_is_refused_and_a_large_one_is_reported_as_too_large() {
        let none = Fsm::new(&parse("[^\\s\\S]", 100).unwrap(), &Ticket::default());
        assert!(matches!(none, Err(BuildError::Refused(_))));
        let large = Fsm::new(&parse("(a|b)*a(a|b){30}", 100).unwrap(), &Ticket::default());
        assert!(matches!(large, Err(BuildError::TooLarge)));
    }

    #[test]
    fn a_machine_that_nobody_waits_for_is_not_completed() {
        let hir = parse("(a|b)*a(a|b){9}", 100).unwrap();
        let ticket = Ticket::default();
        assert!(Fsm::new(&hir, &ticket).is_ok());
        ticket.cancel();
        let refused = Fsm::new(&hir, &ticket);
        assert!(
            matches!(refused, Err(BuildError::Refused(_))),
            "{refused:?}"
        );
    }
}
