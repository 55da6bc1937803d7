//! The state of a program: statements go in, and variables come out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot, watch};

use crate::lang::cell::{Meta, Setter, Value, cell};
use crate::lang::context::Context;
use crate::lang::error::Error;
use crate::lang::executor::{Guard, Joined, Part, Setup, Snapshot, Start, Task, start};
use crate::lang::expr::{Expr, Generate, Item, Select};
use crate::lang::frontend::Frontend;
use crate::lang::graph::Graph;
use crate::lang::op::{Join, Node, Op, Piece};
use crate::lang::read::{Progress, Source, TextStream, Var, VarStream};
use crate::lang::speculation::Speculation;
use crate::message::{Message, Role};

/// The state of a program. Statements are submitted and run one after another on a task of the
/// state, while the program goes on; only reading waits. Dropping a state cancels what it runs.
///
/// A state must be made within a tokio runtime.
#[derive(Debug)]
pub struct State {
    id: usize,
    vars: BTreeMap<String, Var>,
    /// The variables that this state defined itself.
    own: BTreeSet<String>,
    /// The variables of the scopes that have not ended.
    scopes: Vec<Var>,
    submitted: usize,
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    Run {
        frontend: Frontend,
        queue: mpsc::UnboundedSender<Task>,
        guard: Arc<Guard>,
        progress: watch::Receiver<Progress>,
    },
    Trace(Arc<Mutex<Recorder>>),
}

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    graph: Graph,
    /// The states besides the program's own.
    forks: usize,
}

/// The end of a state, as far as it was submitted; see [`State::ending`].
#[derive(Debug)]
pub struct Ending {
    /// The variables that the state defined itself.
    pub variables: Vec<Var>,
    snapshot: Result<oneshot::Receiver<Result<Snapshot, Error>>, Error>,
    /// Keeps the state running.
    _guard: Option<Arc<Guard>>,
}

impl Ending {
    /// Waits for the end and returns the text.
    ///
    /// # Errors
    /// The error of the first statement that failed.
    pub async fn text(&mut self) -> Result<String, Error> {
        let snapshot = std::mem::replace(&mut self.snapshot, Err(Error::Cancelled));
        Ok(context(snapshot).await?.text())
    }
}

async fn context(
    snapshot: Result<oneshot::Receiver<Result<Snapshot, Error>>, Error>,
) -> Result<Context, Error> {
    let snapshot = snapshot?.await.unwrap_or(Err(Error::Cancelled))?;
    Ok(snapshot.context)
}

impl Frontend {
    /// A new program's state.
    pub fn state(&self) -> State {
        State::spawn(self, 0, BTreeMap::new(), None)
    }
}

impl State {
    fn spawn(
        frontend: &Frontend,
        id: usize,
        vars: BTreeMap<String, Var>,
        parent: Option<(oneshot::Receiver<Start>, Arc<Guard>)>,
    ) -> Self {
        let (queue, tasks) = mpsc::unbounded_channel();
        let setup = Setup {
            backend: Arc::clone(&frontend.backend),
            stream: frontend.stream,
            text_limit: frontend.text_limit,
            speculation: Speculation::new(frontend.speculate),
            parent,
        };
        let (guard, progress) = start(setup, tasks);
        let mode = Mode::Run {
            frontend: frontend.clone(),
            queue,
            guard,
            progress,
        };
        Self::with(id, vars, mode)
    }

    fn with(id: usize, vars: BTreeMap<String, Var>, mode: Mode) -> Self {
        Self {
            id,
            vars,
            own: BTreeSet::new(),
            scopes: Vec::new(),
            submitted: 0,
            mode,
        }
    }

    /// A state that records its statements instead of running them. It needs neither a back end
    /// nor a runtime.
    pub(crate) fn traced(recorder: &Arc<Mutex<Recorder>>) -> Self {
        Self::with(0, BTreeMap::new(), Mode::Trace(Arc::clone(recorder)))
    }

