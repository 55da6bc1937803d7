//! The task of a state, which runs its statements one after another.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::lang::backend::{Backend, Call, Completion};
use crate::lang::cell::{Cell, Meta, OutputMeta, Setter, Value};
use crate::lang::context::{Context, Place};
use crate::lang::error::Error;
use crate::lang::op::{Generation, Join, Selection};
use crate::lang::read::Progress;
use crate::lang::speculation::Speculation;
use crate::message::Role;

/// A statement with the cells that it reads and writes.
#[derive(Debug)]
pub enum Task {
    Text(Vec<Part>),
    Generate(Box<Generation>, Setter),
    Select(Selection, Setter),
    Begin(Role),
    End,
    Scope(Setter),
    EndScope,
    Fork(Vec<oneshot::Sender<Start>>),
    Join(Joined),
    Image,
    /// Tells the text so far.
    Snapshot(oneshot::Sender<Result<Snapshot, Error>>),
}

#[derive(Debug)]
pub enum Part {
    Text(String),
    /// The value of a variable, or why there is none.
    Var(String, Result<Cell, Error>),
}

/// The state that a fork begins with, or the error of its parent.
pub type Start = Result<(Context, Speculation), Error>;

#[derive(Debug)]
pub struct Snapshot {
    pub context: Context,
    /// Where the state began.
    pub from: Place,
}

/// The forks that are joined.
#[derive(Debug)]
pub struct Joined {
    pub mode: Join,
    pub ends: Vec<oneshot::Receiver<Result<Snapshot, Error>>>,
    /// For each variable its setter, and the cells of the forks.
    pub variables: Vec<(Setter, Vec<Result<Cell, Error>>)>,
    /// The tasks of the forks, which are stopped when the join has ended.
    pub guards: Vec<Arc<Guard>>,
}

