//! The deterministic automaton of an expression.

use std::collections::HashMap;

use super::expr::{Id, Store, TooLarge};
use super::part::Ranges;

/// The most states of an automaton.
pub(super) const MAX_STATES: usize = 1_500;
/// The most transitions that are computed.
const MAX_TRANSITIONS: usize = 60_000;
/// The longest text that is listed, and the most beginnings of texts at a time.
const MAX_TEXT: usize = 256;
const MAX_WAITING: usize = 256;
const LAST_CODE: u32 = 0x10_FFFF;
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

/// States are numbered from 0, where texts begin.
#[derive(Debug)]
pub(super) struct Automaton {
    /// The characters that are alike in every state.
    pub groups: Vec<Ranges>,
    /// The state after each group of characters.
    pub next: Vec<Vec<usize>>,
    pub accepts: Vec<bool>,
}

/// Divides all characters into groups that no class of `classes` tells apart.
fn groups(classes: &[Ranges]) -> Vec<Ranges> {
    let mut cuts = vec![0, SURROGATES.0, SURROGATES.1 + 1, LAST_CODE + 1];
    for &(from, to) in classes.iter().flatten() {
        cuts.extend([from, to + 1]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut by_membership: HashMap<Vec<bool>, Ranges> = HashMap::new();
    for pair in cuts.windows(2) {
        let (from, to) = (pair[0], pair[1] - 1);
        if (SURROGATES.0..=SURROGATES.1).contains(&from) || from > LAST_CODE {
            continue;
        }
        let within = |ranges: &Ranges| {
            let after = ranges.partition_point(|range| range.1 < from);
            ranges.get(after).is_some_and(|range| range.0 <= from)
        };
        let membership = classes.iter().map(within).collect();
        let ranges = by_membership.entry(membership).or_default();
        match ranges.last_mut() {
            Some(last) if last.1 + 1 == from => last.1 = to,
            _ => ranges.push((from, to)),
        }
    }
    let mut groups: Vec<Ranges> = by_membership.into_values().collect();
    groups.sort_unstable();
    groups
}

/// True if no text is in `root`.
///
/// # Errors
/// If the automaton is too large.
pub(super) fn is_empty(store: &mut Store, root: Id) -> Result<bool, TooLarge> {
    explore(store, root, true).map(|found| found.is_none())
}

impl Automaton {
    /// # Errors
    /// If the automaton is too large.
    pub fn new(store: &mut Store, root: Id) -> Result<Self, TooLarge> {
        let automaton = explore(store, root, false)?;
        automaton.ok_or(TooLarge)?.minimal(store)
    }

    /// All texts that are accepted; `None` if there are more than `most`.
    pub fn texts(&self, most: usize) -> Option<Vec<String>> {
        let live = self.live();
        let (mut texts, mut waiting) = (Vec::new(), vec![(0, String::new())]);
        while let Some((state, text)) = waiting.pop() {
            if self.accepts[state] {
                texts.push(text.clone());
            }
            // A repetition that can accept makes the texts longer and longer, until they are many.
            if texts.len() > most || text.len() > MAX_TEXT || waiting.len() > MAX_WAITING {
                return None;
            }
            for (group, &to) in self.next[state]
                .iter()
                .enumerate()
                .filter(|(_, to)| live[**to])
            {
                let letters: u64 = self.groups[group]
                    .iter()
                    .map(|r| u64::from(r.1 - r.0) + 1)
                    .sum();
                if letters > most as u64 {
                    return None;
                }
                for code in self.groups[group]
                    .iter()
                    .flat_map(|&(from, last)| from..=last)
                {
                    let letter = char::from_u32(code)?;
                    waiting.push((to, format!("{text}{letter}")));
                }
            }
        }
        Some(texts)
    }

    /// The states from which a text can be accepted.
    pub fn live(&self) -> Vec<bool> {
        let mut live = self.accepts.clone();
        loop {
            let mut changed = false;
            for state in 0..live.len() {
                if !live[state] && self.next[state].iter().any(|&next| live[next]) {
                    live[state] = true;
                    changed = true;
                }
            }
            if !changed {
                return live;
            }
        }
    }

    /// The same with as few states as possible (Moore's partition refinement).
    fn minimal(self, store: &mut Store) -> Result<Self, TooLarge> {
        let mut blocks: Vec<usize> = self.accepts.iter().map(|&a| usize::from(a)).collect();
        let mut count = 0;
        loop {
            store.spend(blocks.len());
            if store.is_full() {
                return Err(TooLarge);
            }
            let mut numbers: HashMap<(usize, Vec<usize>), usize> = HashMap::new();
            let refined: Vec<usize> = (0..blocks.len())
                .map(|state| {
                    let after = self.next[state].iter().map(|&next| blocks[next]).collect();
                    let fresh = numbers.len();
                    *numbers.entry((blocks[state], after)).or_insert(fresh)
                })
                .collect();
            blocks = refined;
            if numbers.len() == count {
                break;
            }
            count = numbers.len();
        }
        // The state 0 is visited first, so its block is 0 as well.
        let mut next = vec![Vec::new(); count];
        let mut accepts = vec![false; count];
        for (state, &block) in blocks.iter().enumerate() {
            next[block] = self.next[state].iter().map(|&to| blocks[to]).collect();
            accepts[block] = self.accepts[state];
        }
        Ok(Self {
            groups: self.groups,
            next,
            accepts,
        })
    }
}

/// The automaton of `root`; if only `any_text` is wanted, `None` without one, and an unfinished
/// automaton as soon as there is one.
fn explore(store: &mut Store, root: Id, any_text: bool) -> Result<Option<Automaton>, TooLarge> {
    let groups = groups(&store.classes(root));
    // The groups of another root have the same numbers.
    store.forget_derivatives();
    let mut states: HashMap<Id, usize> = HashMap::from([(root, 0)]);
    let mut order = vec![root];
    let (mut next, mut accepts) = (Vec::new(), Vec::new());
    while next.len() < order.len() {
        let id = order[next.len()];
        accepts.push(store.is_nullable(id));
        if any_text && store.is_nullable(id) {
            return Ok(Some(Automaton {
                groups,
                next,
                accepts,
            }));
        }
        let mut row = Vec::with_capacity(groups.len());
        for (group, ranges) in groups.iter().enumerate() {
            let to = store.derive(id, group as u32, ranges[0].0);
            let fresh = order.len();
            let state = *states.entry(to).or_insert(fresh);
            if state == fresh {
                order.push(to);
            }
            row.push(state);
        }
        next.push(row);
        let transitions = next.len() * groups.len();
        if order.len() > MAX_STATES || transitions > MAX_TRANSITIONS || store.is_full() {
            return Err(TooLarge);
        }
    }
    Ok((!any_text).then_some(Automaton {
        groups,
        next,
        accepts,
    }))
}
