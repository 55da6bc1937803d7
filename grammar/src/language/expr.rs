//! Regular expressions with intersection and complement, and their derivatives (Brzozowski,
//! "Derivatives of Regular Expressions", 1964). Equal expressions are stored once.

use std::collections::HashMap;

use super::part::Ranges;

/// An expression in a [`Store`].
pub(super) type Id = u32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// No text.
    Nothing,
    /// The empty text.
    Empty,
    Class(Ranges),
    Concat(Id, Id),
    Repeat(Id, u32, Option<u32>),
    /// At least two, in ascending order.
    Or(Vec<Id>),
    And(Vec<Id>),
    Not(Id),
}

/// The most expressions of a store.
const MAX_NODES: usize = 100_000;
/// The most work on a store: expressions that are derived, and states that are compared. A unit takes up to
/// a tenth of a microsecond, and nothing stops the work before its end.
pub(super) const MAX_WORK: u64 = 20_000_000;

/// The expressions became too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

#[derive(Debug)]
pub(super) struct Store {
    nodes: Vec<Node>,
    nullable: Vec<bool>,
    ids: HashMap<Node, Id>,
    derivatives: HashMap<(Id, u32), Id>,
    work: u64,
}

impl Store {
    pub const NOTHING: Id = 0;
    pub const EMPTY: Id = 1;
    /// All texts.
    pub const ANY: Id = 2;

    pub fn new() -> Self {
        let mut store = Self {
            nodes: Vec::new(),
            nullable: Vec::new(),
            ids: HashMap::new(),
            derivatives: HashMap::new(),
            work: 0,
        };
        store.add(Node::Nothing);
        store.add(Node::Empty);
        store.add(Node::Not(Self::NOTHING));
        store
    }

    fn add(&mut self, node: Node) -> Id {
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let nullable = match &node {
            Node::Nothing | Node::Class(_) => false,
            Node::Empty => true,
            Node::Concat(a, b) => self.is_nullable(*a) && self.is_nullable(*b),
            Node::Repeat(inner, min, _) => *min == 0 || self.is_nullable(*inner),
            Node::Or(list) => list.iter().any(|&id| self.is_nullable(id)),
            Node::And(list) => list.iter().all(|&id| self.is_nullable(id)),
            Node::Not(inner) => !self.is_nullable(*inner),
        };
        let id = self.nodes.len() as Id;
        self.nodes.push(node.clone());
        self.nullable.push(nullable);
        self.ids.insert(node, id);
        id
    }

    pub fn is_nullable(&self, id: Id) -> bool {
        self.nullable[id as usize]
    }

    /// True if the expressions became too many, or the work on them.
    pub fn is_full(&self) -> bool {
        self.nodes.len() > MAX_NODES || self.work > MAX_WORK
    }

    /// Counts work on the expressions.
    pub fn spend(&mut self, work: usize) {
        self.work += work as u64;
    }

    pub fn class(&mut self, ranges: Ranges) -> Id {
        match ranges.is_empty() {
            true => Self::NOTHING,
            false => self.add(Node::Class(ranges)),
        }
    }

    pub fn concat(&mut self, a: Id, b: Id) -> Id {
        match (a, b) {
            (Self::NOTHING, _) | (_, Self::NOTHING) => Self::NOTHING,
            (Self::EMPTY, other) | (other, Self::EMPTY) => other,
            (Self::ANY, Self::ANY) => Self::ANY,
            _ => {
                // To the right, so that equal sequences are stored equally.
                if let Node::Concat(first, rest) = self.nodes[a as usize].clone() {
                    let rest = self.concat(rest, b);
                    return self.concat(first, rest);
                }
                self.add(Node::Concat(a, b))
            }
        }
    }

    pub fn repeat(&mut self, inner: Id, min: u32, max: Option<u32>) -> Id {
        match (inner, min, max) {
            (_, _, Some(0)) | (Self::EMPTY, ..) | (Self::NOTHING, 0, _) => Self::EMPTY,
            (Self::NOTHING, ..) => Self::NOTHING,
            (Self::ANY, ..) => Self::ANY,
            (_, 1, Some(1)) => inner,
            _ => self.add(Node::Repeat(inner, min, max)),
        }
    }