    fn submit(&mut self, task: Task) {
        if let Mode::Run { queue, .. } = &self.mode {
            self.submitted += 1;
            // The task of the state ends before the state only if it panics. Its variables are
            // cancelled then.
            let _ = queue.send(task);
        }
    }

    fn record(&self, op: Op) {
        if let Mode::Trace(recorder) = &self.mode {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let state = self.id;
            recorder.graph.nodes.push(Node { state, op });
        }
    }

    /// Defines a variable. `task` makes the statement that computes it; there is none in a trace.
    fn define(&mut self, name: &str, task: impl FnOnce(Setter) -> Option<Task>) {
        let source = match &self.mode {
            Mode::Trace(_) => Source::Traced,
            Mode::Run { .. } => {
                let (setter, cell) = cell();
                if let Some(task) = task(setter) {
                    self.submit(task);
                }
                Source::Cell(cell)
            }
        };
        let var = Var::new(name, self.id, source);
        self.vars.insert(name.to_owned(), var);
        self.own.insert(name.to_owned());
    }

    /// Adds an expression: texts, variables, generations and selections. `+=` does the same.
    pub fn extend(&mut self, expr: impl Into<Expr>) -> &mut Self {
        let mut parts = Vec::new();
        for item in expr.into().0 {
            match item {
                Item::Text(text) => parts.push(Ok(text)),
                Item::Var(var) => parts.push(Err(var)),
                Item::Generate(generate) => {
                    self.push(&mut parts);
                    self.generate(*generate);
                }
                Item::Select(select) => {
                    self.push(&mut parts);
                    self.select(select);
                }
                Item::Image(path) => {
                    self.push(&mut parts);
                    self.record(Op::Image { path });
                    self.submit(Task::Image);
                }
            }
        }
        self.push(&mut parts);
        self
    }

    fn push(&mut self, parts: &mut Vec<Result<String, Var>>) {
        let parts = std::mem::take(parts);
        if parts.is_empty() {
            return;
        }
        if matches!(self.mode, Mode::Trace(_)) {
            let pieces = parts.into_iter().map(|part| match part {
                Ok(text) => Piece::Text(text),
                Err(var) => Piece::Var {
                    var: var.name().to_owned(),
                    state: var.state(),
                },
            });
            let text = pieces.collect();
            self.record(Op::Text { text });
            return;
        }
        let parts = parts.into_iter().map(|part| match part {
            Ok(text) => Part::Text(text),
            Err(var) => Part::Var(var.name().to_owned(), var.cell().cloned()),
        });
        let parts = parts.collect();
        self.submit(Task::Text(parts));
    }

    fn generate(&mut self, generate: Generate) {
        let statement = generate.statement;
        self.record(Op::Gen(Box::new(statement.clone())));
        let name = statement.name.clone();
        self.define(&name, |setter| {
            Some(Task::Generate(Box::new(statement), setter))
        });
    }

    fn select(&mut self, Select(selection): Select) {
        self.record(Op::Select(selection.clone()));
        let name = selection.name.clone();
        self.define(&name, |setter| Some(Task::Select(selection, setter)));
    }

    /// Runs `body` within a message of `role`.
    pub fn role(&mut self, role: Role, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.begin(role);
        body(self);
        self.end();
        self
    }

    pub(crate) fn begin(&mut self, role: Role) {
        self.record(Op::Begin { role });
        self.submit(Task::Begin(role));
    }

    pub(crate) fn end(&mut self) {
        self.record(Op::End);
        self.submit(Task::End);
    }

    /// Adds a system message.
    pub fn system(&mut self, expr: impl Into<Expr>) -> &mut Self {
        self.message(Role::System, expr)
    }

    /// Adds a user's message.
    pub fn user(&mut self, expr: impl Into<Expr>) -> &mut Self {
        self.message(Role::User, expr)
    }

    /// Adds an assistant's message, in which text is generated.
    pub fn assistant(&mut self, expr: impl Into<Expr>) -> &mut Self {
        self.message(Role::Assistant, expr)
    }

