//! The compressed finite-state machine of a regular language (SGLang, arXiv:2312.07104,
//! section 4): a dense automaton over bytes of which only states that can still accept
//! are kept, with chains of states that leave no choice compressed into one edge.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, MatchKind, util::start};
use regex_syntax::hir::Hir;
use toktrie::{Recognizer, TokTrie};

use crate::Mask;
use crate::error::GrammarError;
use crate::masks::MaskCache;
use crate::vocabulary::Vocabulary;

/// Bytes of the automaton, and of what making it deterministic may take: half a second
/// of work at the most. (The character example of SGLang's article takes 5.2 MB.)
const MAX_DFA_BYTES: usize = 12 << 20;
const MAX_DETERMINIZE_BYTES: usize = 24 << 20;
const MAX_NFA_BYTES: usize = 16 << 20;
/// Bytes that one jump may have.
const MAX_JUMP_BYTES: usize = 4096;

/// From here nothing can be accepted any more.
const DEAD: u32 = u32::MAX;

/// A way on that leaves no choice.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// `path_bytes[start..end]`, at least one.
    start: u32,
    end: u32,
    to: u32,
}

/// A machine; its states are numbered from 0, the start.
#[derive(Debug)]
pub(crate) struct Fsm {
    /// Tells machines apart in the cache of masks.
    id: u64,
    /// `[256]`: bytes of one class lead to the same state from everywhere.
    classes: Box<[u8; 256]>,
    class_count: usize,
    /// `[states, classes]`.
    next: Vec<u32>,
    /// `[states]`.
    accepting: Vec<bool>,
    /// `[states]`.
    edges: Vec<Option<Edge>>,
    path_bytes: Vec<u8>,
}

/// Why there is no machine.
#[derive(Debug)]
pub(crate) enum BuildError {
    /// Another engine, one that explores states as it meets them, may do it.
    TooLarge,
    Refused(GrammarError),
}

impl Fsm {
    /// The machine of all texts that `hir` matches as a whole.
    ///
    /// # Errors
    /// It would be too large, or it would match nothing.
    pub fn new(hir: &Hir) -> Result<Self, BuildError> {
        let nfa = NFA::compiler()
            .configure(NFA::config().utf8(true).nfa_size_limit(Some(MAX_NFA_BYTES)))
            .build_from_hir(hir)
            .map_err(|_| BuildError::TooLarge)?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            // Every match counts, not the one that a search would prefer.
            .match_kind(MatchKind::All)
            .accelerate(false)
            .dfa_size_limit(Some(MAX_DFA_BYTES))
            .determinize_size_limit(Some(MAX_DETERMINIZE_BYTES));
        let dfa = dense::Builder::new()
            .configure(config)
            .build_from_nfa(&nfa)
            // Too large, or a Unicode word boundary, which a dense automaton has not.
            .map_err(|_| BuildError::TooLarge)?;
        Self::of_live_states(&dfa)
    }

    fn of_live_states(dfa: &dense::DFA<Vec<u32>>) -> Result<Self, BuildError> {
        let unsatisfiable = || BuildError::Refused(GrammarError::unsatisfiable());
        let (classes, representatives) = byte_classes(dfa);
        let class_count = representatives.len();
        let begin = dfa
            .start_state(&start::Config::new().anchored(Anchored::Yes))
            .map_err(|_| BuildError::TooLarge)?;

        // Breadth first over what can be reached.
        let mut numbers: HashMap<StateID, u32> = HashMap::from([(begin, 0)]);
        let mut states = vec![begin];
        let (mut next, mut accepting) = (Vec::new(), Vec::new());
        let mut index = 0;
        while index < states.len() {
            let state = states[index];
            accepting.push(dfa.is_match_state(dfa.next_eoi_state(state)));
            for &byte in &representatives {
                let to = dfa.next_state(state, byte);
                if dfa.is_dead_state(to) || dfa.is_quit_state(to) {
                    next.push(DEAD);
                    continue;
                }
                let number = *numbers.entry(to).or_insert_with(|| {
                    states.push(to);
                    states.len() as u32 - 1
                });
                next.push(number);
            }
            index += 1;
        }

        let live = live_states(&next, class_count, &accepting);
        if !live[0] {
            return Err(unsatisfiable());
        }
        for to in &mut next {
            if *to != DEAD && !live[*to as usize] {
                *to = DEAD;
            }
        }
        let mut fsm = Self {
            id: fresh_id(),
            classes,
            class_count,
            next,
            edges: vec![None; accepting.len()],
            accepting,
            path_bytes: Vec::new(),
        };
        fsm.compress();
        Ok(fsm)
    }

