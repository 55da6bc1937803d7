//! A pattern for an automaton, by eliminating its states one by one (Brzozowski and McCluskey,
//! "Signal Flow Graph Techniques for Sequential Circuit State Diagrams", 1963).

use std::collections::BTreeMap;
use std::fmt::Write;

use super::automaton::Automaton;
use super::expr::TooLarge;
use super::part::Ranges;

/// The most bytes of the pattern.
pub(super) const MAX_BYTES: usize = 12 * 1024;
const ALL: (u32, u32) = (0, 0x10_FFFF);

/// The label of an edge: a pattern, and whether a repetition needs parentheses around it.
#[derive(Clone, Debug, PartialEq)]
struct Label {
    text: String,
    is_single: bool,
}

/// A pattern without anchors for the texts of `automaton`; `None` if there are none.
///
/// # Errors
/// If the pattern is too large.
pub(super) fn pattern(automaton: &Automaton) -> Result<Option<String>, TooLarge> {
    let states = automaton.next.len();
    let live = automaton.live();
    // Two more states: where texts begin, and where they end.
    let (begin, end) = (states, states + 1);
    let mut edges: Vec<BTreeMap<usize, Label>> = vec![BTreeMap::new(); states + 2];
    let empty = Label {
        text: String::new(),
        is_single: false,
    };
    edges[begin].insert(0, empty.clone());
    for state in (0..states).filter(|&state| live[state]) {
        if automaton.accepts[state] {
            edges[state].insert(end, empty.clone());
        }
        let mut by_target: BTreeMap<usize, Ranges> = BTreeMap::new();
        for (group, &to) in automaton.next[state].iter().enumerate() {
            let ranges = by_target.entry(to).or_default();
            ranges.extend(automaton.groups[group].iter().copied());
        }
        for (to, ranges) in by_target.into_iter().filter(|&(to, _)| live[to]) {
            edges[state].insert(to, class(ranges));
        }
    }
    let mut left: Vec<usize> = (0..states).filter(|&state| live[state]).collect();
    while !left.is_empty() {
        let index = cheapest(&left, &edges);
        let state = left.swap_remove(index);
        eliminate(state, &mut edges)?;
    }
    Ok(edges[begin].remove(&end).map(|label| label.text))
}

/// The place in `left` of the state whose elimination makes the fewest bytes. It takes time in proportion
/// to the number of edges: to look at all rows for each state would take seconds for a thousand states.
fn cheapest(left: &[usize], edges: &[BTreeMap<usize, Label>]) -> usize {
    // The number of edges from other states, and their bytes.
    let mut into = vec![(0, 0); edges.len()];
    for (from, row) in edges.iter().enumerate() {
        for (&to, label) in row.iter().filter(|&(&to, _)| to != from) {
            into[to].0 += 1;
            into[to].1 += label.text.len();
        }
    }
    let cost = |state: usize| {
        let (ins, in_bytes) = into[state];
        let (mut outs, mut out_bytes, mut own) = (0, 0, 0);
        for (&to, label) in &edges[state] {
            if to == state {
                own = label.text.len();
            } else {
                outs += 1;
                out_bytes += label.text.len();
            }
        }
        in_bytes * outs + out_bytes * ins + own * ins * outs
    };
    let costs = left.iter().map(|&state| cost(state));
    let best = costs.enumerate().min_by_key(|&(_, cost)| cost);
    best.map_or(0, |(index, _)| index)
}

fn eliminate(state: usize, edges: &mut [BTreeMap<usize, Label>]) -> Result<(), TooLarge> {
    let mut out = std::mem::take(&mut edges[state]);
    let own = out.remove(&state).map(|label| starred(&label));
    let own = own.unwrap_or_default();
    let mut bytes = 0;
    for row in edges.iter_mut() {
        let Some(into) = row.remove(&state) else {
            continue;
        };
        for (&to, label) in &out {
            let text = format!("{}{own}{}", into.text, label.text);
            let path = Label {
                is_single: own.is_empty()
                    && (into.text.is_empty() && label.is_single
                        || label.text.is_empty() && into.is_single),
                text,
            };
            let joined = match row.remove(&to) {
                None => path,
                Some(other) => either(other, path),
            };
            bytes += joined.text.len();
            row.insert(to, joined);
            if bytes > 4 * MAX_BYTES {
                return Err(TooLarge);
            }
        }
    }
    Ok(())
}

fn starred(label: &Label) -> String {
    match (label.text.is_empty(), label.is_single) {
        (true, _) => String::new(),
        (_, true) => format!("{}*", label.text),
        (_, false) => format!("(?:{})*", label.text),
    }
}

fn either(a: Label, b: Label) -> Label {
    let text = match (a.text.is_empty(), b.text.is_empty()) {
        (true, true) => String::new(),
        (true, false) => optional(&b),
        (false, true) => optional(&a),
        (false, false) => format!("(?:{}|{})", a.text, b.text),
    };
    Label {
        is_single: !text.is_empty() && !text.ends_with('?'),
        text,
    }
}

fn optional(label: &Label) -> String {
    match label.is_single {
        true => format!("{}?", label.text),
        false => format!("(?:{})?", label.text),
    }
}

/// The label for one character of `ranges`.
fn class(mut ranges: Ranges) -> Label {
    ranges.sort_unstable();
    let mut joined: Ranges = Vec::new();
    for (from, to) in ranges {
        match joined.last_mut() {
            // No text has the surrogates between.
            Some(last) if last.1 + 1 == from || last.1 == 0xd7ff && from == 0xe000 => last.1 = to,
            _ => joined.push((from, to)),
        }
    }
    let text = match joined.as_slice() {
        [ALL] => "(?s:.)".to_owned(),
        [(from, to)] if from == to => spelled(*from),
        _ => {
            let others = complement(&joined);
            match others.len() < joined.len() {
                true => format!("[^{}]", list(&others)),
                false => format!("[{}]", list(&joined)),
            }
        }
    };
    Label {
        text,
        is_single: true,
    }
}

fn complement(ranges: &Ranges) -> Ranges {
    let mut others = Vec::new();
    let mut from = 0;
    for &(first, last) in ranges {
        if from < first {
            others.push((from, first - 1));
        }
        from = last + 1;
    }
    if from <= ALL.1 {
        others.push((from, ALL.1));
    }
    others
}

fn list(ranges: &Ranges) -> String {
    let mut text = String::new();
    for &(from, to) in ranges {
        // The ends of a range that touches the surrogates are valid characters beside them.
        let (from, to) = match (from, to) {
            (0xd800..=0xdfff, to) => (0xe000, to),
            (from, 0xd800..=0xdfff) => (from, 0xd7ff),
            other => other,
        };
        if from > to {
            continue;
        }
        // Writing to a string does not fail.
        let _ = match from == to {
            true => write!(text, "{}", spelled(from)),
            false => write!(text, "{}-{}", spelled(from), spelled(to)),
        };
    }
    text
}

fn spelled(code: u32) -> String {
    match char::from_u32(code) {
        Some(letter) if letter.is_ascii_alphanumeric() => letter.into(),
        _ => format!("\\x{{{code:X}}}"),
    }
}