    fn message(&mut self, role: Role, expr: impl Into<Expr>) -> &mut Self {
        self.role(role, |state| {
            state.extend(expr);
        })
    }

    /// Makes the text that `body` adds the value of the variable `name`.
    pub fn var_scope(&mut self, name: &str, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.begin_scope(name);
        body(self);
        self.end_scope();
        self
    }

    pub(crate) fn begin_scope(&mut self, name: &str) {
        let owned = name.to_owned();
        self.record(Op::Scope { name: owned });
        let source = match &self.mode {
            Mode::Trace(_) => Source::Traced,
            Mode::Run { .. } => {
                let (setter, cell) = cell();
                self.submit(Task::Scope(setter));
                Source::Cell(cell)
            }
        };
        self.scopes.push(Var::new(name, self.id, source));
    }

    /// Ends the scope that began last. Its variable is defined only now, so that nothing in the
    /// scope can wait for its end.
    pub(crate) fn end_scope(&mut self) {
        let Some(var) = self.scopes.pop() else { return };
        self.record(Op::EndScope);
        self.submit(Task::EndScope);
        self.own.insert(var.name().to_owned());
        self.vars.insert(var.name().to_owned(), var);
    }

    /// Sets a variable without adding text.
    pub fn set(&mut self, name: &str, text: &str) -> &mut Self {
        self.record(Op::Set {
            name: name.to_owned(),
            text: text.to_owned(),
        });
        self.define(name, |setter| {
            setter.set(Value::Text(text.to_owned()), Meta::default());
            None
        });
        self
    }

    /// Makes `n` copies of the state, which go on independently of it and of each other. They
    /// begin with the text and the variables that were submitted so far; the text is computed into
    /// the prefix cache once, before they begin.
    pub fn fork(&mut self, n: usize) -> Vec<Self> {
        match &self.mode {
            Mode::Trace(recorder) => {
                let recorder = Arc::clone(recorder);
                let into: Vec<usize> = {
                    let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
                    let first = recorder.forks + 1;
                    recorder.forks += n;
                    (first..first + n).collect()
                };
                self.record(Op::Fork { into: into.clone() });
                let copies = into.into_iter().map(|id| {
                    let mode = Mode::Trace(Arc::clone(&recorder));
                    Self::with(id, self.vars_of(id), mode)
                });
                copies.collect()
            }
            Mode::Run {
                frontend, guard, ..
            } => {
                let (frontend, guard) = (frontend.clone(), Arc::clone(guard));
                let (starts, beginnings): (Vec<_>, Vec<_>) =
                    (0..n).map(|_| oneshot::channel()).unzip();
                self.submit(Task::Fork(starts));
                let copies = beginnings.into_iter().map(|beginning| {
                    let parent = Some((beginning, Arc::clone(&guard)));
                    Self::spawn(&frontend, self.id, self.vars.clone(), parent)
                });
                copies.collect()
            }
        }
    }

    /// The variables of this state as those of its fork `id`.
    fn vars_of(&self, id: usize) -> BTreeMap<String, Var> {
        let vars = self.vars.keys();
        vars.map(|name| (name.clone(), Var::new(name, id, Source::Traced)))
            .collect()
    }

    /// Ends forks: each variable that a fork defined becomes a list in this state, with one value
    /// for each fork. The statements that follow wait for the forks.
    pub fn join(&mut self, forks: Vec<Self>) -> &mut Self {
        self.join_with(forks, Join::Gather)
    }

    /// [`join`](Self::join), which also appends the texts of the forks in their order. It fails if
    /// one of the forks failed.
    pub fn concatenate(&mut self, forks: Vec<Self>) -> &mut Self {
        self.join_with(forks, Join::Concatenate)
    }

