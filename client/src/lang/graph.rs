//! The recorded statements of a program: its dataflow graph.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use crate::lang::op::{Node, Op, Piece};

/// A program as data. The statements of one state are in their order, and a variable is defined
/// before it is read, so that the graph has no circle. As JSON it is the body of
/// `POST /v1/programs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

/// A likely mistake in a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error("statement {node} reads the variable {name:?}, which no earlier statement defines")]
    Undefined { node: usize, name: String },
    #[error("the variable {name:?} of statement {node} is never read")]
    Unused { node: usize, name: String },
    #[error("statement {node} defines the variable {name:?} of the same state again")]
    Redefined { node: usize, name: String },
}

impl Op {
    /// The variable that the statement defines.
    pub fn defines(&self) -> Option<&str> {
        match self {
            Self::Gen(generation) => Some(&generation.name),
            Self::Select(selection) => Some(&selection.name),
            Self::Scope { name } | Self::Set { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// The variables of each state: name to the statement that defines it.
type Scopes = BTreeMap<usize, BTreeMap<String, Vec<usize>>>;

impl Graph {
    /// The states of the program, its own among them.
    pub fn states(&self) -> usize {
        let forks = self.nodes.iter().map(|node| match &node.op {
            Op::Fork { into } => into.len(),
            _ => 0,
        });
        1 + forks.sum::<usize>()
    }

    /// Likely mistakes: variables that are read and not defined, defined twice, or not read. The
    /// names in `outputs` are read by whoever runs the program.
    pub fn check(&self, outputs: &[&str]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut defined = Vec::new();
        let mut used = BTreeSet::new();
        self.walk(|index, node, scopes| match &node.op {
            Op::Text { text } => {
                for piece in text {
                    let Piece::Var { var, state } = piece else {
                        continue;
                    };
                    match scopes.get(state).and_then(|scope| scope.get(var)) {
                        Some(nodes) => used.extend(nodes.iter().copied()),
                        None => warnings.push(Warning::Undefined {
                            node: index,
                            name: var.clone(),
                        }),
                    }
                }
            }
            op => {
                if let Some(name) = op.defines() {
                    let scope = scopes.get(&node.state);
                    let before = scope.and_then(|scope| scope.get(name));
                    let own = before.into_iter().flatten();
                    if own.into_iter().any(|&n| self.nodes[n].state == node.state) {
                        warnings.push(Warning::Redefined {
                            node: index,
                            name: name.to_owned(),
                        });
                    }
                    defined.push((index, name.to_owned()));
                }
            }
        });
        let unused = defined
            .into_iter()
            .filter(|(node, name)| !used.contains(node) && !outputs.contains(&name.as_str()));
        warnings.extend(unused.map(|(node, name)| Warning::Unused { node, name }));
        warnings
    }

    /// Calls `visit` for each statement, with the variables that are defined before it.
    fn walk<'a>(&'a self, mut visit: impl FnMut(usize, &'a Node, &Scopes)) {
        let mut scopes = Scopes::new();
        scopes.insert(0, BTreeMap::new());
        for (index, node) in self.nodes.iter().enumerate() {
            visit(index, node, &scopes);
            match &node.op {
                Op::Fork { into } => {
                    let copy = scopes.get(&node.state).cloned().unwrap_or_default();
                    for &fork in into {
                        scopes.insert(fork, copy.clone());
                    }
                }
                Op::Join { from, .. } => {
                    let mut lists: BTreeMap<String, Vec<usize>> = BTreeMap::new();
                    for fork in from {
                        for (name, nodes) in scopes.get(fork).into_iter().flatten() {
                            let own = nodes
                                .iter()
                                .filter(|&&n| from.contains(&self.nodes[n].state));
                            let own: Vec<usize> = own.copied().collect();
                            if !own.is_empty() {
                                lists.entry(name.clone()).or_default().extend(own);
                            }
                        }
                    }
                    scopes.entry(node.state).or_default().extend(lists);
                }
                op => {
                    if let Some(name) = op.defines() {
                        let scope = scopes.entry(node.state).or_default();
                        scope.insert(name.to_owned(), vec![index]);
                    }
                }
            }
        }
    }

    /// The text that every run of the program begins with: the constant texts of the program's own
    /// state before its first statement of another kind.
    pub fn prefix(&self) -> String {
        let mut prefix = String::new();
        for node in self.nodes.iter().filter(|node| node.state == 0) {
            let Op::Text { text } = &node.op else { break };
            for piece in text {
                let Piece::Text(text) = piece else {
                    return prefix;
                };
                prefix.push_str(text);
            }
        }
        prefix
    }

    /// The graph in the language of Graphviz: solid lines are the order within a state, dashed ones
    /// are variables.
    pub fn dot(&self) -> String {
        let mut out = "digraph program {\n  node [shape=box];\n".to_owned();
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let label = label(&node.op).replace('\\', "\\\\").replace('"', "\\\"");
            let label = label.replace('\n', "\\n");
            let _ = writeln!(out, "  n{index} [label=\"{}: {label}\"];", node.state);
            if let Some(before) = last.insert(node.state, index) {
                let _ = writeln!(out, "  n{before} -> n{index};");
            }
            match &node.op {
                Op::Fork { into } => last.extend(into.iter().map(|&fork| (fork, index))),
                Op::Join { from, .. } => {
                    for before in from.iter().filter_map(|fork| last.get(fork)) {
                        let _ = writeln!(out, "  n{before} -> n{index};");
                    }
                }
                _ => {}
            }
        }
        self.walk(|index, node, scopes| {
            let Op::Text { text } = &node.op else { return };
            for piece in text {
                let Piece::Var { var, state } = piece else {
                    continue;
                };
                let nodes = scopes.get(state).and_then(|scope| scope.get(var));
                for from in nodes.into_iter().flatten() {
                    let _ = writeln!(out, "  n{from} -> n{index} [style=dashed];");
                }
            }
        });
        out.push_str("}\n");
        out
    }
}

/// The statement in a few words.
fn label(op: &Op) -> String {
    const SHOWN: usize = 40;
    match op {
        Op::Text { text } => {
            let texts = text.iter().map(|piece| match piece {
                Piece::Text(text) => text.clone(),
                Piece::Var { var, .. } => format!("{{{var}}}"),
            });
            let whole: String = texts.collect();
            match whole.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("{}...", &whole[..end]),
                None => whole,
            }
        }
        Op::Gen(generation) => format!("gen {}", generation.name),
        Op::Select(selection) => {
            format!("select {} of {}", selection.name, selection.choices.len())
        }
        Op::Begin { role } => format!("begin {}", role.name()),
        Op::End => "end".to_owned(),
        Op::Scope { name } => format!("scope {name}"),
        Op::EndScope => "end of scope".to_owned(),
        Op::Set { name, .. } => format!("set {name}"),
        Op::Fork { into } => format!("fork into {}", into.len()),
        Op::Join { from, .. } => format!("join of {}", from.len()),
        Op::Image { path } => format!("image {path}"),
    }
}