    /// The one byte that may follow, and where it leads, where there is no choice.
    /// Ending is a choice, too.
    fn only_way(&self, state: u32, class_sizes: &[(usize, u8)]) -> Option<(u8, u32)> {
        if self.accepting[state as usize] {
            return None;
        }
        let row = &self.next[state as usize * self.class_count..][..self.class_count];
        let mut ways = row.iter().enumerate().filter(|(_, to)| **to != DEAD);
        let (class, &to) = ways.next()?;
        match (ways.next(), class_sizes[class]) {
            (None, (1, byte)) => Some((byte, to)),
            _ => None,
        }
    }

    /// Turns every chain of states without a choice into edges. States of a chain share
    /// its bytes, so that all of them take no more room than the chain.
    fn compress(&mut self) {
        let mut class_sizes = vec![(0, 0); self.class_count];
        for (byte, &class) in self.classes.iter().enumerate() {
            class_sizes[class as usize].0 += 1;
            class_sizes[class as usize].1 = byte as u8;
        }
        let states = self.accepting.len() as u32;
        let ways: Vec<_> = (0..states)
            .map(|state| self.only_way(state, &class_sizes))
            .collect();
        // Heads first: a chain that is begun in its middle would be cut there.
        let mut is_head = vec![true; ways.len()];
        for &(_, to) in ways.iter().flatten() {
            is_head[to as usize] = false;
        }
        let (heads, rest): (Vec<u32>, Vec<u32>) =
            (0..states).partition(|&state| is_head[state as usize]);
        for head in heads.into_iter().chain(rest) {
            let (mut chain, mut state) = (Vec::new(), head);
            let start = self.path_bytes.len() as u32;
            // A live chain ends: going round without accepting it would not be live.
            while let Some((byte, to)) = ways[state as usize]
                && self.edges[state as usize].is_none()
                && chain.len() < MAX_JUMP_BYTES
                && !chain.contains(&state)
            {
                chain.push(state);
                self.path_bytes.push(byte);
                state = to;
                if chain.len() % 64 == 0 {
                    // `contains` stays cheap: long chains are cut into edges of 64.
                    break;
                }
            }
            let end = self.path_bytes.len() as u32;
            for (offset, &member) in chain.iter().enumerate() {
                self.edges[member as usize] = Some(Edge {
                    start: start + offset as u32,
                    end,
                    to: state,
                });
            }
        }
    }

    pub fn step(&self, state: u32, byte: u8) -> Option<u32> {
        let class = self.classes[byte as usize] as usize;
        let to = self.next[state as usize * self.class_count + class];
        (to != DEAD).then_some(to)
    }

    pub fn walk(&self, state: u32, bytes: &[u8]) -> Option<u32> {
        bytes
            .iter()
            .try_fold(state, |state, &byte| self.step(state, byte))
    }

    pub fn is_accepting(&self, state: u32) -> bool {
        self.accepting[state as usize]
    }

    /// Whether nothing can follow.
    pub fn is_final(&self, state: u32) -> bool {
        let row = &self.next[state as usize * self.class_count..][..self.class_count];
        row.iter().all(|&to| to == DEAD)
    }

    /// All that must follow `state`, up to a choice, and the state there.
    pub fn forced(&self, mut state: u32) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        while let Some(edge) = self.edges[state as usize]
            && bytes.len() < MAX_JUMP_BYTES
        {
            bytes.extend_from_slice(&self.path_bytes[edge.start as usize..edge.end as usize]);
            state = edge.to;
        }
        (bytes, state)
    }

    /// The tokens that may follow `state`, ends included.
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

    /// How many of `tokens`, which lead to `state`, to hold back because a longer token
    /// could reach over their end.
    pub fn held_back(&self, state: u32, tokens: &[u32], trie: &TokTrie) -> usize {
        trie.chop_tokens(&mut Walker::new(self, state), tokens).0
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.next)
            + size_of_val(&*self.edges)
            + self.accepting.len()
            + self.path_bytes.len()
    }

    #[cfg(test)]
    pub fn states(&self) -> u32 {
        self.accepting.len() as u32
    }
}

fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The class of each byte, and one byte of each class.
fn byte_classes(dfa: &dense::DFA<Vec<u32>>) -> (Box<[u8; 256]>, Vec<u8>) {
    let theirs = dfa.byte_classes();
    let mut ours: HashMap<u8, u8> = HashMap::new();
    let (mut classes, mut representatives) = (Box::new([0; 256]), Vec::new());
    for byte in 0..=u8::MAX {
        let class = *ours.entry(theirs.get(byte)).or_insert_with(|| {
            representatives.push(byte);
            (representatives.len() - 1) as u8
        });
        classes[byte as usize] = class;
    }
    (classes, representatives)
}

