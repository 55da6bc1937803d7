//! The engine's inner loop: schedule, run, take in, publish.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use hearth_radix::KvCopy;

use crate::batch::StepBatch;
use crate::command::{CacheInUse, Command, PauseMode};
use crate::config::EngineConfig;
use crate::events::{StepObserver, StepWatch};
use crate::executor::{Executor, ForwardBatch, Logits};
use crate::inbox::{Inbox, Phase};
use crate::scheduler::Scheduler;
use crate::stats::EngineStats;

/// All that the engine thread owns.
pub(crate) struct Core<E> {
    executor: E,
    scheduler: Scheduler,
    batch: StepBatch,
    inbox: Arc<Inbox>,
    steps: u64,
    /// Whether requests wait, those that hold slots too, until somebody resumes.
    paused: bool,
    observer: Option<StepObserver>,
}

impl<E: Executor> Core<E> {
    pub fn new(config: EngineConfig, executor: E, inbox: Arc<Inbox>) -> Self {
        let scheduler = Scheduler::new(config, executor.limits(), executor.host_slots());
        let mut core = Self {
            executor,
            scheduler,
            batch: StepBatch::default(),
            inbox,
            steps: 0,
            paused: false,
            observer: None,
        };
        core.publish();
        core
    }

    /// Serves until the inbox is closed and what it gave is done.
    pub fn serve(&mut self) {
        loop {
            let mail = self.inbox.collect(self.paused || self.scheduler.is_idle());
            self.scheduler.enqueue(mail.submitted);
            self.scheduler.withdraw(mail.withdrawn);
            mail.commands.into_iter().for_each(|c| self.obey(c));
            if let Phase::Closing { deadline } = mail.phase {
                // Nobody could resume what then never ends.
                self.paused = false;
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    self.scheduler.cancel_all();
                }
                if self.scheduler.is_idle() {
                    return self.publish();
                }
            }
            if self.paused {
                self.publish();
            } else {
                self.step();
            }
        }
    }

    /// Carries out `command`; the statistics show it when its reply comes.
    fn obey(&mut self, command: Command) {
        // Whoever asked may be gone; what was asked for is done all the same.
        match command {
            Command::Abort {
                target,
                before,
                reply,
            } => {
                let ended = self.scheduler.abort(&target, before);
                self.publish();
                let _ = reply.send(ended);
            }
            Command::FlushCache(reply) => {
                let flushed = match self.scheduler.running() {
                    0 => Ok(self.scheduler.flush_cache()),
                    running => Err(CacheInUse { running }),
                };
                self.publish();
                let _ = reply.send(flushed);
            }
            Command::Pause(mode, reply) => {
                match mode {
                    PauseMode::Abort => self.scheduler.abort_all(),
                    PauseMode::InPlace => {}
                    PauseMode::Retract => self.scheduler.retract_all(),
                }
                self.paused = true;
                self.publish();
                let _ = reply.send(());
            }
            Command::Resume(reply) => {
                self.paused = false;
                self.publish();
                let _ = reply.send(());
            }
            Command::Observe(observer) => self.observer = Some(observer),
        }
    }

    /// One forward of the model, for all requests that can use one.
    fn step(&mut self) {
        let mut watch = self.watch();
        self.scheduler.schedule(&mut self.batch);
        if let Some(watch) = &mut watch {
            watch.scheduled();
        }
        self.publish();
        let nothing = self.batch.is_empty();
        if let Err(error) = copy(&mut self.executor, &self.batch.copies) {
            self.scheduler.fail_copies(&mut self.batch, &error);
        }
        if self.batch.grants.is_empty() {
            // Asked before anything more is heard: by then nobody need be late.
            let waits = self.scheduler.waits_for_grammars();
            let mut no_logits = Logits::none(self.executor.limits());
            self.scheduler.advance(&self.batch, &mut no_logits);
            if nothing && waits {
                self.scheduler.await_grammars();
            } else if nothing {
                debug_assert!(self.scheduler.is_idle(), "whoever waits alone gets on");
            }
            return self.publish();
        }
        let computed = forward(&mut self.executor, &self.batch.forward);
        if let Some(watch) = &mut watch {
            watch.forwarded();
        }
        let failed = computed.is_err();
        match computed {
            Ok(mut logits) => self.scheduler.advance(&self.batch, &mut logits),
            Err(error) => self.scheduler.fail(&self.batch, &error),
        }
        self.steps += 1;
        self.report(watch, failed);
        self.publish();
    }

    /// Watches a step, where somebody observes the engine.
    fn watch(&mut self) -> Option<StepWatch> {
        self.observer.as_ref()?;
        Some(StepWatch::start(self.scheduler.stats(self.steps)))
    }

    fn report(&mut self, watch: Option<StepWatch>, failed: bool) {
        if let (Some(watch), Some(StepObserver(observe))) = (watch, &mut self.observer) {
            let grants = self
                .batch
                .grants
                .iter()
                .map(|grant| (grant.id, grant.tokens));
            let after = self.scheduler.stats(self.steps);
            observe(watch.finish(grants, failed, after));
        }
    }

    /// Statistics first, so that whoever has seen a request end sees its slots
    /// returned.
    fn publish(&mut self) {
        let stats = EngineStats {
            paused: self.paused,
            ..self.scheduler.stats(self.steps)
        };
        self.inbox.publish(stats);
        for (consumer, event) in self.scheduler.take_farewells() {
            // A consumer that is gone wants no farewell.
            let _ = consumer.send(event);
        }
    }
}

/// Copies between device and host; a panic is an error like others.
fn copy(executor: &mut impl Executor, copies: &[KvCopy]) -> Result<(), String> {
    let copy = || copies.iter().try_for_each(|copy| executor.copy(copy));
    let copied = catch_unwind(AssertUnwindSafe(copy))
        .map_err(|panic| format!("the model panicked: {}", panic_text(&*panic)))
        .and_then(|result| result.map_err(|error| error.to_string()));
    copied.inspect_err(|error| tracing::error!("copying KV failed: {error}"))
}

/// Runs `batch`; a panic is an error like others, as drivers panic where they
/// should return one, and a wrong shape is caught before anybody reads it.
fn forward(executor: &mut impl Executor, batch: &ForwardBatch) -> Result<Logits, String> {
    let vocab = executor.limits().vocab_size;
    let logits = catch_unwind(AssertUnwindSafe(|| executor.forward(batch)))
        .map_err(|panic| format!("the model panicked: {}", panic_text(&*panic)))
        .and_then(|result| result.map_err(|error| error.to_string()));
    let logits = logits.and_then(|logits| {
        let (given, rows) = (logits.values.len(), batch.logit_rows.len());
        if logits.vocab != vocab || given != rows * vocab {
            let width = logits.vocab;
            return Err(format!(
                "the model gave {given} logits, {width} a row, for {rows} rows of {vocab}"
            ));
        }
        let (given, rows) = (logits.hidden.len(), batch.hidden_rows.len());
        if (rows == 0) != (given == 0) || (rows > 0 && !given.is_multiple_of(rows)) {
            return Err(format!(
                "the model gave {given} values of hidden states for {rows} rows"
            ));
        }
        Ok(logits)
    });
    logits.inspect_err(|error| {
        let (requests, tokens) = (batch.sequences.len(), batch.tokens.len());
        tracing::error!(requests, tokens, "forward failed: {error}");
    })
}

/// What a panic said, as far as it said it in words.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}
