//! The transition table of a machine: a deterministic automaton over bytes, of which only transitions
//! to states that can still accept are kept.

use std::collections::{HashMap, VecDeque};

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Config, DFA};
use regex_automata::nfa::thompson::NFA;
use regex_automata::{Anchored, MatchKind, util::start};
use regex_syntax::hir::Hir;

use crate::error::GrammarError;
use crate::ticket::Ticket;

/// The most bytes of the deterministic automaton's transitions, and of all the memory to make it. Most
/// work stays below half a second. (The character example of SGLang's article takes 5.2 MB.)
const MAX_DFA_BYTES: usize = 12 << 20;
const MAX_MEMORY_BYTES: usize = 36 << 20;
/// The most bytes of the automaton before it is made deterministic.
const MAX_NFA_BYTES: usize = 16 << 20;

/// No state: nothing can be accepted any more.
const DEAD: u32 = u32::MAX;

/// Why a regex has no machine.
#[derive(Debug)]
pub(crate) enum BuildError {
    /// The machine would be too large. An engine that creates states only when it reaches them
    /// may be able to run the regex.
    TooLarge,
    Refused(GrammarError),
}

/// The states of a machine, numbered from 0, which is the start.
#[derive(Debug)]
pub(super) struct Table {
    /// `[256]`: the class of each byte. Bytes of one class lead to the same state from every
    /// state.
    classes: Box<[u8; 256]>,
    class_count: usize,
    /// `[states, classes]`.
    next: Vec<u32>,
    /// `[states]`.
    accepting: Vec<bool>,
}

impl Table {
    /// The table for all texts that `hir` matches as a whole. The states are made one after another, so
    /// that the work ends soon after `ticket` is cancelled: a regex with many classes of bytes, whose
    /// states stand for many places each, may take ten seconds within the bounds of memory.
    ///
    /// # Errors
    /// If the table would be too large, or would match nothing, or if nobody waits for it any longer.
    pub fn new(hir: &Hir, ticket: &Ticket) -> Result<Self, BuildError> {
        let nfa = NFA::compiler()
            .configure(NFA::config().utf8(true).nfa_size_limit(Some(MAX_NFA_BYTES)))
            .build_from_hir(hir)
            .map_err(|_| BuildError::TooLarge)?;
        let config = Config::new()
            // All matches are needed, not only the one that a search would prefer.
            .match_kind(MatchKind::All)
            .skip_cache_capacity_check(true)
            .cache_capacity(MAX_MEMORY_BYTES)
            // A state that does not fit is an error, and no other one is forgotten.
            .minimum_cache_clear_count(Some(0));
        let dfa = DFA::builder()
            .configure(config)
            .build_from_nfa(nfa)
            // It has a Unicode word boundary, which such automata lack.
            .map_err(|_| BuildError::TooLarge)?;
        Self::of_live_states(&dfa, ticket)
    }

    fn of_live_states(dfa: &DFA, ticket: &Ticket) -> Result<Self, BuildError> {
        let (classes, representatives) = byte_classes(dfa);
        let class_count = representatives.len();
        let stride = dfa.byte_classes().alphabet_len().next_power_of_two();
        let most_states = MAX_DFA_BYTES / (stride * size_of::<LazyStateID>());
        let mut cache = dfa.create_cache();
        let begin = dfa
            .start_state(&mut cache, &start::Config::new().anchored(Anchored::Yes))
            .map_err(|_| BuildError::TooLarge)?;

        // Breadth-first search of the states that can be reached.
        let mut numbers: HashMap<LazyStateID, u32> = HashMap::from([(begin, 0)]);
        let mut states = vec![begin];
        let (mut next, mut accepting) = (Vec::new(), Vec::new());
        let mut index = 0;
        while index < states.len() {
            if ticket.is_cancelled() {
                return Err(BuildError::Refused(GrammarError::cancelled()));
            }
            if states.len() > most_states {
                return Err(BuildError::TooLarge);
            }
            let state = states[index];
            let end = dfa.next_eoi_state(&mut cache, state);
            accepting.push(end.map_err(|_| BuildError::TooLarge)?.is_match());
            for &byte in &representatives {
                let to = dfa.next_state(&mut cache, state, byte);
                let to = to.map_err(|_| BuildError::TooLarge)?;
                if to.is_dead() || to.is_quit() {
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

        let distances = distances(&next, class_count, &accepting);
        if distances[0] == DEAD {
            return Err(BuildError::Refused(GrammarError::unsatisfiable()));
        }
        for to in &mut next {
            if *to != DEAD && distances[*to as usize] == DEAD {
                *to = DEAD;
            }
        }
        Ok(Self {
            classes,
            class_count,
            next,
            accepting,
        })
    }

    /// The number of states.
    pub fn states(&self) -> u32 {
        self.accepting.len() as u32
    }

    pub fn step(&self, state: u32, byte: u8) -> Option<u32> {
        let class = self.classes[byte as usize] as usize;
        let to = self.row(state)[class];
        (to != DEAD).then_some(to)
    }

    pub fn is_accepting(&self, state: u32) -> bool {
        self.accepting[state as usize]
    }

    /// True if nothing can follow.
    pub fn is_final(&self, state: u32) -> bool {
        self.row(state).iter().all(|&to| to == DEAD)
    }

    /// For each state without a choice, the only byte that may follow and the state to which it
    /// leads. Where an output may end, there is a choice.
    pub fn only_ways(&self) -> Vec<Option<(u8, u32)>> {
        // The number of bytes in each class, and one of them.
        let mut classes = vec![(0, 0); self.class_count];
        for (byte, &class) in self.classes.iter().enumerate() {
            classes[class as usize].0 += 1;
            classes[class as usize].1 = byte as u8;
        }
        let only_way = |state| {
            if self.is_accepting(state) {
                return None;
            }
            let ways = self.row(state).iter().enumerate();
            let mut ways = ways.filter(|(_, to)| **to != DEAD);
            let (class, &to) = ways.next()?;
            match (ways.next(), classes[class]) {
                (None, (1, byte)) => Some((byte, to)),
                _ => None,
            }
        };
        (0..self.states()).map(only_way).collect()
    }

    /// The fewest bytes from each state to one that accepts. States that are not reached may have
    /// none.
    pub fn distances(&self) -> Vec<u32> {
        distances(&self.next, self.class_count, &self.accepting)
    }

    /// The memory that the table takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.next) + self.accepting.len()
    }

    /// `[classes]`: the next states of `state`.
    fn row(&self, state: u32) -> &[u32] {
        &self.next[state as usize * self.class_count..][..self.class_count]
    }
}

/// The class of each byte, and one byte of each class.
fn byte_classes(dfa: &DFA) -> (Box<[u8; 256]>, Vec<u8>) {
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

/// The fewest bytes from each state to one that accepts; [`DEAD`] where none can be reached.
fn distances(next: &[u32], class_count: usize, accepting: &[bool]) -> Vec<u32> {
    // The predecessors of each state, as ranges of one list.
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
    let distance = |&accepts: &bool| if accepts { 0 } else { DEAD };
    let mut distances: Vec<u32> = accepting.iter().map(distance).collect();
    let mut queue: VecDeque<usize> = (0..accepting.len()).filter(|&s| accepting[s]).collect();
    while let Some(state) = queue.pop_front() {
        for &before in &from[starts[state] as usize..starts[state + 1] as usize] {
            if distances[before as usize] == DEAD {
                distances[before as usize] = distances[state] + 1;
                queue.push_back(before as usize);
            }
        }
    }
    distances
}