/// The states from which an accepting one can be reached.
fn live_states(next: &[u32], class_count: usize, accepting: &[bool]) -> Vec<bool> {
    // Predecessors of each state, as ranges of one list.
    let mut starts = vec![0u32; accepting.len() + 1];
    for &to in next.iter().filter(|&&to| to != DEAD) {
        starts[to as usize + 1] += 1;
    }
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    let mut filled = starts.clone();
    let mut from = vec![0u32; starts.last().map_or(0, |&all| all as usize)];
    for (cell, &to) in next.iter().enumerate().filter(|(_, to)| **to != DEAD) {
        from[filled[to as usize] as usize] = (cell / class_count) as u32;
        filled[to as usize] += 1;
    }
    let mut live = accepting.to_vec();
    let mut queue: Vec<usize> = (0..live.len()).filter(|&state| live[state]).collect();
    while let Some(state) = queue.pop() {
        for &before in &from[starts[state] as usize..starts[state + 1] as usize] {
            if !std::mem::replace(&mut live[before as usize], true) {
                queue.push(before as usize);
            }
        }
    }
    live
}

/// A walk of the token trie along the machine.
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
        match self.fsm.step(self.top(), byte) {
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
        Fsm::new(&parse(pattern, MAX_PATTERN_BYTES).unwrap()).unwrap()
    }

    fn accepts(fsm: &Fsm, text: &[u8]) -> bool {
        fsm.walk(0, text)
            .is_some_and(|state| fsm.is_accepting(state))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn it_accepts_what_the_regex_crate_matches(
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
        fn every_prefix_of_a_match_is_alive_and_nothing_else_need_be(
            (index, text) in (0..PATTERNS.len()).prop_flat_map(|index| {
                let bare = PATTERNS[index].trim_matches(['^', '$']);
                (Just(index), proptest::string::string_regex(bare).unwrap())
            }),
        ) {
            let fsm = fsm(PATTERNS[index]);
            prop_assert!(accepts(&fsm, text.as_bytes()), "{text:?}");
            for end in 0..text.len() {
                prop_assert!(fsm.walk(0, &text.as_bytes()[..end]).is_some());
            }
        }
    }

    /// A shortest way to accept from every state there is.
    #[test]
    fn every_state_that_is_reached_can_accept() {
        for pattern in PATTERNS {
            let fsm = fsm(pattern);
            let mut reached = vec![0];
            let mut seen = vec![false; fsm.states() as usize];
            while let Some(state) = reached.pop() {
                if std::mem::replace(&mut seen[state as usize], true) {
                    continue;
                }
                assert!(
                    fsm.is_accepting(state) || !fsm.is_final(state),
                    "{pattern}: a dead end"
                );
                reached.extend((0..=u8::MAX).filter_map(|byte| fsm.step(state, byte)));
            }
        }
    }

    #[test]
    fn a_compressed_edge_is_the_walk_of_its_bytes() {
        let mut jumped = 0;
        for pattern in PATTERNS {
            let fsm = fsm(pattern);
            for state in 0..fsm.states() {
                let (bytes, end) = fsm.forced(state);
                assert_eq!(fsm.walk(state, &bytes), Some(end), "{pattern}");
                let mut at = state;
                for &byte in &bytes {
                    let ways = (0..=u8::MAX).filter(|&other| fsm.step(at, other).is_some());
                    assert_eq!(ways.collect::<Vec<_>>(), [byte], "{pattern}: a choice");
                    assert!(!fsm.is_accepting(at), "{pattern}: it could have ended");
                    at = fsm.step(at, byte).unwrap();
                }
                jumped += bytes.len();
                // It stops for a choice, an end, or the bound only.
                let ways = (0..=u8::MAX).filter(|&byte| fsm.step(end, byte).is_some());
                assert!(ways.count() != 1 || fsm.is_accepting(end), "{pattern}");
            }
        }
        assert!(jumped > 400, "{jumped}");
    }

    #[test]
    fn a_long_literal_takes_no_more_room_than_itself() {
        let fsm = fsm(&"abcdefgh".repeat(1000));
        assert_eq!(fsm.forced(0).0.len(), MAX_JUMP_BYTES);
        assert!(fsm.path_bytes.len() < 9000);
    }

    #[test]
    fn what_nothing_matches_is_refused_and_what_is_too_large_is_told_apart() {
        let none = Fsm::new(&parse("[^\\s\\S]", 100).unwrap());
        assert!(matches!(none, Err(BuildError::Refused(_))));
        let large = Fsm::new(&parse("(a|b)*a(a|b){30}", 100).unwrap());
        assert!(matches!(large, Err(BuildError::TooLarge)));
    }
}