/// Stops a task when the last copy is dropped.
#[derive(Debug)]
pub struct Guard(AbortHandle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The messages of a state to its task.
pub struct Setup {
    pub backend: Arc<dyn Backend>,
    pub stream: bool,
    /// Most bytes of the text.
    pub text_limit: usize,
    pub speculation: Speculation,
    /// For a fork: where it gets its beginning from, and the parent, which must live until then.
    pub parent: Option<(oneshot::Receiver<Start>, Arc<Guard>)>,
}

/// Starts the task of a state. It ends when `queue` is closed and empty, or its guard is dropped.
pub fn start(
    setup: Setup,
    queue: mpsc::UnboundedReceiver<Task>,
) -> (Arc<Guard>, watch::Receiver<Progress>) {
    let (progress, reader) = watch::channel(Progress::default());
    let task = tokio::spawn(run(setup, queue, progress));
    (Arc::new(Guard(task.abort_handle())), reader)
}

async fn run(
    setup: Setup,
    mut queue: mpsc::UnboundedReceiver<Task>,
    progress: watch::Sender<Progress>,
) {
    let mut executor = Executor {
        backend: setup.backend,
        stream: setup.stream,
        text_limit: setup.text_limit,
        speculation: setup.speculation,
        context: Context::default(),
        from: Place::default(),
        cached: true,
        scopes: Vec::new(),
        progress,
    };
    let mut failed = None;
    if let Some((start, parent)) = setup.parent {
        match start.await.unwrap_or(Err(Error::Cancelled)) {
            Ok((context, speculation)) => executor.begin(context, speculation),
            Err(error) => failed = Some(executor.fail(error)),
        }
        drop(parent);
    }
    while let Some(task) = queue.recv().await {
        let ended = match &failed {
            None => executor.step(task).await,
            Some(error) => {
                refuse(task, error);
                Ok(())
            }
        };
        if let Err(error) = ended {
            failed = Some(executor.fail(error));
        }
        executor.progress.send_modify(|progress| progress.done += 1);
    }
}

/// Gives the error of the state to whatever waits for `task`.
fn refuse(task: Task, error: &Error) {
    match task {
        Task::Text(_) | Task::Begin(_) | Task::End | Task::EndScope | Task::Image => {}
        Task::Generate(_, setter) | Task::Select(_, setter) | Task::Scope(setter) => {
            setter.fail(error.clone());
        }
        Task::Fork(starts) => {
            for start in starts {
                // A fork that was dropped needs no beginning.
                let _ = start.send(Err(error.clone()));
            }
        }
        Task::Join(joined) => {
            for (setter, _) in joined.variables {
                setter.fail(error.clone());
            }
        }
        Task::Snapshot(reply) => {
            let _ = reply.send(Err(error.clone()));
        }
    }
}

struct Executor {
    backend: Arc<dyn Backend>,
    stream: bool,
    text_limit: usize,
    speculation: Speculation,
    context: Context,
    /// Where the state began.
    from: Place,
    /// True if a request has had all of the text, so that a prefix cache has it.
    cached: bool,
    scopes: Vec<(Setter, Place)>,
    progress: watch::Sender<Progress>,
}

impl Executor {
    fn begin(&mut self, context: Context, speculation: Speculation) {
        self.from = context.place();
        let text = context.text();
        self.progress.send_modify(|progress| progress.text = text);
        (self.context, self.speculation) = (context, speculation);
    }

    /// Notes that the state failed.
    fn fail(&mut self, error: Error) -> Error {
        for (setter, _) in self.scopes.drain(..) {
            setter.fail(error.clone());
        }
        let noted = error.clone();
        self.progress
            .send_modify(|progress| progress.error = Some(noted));
        error
    }

    async fn step(&mut self, task: Task) -> Result<(), Error> {
        match task {
            Task::Text(parts) => self.text(parts).await,
            Task::Generate(generation, setter) => self.generate(*generation, setter).await,
            Task::Select(selection, setter) => match self.select(selection).await {
                Ok((text, meta)) => {
                    setter.set(Value::Text(text), meta);
                    Ok(())
                }
                Err(error) => {
                    setter.fail(error.clone());
                    Err(error)
                }
            },
            Task::Begin(role) => {
                self.speculation.clear();
                self.context.begin(role)
            }
            Task::End => {
                self.speculation.clear();
                self.context.end()
            }
            Task::Scope(setter) => {
                self.scopes.push((setter, self.context.place()));
                Ok(())
            }
            Task::EndScope => {
                if let Some((setter, place)) = self.scopes.pop() {
                    let text = self.context.text_after(place);
                    setter.set(Value::Text(text), Meta::default());
                }
                Ok(())
            }
            Task::Fork(starts) => {
                self.fork(starts).await;
                Ok(())
            }
            Task::Join(joined) => self.join(joined).await,
            Task::Image => Err(self.backend.lacks("images")),
            Task::Snapshot(reply) => {
                // Nobody waits any more if the receiver is gone.
                let _ = reply.send(Ok(Snapshot {
                    context: self.context.clone(),
                    from: self.from,
                }));
                Ok(())
            }
        }
    }

    async fn text(&mut self, parts: Vec<Part>) -> Result<(), Error> {
        for part in parts {
            match part {
                Part::Text(text) => self.push(&text)?,
                Part::Var(name, cell) => match cell?.outcome().await?.value {
                    Value::Text(text) => self.push(&text)?,
                    Value::List(_) => {
                        return Err(Error::WrongType {
                            name,
                            wanted: "a text",
                            reason: "it is a list".to_owned(),
                        });
                    }
                },
            }
        }
        Ok(())
    }

    /// Adds text that the program knows.
    fn push(&mut self, text: &str) -> Result<(), Error> {
        self.check_room(self.context.bytes() + text.len())?;
        self.context.push(text)?;
        self.speculation.push(text);
        self.cached &= text.is_empty();
        self.progress
            .send_modify(|progress| progress.text.push_str(text));
        Ok(())
    }

    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let most = self.text_limit;
        if bytes <= most {
            return Ok(());
        }
        let message = format!("the text of a state must be at most {most} bytes, got {bytes}");
        Err(Error::Misuse(message))
    }

    async fn generate(&mut self, generation: Generation, setter: Setter) -> Result<(), Error> {
        match self.generated(generation, &setter).await {
            Ok((value, meta)) => {
                setter.set(value, meta);
                Ok(())
            }
            Err(error) => {
                setter.fail(error.clone());
                Err(error)
            }
        }
    }

    async fn generated(
        &mut self,
        generation: Generation,
        setter: &Setter,
    ) -> Result<(Value, Meta), Error> {
        let (n, logprobs) = (generation.n.unwrap_or(1), generation.logprobs);
        if n == 0 {
            return Err(Error::Misuse("`n` must be at least 1, got 0".to_owned()));
        }
        let call = Call {
            prompt: self.context.prompt()?,
            sampling: generation.sampling,
            format: generation.format,
            n,
            logprobs,
            stream: self.stream && n == 1 && logprobs.is_none(),
            tokens: false,
        };
        let progress = &self.progress;
        let mut shown = 0;
        let mut sink = |text: &str| {
            shown += text.len();
            setter.push(text);
            progress.send_modify(|progress| progress.text.push_str(text));
        };
        let backend = &*self.backend;
        let (whole, speculated) = self.speculation.generate(backend, call, &mut sink).await?;
        let given = whole.others.len() + 1;
        if given != n as usize {
            let message = format!("the back end gave {given} outputs, not {n}");
            return Err(Error::Transport(message));
        }
        self.context.push(&whole.text)?;
        self.cached = true;
        let rest = whole.text.get(shown..).unwrap_or_default();
        self.progress
            .send_modify(|progress| progress.text.push_str(rest));
        let meta = Meta {
            usage: whole.usage,
            finish: Some(whole.finish),
            speculated,
            scores: Vec::new(),
            outputs: match (n, logprobs) {
                (1, None) => Vec::new(),
                _ => outputs(&whole),
            },
        };
        let others = whole.others.into_iter().map(|output| output.text);
        let value = match n {
            1 => Value::Text(whole.text),
            _ => {
                let texts = std::iter::once(whole.text).chain(others);
                Value::List(texts.map(|text| Ok(Value::Text(text))).collect())
            }
        };
        Ok((value, meta))
    }

    async fn select(&mut self, selection: Selection) -> Result<(String, Meta), Error> {
        check_choices(&selection)?;
        let prompt = self.context.prompt()?;
        let unconditional = selection.method.is_unconditional();
        let scored = self
            .backend
            .score(&prompt, &selection.choices, unconditional)
            .await?;
        let (scores, best) = selection.method.best(&scored.choices);
        let Some(choice) = selection.choices.get(best) else {
            return Err(Error::Misuse("`choices` must not be empty".to_owned()));
        };
        self.push(choice)?;
        self.cached = true;
        let meta = Meta {
            usage: scored.usage,
            scores,
            ..Meta::default()
        };
        Ok((choice.clone(), meta))
    }

    async fn fork(&mut self, starts: Vec<oneshot::Sender<Start>>) {
        if starts.len() > 1 && !self.cached && !self.context.is_empty() {
            // This only saves time. An error comes again with the first request of a fork.
            let _ = self.backend.cache(&self.context.whole()).await;
            self.cached = true;
        }
        let shared = starts.len() > 1;
        for start in starts {
            let speculation = match shared {
                true => self.speculation.fork(),
                false => self.speculation.clone(),
            };
            // A fork that was dropped needs no beginning.
            let _ = start.send(Ok((self.context.clone(), speculation)));
        }
    }

    async fn join(&mut self, joined: Joined) -> Result<(), Error> {
        let mut ends = Vec::new();
        for end in joined.ends {
            ends.push(end.await.unwrap_or(Err(Error::Cancelled)));
        }
        for (setter, cells) in joined.variables {
            let mut values = Vec::new();
            for cell in cells {
                values.push(match cell {
                    Ok(cell) => cell.outcome().await.map(|outcome| outcome.value),
                    Err(error) => Err(error),
                });
            }
            setter.set(Value::List(values), Meta::default());
        }
        if joined.mode == Join::Concatenate {
            for end in ends {
                let Snapshot { context, from } = end?;
                let more = context.bytes().saturating_sub(from.bytes_before());
                self.check_room(self.context.bytes() + more)?;
                self.context.append(&context, from)?;
            }
            self.speculation.clear();
            self.cached = false;
            let text = self.context.text();
            self.progress.send_modify(|progress| progress.text = text);
        }
        Ok(())
    }
}

/// The facts about each output.
fn outputs(whole: &Completion) -> Vec<OutputMeta> {
    let first = OutputMeta {
        finish: whole.finish,
        logprobs: whole.logprobs.clone(),
    };
    let others = whole.others.iter().map(|output| OutputMeta {
        finish: output.finish,
        logprobs: output.logprobs.clone(),
    });
    std::iter::once(first).chain(others).collect()
}

/// Refuses choices that cannot be compared.
fn check_choices(selection: &Selection) -> Result<(), Error> {
    if selection.choices.is_empty() || selection.choices.iter().any(String::is_empty) {
        let message = "the choices of a selection must be at least one text, none of them empty";
        return Err(Error::Misuse(message.to_owned()));
    }
    let distinct: BTreeSet<&String> = selection.choices.iter().collect();
    if distinct.len() < selection.choices.len() {
        let message = "the choices of a selection must differ from each other";
        return Err(Error::Misuse(message.to_owned()));
    }
    Ok(())
}