    /// Ends forks in either way.
    pub fn join_with(&mut self, forks: Vec<Self>, mode: Join) -> &mut Self {
        let from = forks.iter().map(|fork| fork.id).collect();
        self.record(Op::Join { from, mode });
        let names: BTreeSet<String> = forks.iter().flat_map(|f| f.own.clone()).collect();
        let mut joined = Joined {
            mode,
            ends: Vec::new(),
            variables: Vec::new(),
            guards: Vec::new(),
        };
        for name in names {
            let values = forks.iter().map(|fork| fork.var(&name).cell().cloned());
            let values = values.collect();
            let variables = &mut joined.variables;
            self.define(&name, |setter| {
                variables.push((setter, values));
                None
            });
        }
        for mut fork in forks {
            if let Ok(end) = fork.snapshot() {
                joined.ends.push(end);
            }
            if let Mode::Run { guard, .. } = fork.mode {
                joined.guards.push(guard);
            }
        }
        self.submit(Task::Join(joined));
        self
    }

    /// The variable `name` as it is at this point of the program.
    pub fn var(&self, name: &str) -> Var {
        let var = self.vars.get(name).cloned();
        var.unwrap_or_else(|| Var::new(name, self.id, Source::Undefined))
    }

    /// Waits for the value of a variable as a `T`; see [`Var::get`].
    ///
    /// # Errors
    /// The variable is undefined, its statement failed, or its text is no `T`.
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        self.var(name).get().await
    }

    /// Waits for the text of a variable.
    ///
    /// # Errors
    /// The variable is undefined or a list, or its statement failed.
    pub async fn get_text(&self, name: &str) -> Result<String, Error> {
        self.var(name).text().await
    }

    /// Waits for the facts about a variable: token counts, and scores of choices.
    ///
    /// # Errors
    /// The variable is undefined, or its statement failed.
    pub async fn meta(&self, name: &str) -> Result<Meta, Error> {
        self.var(name).meta().await
    }

    /// The text of a variable while it is generated.
    pub fn stream(&self, name: &str) -> VarStream {
        self.var(name).stream()
    }

    /// The whole text piece by piece, up to the last statement submitted so far.
    pub fn text_stream(&self) -> TextStream {
        let progress = match &self.mode {
            Mode::Run { progress, .. } => Ok(progress.clone()),
            Mode::Trace(_) => Err(Error::Traced("text".to_owned())),
        };
        TextStream::new(progress, self.submitted)
    }

    fn snapshot(&mut self) -> Result<oneshot::Receiver<Result<Snapshot, Error>>, Error> {
        if let Mode::Trace(_) = self.mode {
            return Err(Error::Traced("text".to_owned()));
        }
        let (reply, snapshot) = oneshot::channel();
        self.submit(Task::Snapshot(reply));
        Ok(snapshot)
    }

    /// Waits for all statements submitted so far and returns the text. In a conversation it is the
    /// text of all messages, one after another.
    ///
    /// # Errors
    /// The error of the first statement that failed.
    pub async fn text(&mut self) -> Result<String, Error> {
        Ok(context(self.snapshot()).await?.text())
    }

    /// Waits for all statements submitted so far and returns the messages.
    ///
    /// # Errors
    /// The error of the first statement that failed.
    pub async fn messages(&mut self) -> Result<Vec<Message>, Error> {
        Ok(context(self.snapshot()).await?.messages())
    }

    /// A handle to the end of all statements submitted so far. It keeps them running when the state
    /// is dropped.
    pub fn ending(&mut self) -> Ending {
        let guard = match &self.mode {
            Mode::Run { guard, .. } => Some(Arc::clone(guard)),
            Mode::Trace(_) => None,
        };
        Ending {
            variables: self.own.iter().map(|name| self.var(name)).collect(),
            snapshot: self.snapshot(),
            _guard: guard,
        }
    }
}

impl<E: Into<Expr>> std::ops::AddAssign<E> for State {
    fn add_assign(&mut self, expr: E) {
        self.extend(expr);
    }
}

impl Recorder {
    pub(crate) fn into_graph(self) -> Graph {
        self.graph
    }
}
