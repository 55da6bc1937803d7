//! Tracing: a program is run without a model, and its statements are recorded. A graph is run again
//! with independent states in parallel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::lang::error::Error;
use crate::lang::expr::{Expr, Generate, Select};
use crate::lang::frontend::Frontend;
use crate::lang::graph::Graph;
use crate::lang::op::{Node, Op, Piece};
use crate::lang::read::Var;
use crate::lang::state::{Ending, Recorder, State};

/// The graph of `program`. A program that reads a variable gets [`Error::Traced`].
pub fn trace(program: impl FnOnce(&mut State)) -> Graph {
    let recorder = Arc::default();
    program(&mut State::traced(&recorder));
    graph(&recorder)
}

/// [`trace`] for a program that reads variables, as far as its first reading.
pub async fn trace_program<A, T>(
    program: &impl AsyncFn(&mut State, A) -> Result<T, Error>,
    input: A,
) -> Graph {
    let recorder = Arc::default();
    let mut state = State::traced(&recorder);
    // It ends with an error where it reads a variable, which is all that a trace can see.
    let _ = program(&mut state, input).await;
    graph(&recorder)
}

fn graph(recorder: &Arc<Mutex<Recorder>>) -> Graph {
    let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *recorder).into_graph()
}

impl Graph {
    /// Submits all statements of the graph. The states run in parallel as far as they do not wait
    /// for each other. The ends of the states come back in the order of their numbers; dropping
    /// them cancels the run.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a statement of a state that does not exist, or has been joined.
    pub fn run(&self, frontend: &Frontend) -> Result<Vec<Ending>, Error> {
        let mut replay = Replay::default();
        replay.states.insert(0, frontend.state());
        for (index, node) in self.nodes.iter().enumerate() {
            replay
                .submit(node)
                .map_err(|reason| Error::Misuse(format!("statement {index}: {reason}")))?;
        }
        for (id, mut state) in replay.states {
            replay.ended.insert(id, state.ending());
        }
        Ok(replay.ended.into_values().collect())
    }
}

#[derive(Default)]
struct Replay {
    states: BTreeMap<usize, State>,
    /// The states that were joined.
    ended: BTreeMap<usize, Ending>,
}

impl Replay {
    fn submit(&mut self, node: &Node) -> Result<(), String> {
        let expr = match &node.op {
            Op::Text { text } => {
                let pieces = text.iter().map(|piece| match piece {
                    Piece::Text(text) => text.into(),
                    Piece::Var { var, state } => self.variable(*state, var).into(),
                });
                Some(Expr::from(pieces.collect::<Vec<Expr>>()))
            }
            Op::Gen(generation) => Some(Generate::from((**generation).clone()).into()),
            Op::Select(selection) => Some(Select(selection.clone()).into()),
            Op::Image { path } => Some(crate::lang::expr::image(path)),
            _ => None,
        };
        let joined = match &node.op {
            Op::Join { from, .. } => self.take(from)?,
            _ => Vec::new(),
        };
        let id = node.state;
        let missing = || format!("there is no state {id}, or none any more");
        let state = self.states.get_mut(&id).ok_or_else(missing)?;
        if let Some(expr) = expr {
            state.extend(expr);
            return Ok(());
        }
        match &node.op {
            Op::Begin { role } => state.begin(*role),
            Op::End => state.end(),
            Op::Scope { name } => state.begin_scope(name),
            Op::EndScope => state.end_scope(),
            Op::Set { name, text } => {
                state.set(name, text);
            }
            Op::Fork { into } => {
                let forks = state.fork(into.len());
                for (&id, fork) in into.iter().zip(forks) {
                    if self.ended.contains_key(&id) || self.states.insert(id, fork).is_some() {
                        return Err(format!("there is a state {id} already"));
                    }
                }
            }
            Op::Join { mode, .. } => {
                state.join_with(joined, *mode);
            }
            Op::Text { .. } | Op::Gen(_) | Op::Select(_) | Op::Image { .. } => {}
        }
        Ok(())
    }

    fn take(&mut self, ids: &[usize]) -> Result<Vec<State>, String> {
        let mut taken = Vec::new();
        for &id in ids {
            let missing = || format!("there is no state {id}, or none any more");
            let mut state = self.states.remove(&id).ok_or_else(missing)?;
            self.ended.insert(id, state.ending());
            taken.push(state);
        }
        Ok(taken)
    }

    fn variable(&self, state: usize, name: &str) -> Var {
        if let Some(state) = self.states.get(&state) {
            return state.var(name);
        }
        let ended = self.ended.get(&state);
        let mut variables = ended.into_iter().flat_map(|ending| &ending.variables);
        let found = variables.find(|var| var.name() == name).cloned();
        found.unwrap_or_else(|| Var::undefined(name))
    }
}