    pub fn not(&mut self, inner: Id) -> Id {
        match self.nodes[inner as usize] {
            Node::Not(double) => double,
            _ => self.add(Node::Not(inner)),
        }
    }

    pub fn or(&mut self, list: Vec<Id>) -> Id {
        self.join(list, true)
    }

    pub fn and(&mut self, list: Vec<Id>) -> Id {
        self.join(list, false)
    }

    fn join(&mut self, list: Vec<Id>, or: bool) -> Id {
        let (neutral, absorbing) = match or {
            true => (Self::NOTHING, Self::ANY),
            false => (Self::ANY, Self::NOTHING),
        };
        let mut flat = Vec::with_capacity(list.len());
        for id in list {
            match &self.nodes[id as usize] {
                Node::Or(inner) if or => flat.extend_from_slice(inner),
                Node::And(inner) if !or => flat.extend_from_slice(inner),
                _ => flat.push(id),
            }
        }
        flat.retain(|&id| id != neutral);
        flat.sort_unstable();
        flat.dedup();
        let opposite = flat.iter().any(|&id| match self.nodes[id as usize] {
            Node::Not(inner) => flat.binary_search(&inner).is_ok(),
            _ => false,
        });
        if opposite || flat.contains(&absorbing) {
            return absorbing;
        }
        match flat.as_slice() {
            [] => neutral,
            [single] => *single,
            _ if or => self.add(Node::Or(flat)),
            _ => self.add(Node::And(flat)),
        }
    }

    /// The rest of the texts of `id` after the character `code`. The characters of `group` are
    /// alike for all classes in `id`.
    pub fn derive(&mut self, id: Id, group: u32, code: u32) -> Id {
        if let Some(&known) = self.derivatives.get(&(id, group)) {
            return known;
        }
        let node = self.nodes[id as usize].clone();
        self.spend(match &node {
            Node::Or(list) | Node::And(list) => list.len(),
            _ => 1,
        });
        let result = match node {
            Node::Nothing | Node::Empty => Self::NOTHING,
            Node::Class(ranges) => match ranges.iter().any(|&(a, b)| a <= code && code <= b) {
                true => Self::EMPTY,
                false => Self::NOTHING,
            },
            Node::Concat(a, b) => {
                let first = self.derive(a, group, code);
                let first = self.concat(first, b);
                if self.is_nullable(a) {
                    let second = self.derive(b, group, code);
                    self.or(vec![first, second])
                } else {
                    first
                }
            }
            Node::Repeat(inner, min, max) => {
                let first = self.derive(inner, group, code);
                let rest = self.repeat(inner, min.saturating_sub(1), max.map(|max| max - 1));
                self.concat(first, rest)
            }
            Node::Or(list) => {
                let list = list
                    .iter()
                    .map(|&id| self.derive(id, group, code))
                    .collect();
                self.or(list)
            }
            Node::And(list) => {
                let list = list
                    .iter()
                    .map(|&id| self.derive(id, group, code))
                    .collect();
                self.and(list)
            }
            Node::Not(inner) => {
                let inner = self.derive(inner, group, code);
                self.not(inner)
            }
        };
        self.derivatives.insert((id, group), result);
        result
    }

    /// Forgets the results of [`Self::derive`], so that groups can be numbered anew.
    pub fn forget_derivatives(&mut self) {
        self.derivatives.clear();
    }

    /// The classes of characters within `root`.
    pub fn classes(&self, root: Id) -> Vec<Ranges> {
        let mut seen = vec![false; self.nodes.len()];
        let (mut waiting, mut classes) = (vec![root], Vec::new());
        while let Some(id) = waiting.pop() {
            if std::mem::replace(&mut seen[id as usize], true) {
                continue;
            }
            match &self.nodes[id as usize] {
                Node::Nothing | Node::Empty => {}
                Node::Class(ranges) => classes.push(ranges.clone()),
                Node::Concat(a, b) => waiting.extend([*a, *b]),
                Node::Repeat(inner, ..) | Node::Not(inner) => waiting.push(*inner),
                Node::Or(list) | Node::And(list) => waiting.extend(list),
            }
        }
        classes
    }
}
