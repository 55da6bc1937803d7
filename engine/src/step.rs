//! The engine's inner loop: what the device computed is sampled, the next step is launched,
//! and all else is done while the device is at it.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use crate::batch::StepBatch;
use crate::command::{CacheInUse, Command, PauseMode};
use crate::config::EngineConfig;
use crate::constraint::Grace;
use crate::device::{Device, Landing, Order};
use crate::events::{StepObserver, StepReport};
use crate::executor::Choice;
use crate::inbox::{Inbox, Phase, Wait};
use crate::scheduler::Scheduler;
use crate::stats::EngineStats;

/// All that the engine thread owns.
pub(crate) struct Core {
    /// The device is at `batch`, whose `forward` it has. Dropped before the device is: that
    /// waits for its thread, which may wait for choices.
    flight: Option<Flight>,
    device: Device,
    scheduler: Scheduler,
    batch: StepBatch,
    inbox: Arc<Inbox>,
    steps: u64,
    /// Whether requests wait, those that hold slots too, until somebody resumes.
    paused: bool,
    observer: Option<StepObserver>,
    /// As the observer knows it.
    told: EngineStats,
    /// Of the step that landed last, until there is time to tell of it.
    report: Option<StepReport>,
}

struct Flight {
    /// When its step began, where somebody observes the engine.
    started: Option<Instant>,
    /// Where the device takes what is wanted at the rows where it chooses.
    choices: Sender<Vec<Choice>>,
}

impl Core {
    pub fn new(config: EngineConfig, device: Device, inbox: Arc<Inbox>) -> Self {
        let executor_chooses = device.chooses;
        let scheduler = Scheduler::new(config, device.limits, device.host_slots);
        let mut core = Self {
            flight: None,
            device,
            scheduler,
            batch: StepBatch::new(executor_chooses),
            inbox,
            steps: 0,
            paused: false,
            observer: None,
            told: EngineStats::default(),
            report: None,
        };
        core.publish();
        core
    }

    /// Serves until the inbox is closed and what it gave is done.
    pub fn serve(&mut self) {
        loop {
            let mail = self.inbox.collect(match self.flight {
                Some(_) => Wait::ForLanding,
                None if self.paused || self.scheduler.is_idle() => Wait::ForMail,
                None => Wait::Not,
            });
            if mail.landed {
                self.land();
            }
            self.scheduler.enqueue(mail.submitted);
            self.scheduler.withdraw(mail.withdrawn);
            if self.flight.is_some() {
                self.prepare();
                continue;
            }
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

    /// Carries out `command` between two steps; the statistics show it when its reply comes.
    fn obey(&mut self, command: Command) {
        self.scheduler.settle();
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
            Command::Observe(observer) => {
                self.told = self.scheduler.stats(self.steps);
                self.observer = Some(observer);
            }
        }
    }

    /// Launches one forward of the model, for all requests that can use one. What is left to
    /// do of the step before is done while it runs, and what can be of the next one.
    fn step(&mut self) {
        let started = self.observer.is_some().then(Instant::now);
        self.scheduler.schedule(&mut self.batch);
        if self.batch.asks_for_nothing() {
            let waits = self.scheduler.waits_for_grammars();
            debug_assert!(
                waits || self.scheduler.is_idle(),
                "whoever waits alone gets on"
            );
            self.publish();
            if waits {
                self.scheduler.await_grammars();
                self.publish();
            }
            return;
        }
        self.launch(started);
        let chosen = self.choose(&mut Grace::none(), false);
        self.prepare();
        if !chosen {
            // The masks that were not there yet have had all of this time.
            self.choose(&mut Grace::to_follow(), true);
        }
    }

    fn launch(&mut self, started: Option<Instant>) {
        let (choices, taken) = channel();
        self.device.launch(Order {
            copies: std::mem::take(&mut self.batch.copies),
            forward: std::mem::take(&mut self.batch.forward),
            choices: taken,
        });
        self.flight = Some(Flight { started, choices });
    }

    /// Tells the device, which is at the forward, what is wanted at the rows where it chooses,
    /// if all of it is known; `finally` something is in any case, as the device waits for it.
    /// Returns whether it was told.
    fn choose(&mut self, grace: &mut Grace, finally: bool) -> bool {
        let choices = self.scheduler.choices(&mut self.batch, grace, finally);
        if let (Some(choices), Some(flight)) = (choices, &self.flight) {
            // A device that is gone, or failed before it asked, wants none.
            let _ = flight.choices.send(choices);
            return true;
        }
        false
    }

    /// The device is done: samples from what it computed, and no more, as it waits.
    fn land(&mut self) {
        let Landing {
            copied,
            logits,
            lost,
            order,
            at,
        } = self.device.land();
        let flight = self.flight.take();
        Order {
            copies: self.batch.copies,
            forward: self.batch.forward,
            ..
        } = order;
        if let Err(error) = copied {
            self.scheduler.fail_copies(&mut self.batch, &error);
        }
        self.scheduler.landed(at);
        let failed = lost || logits.is_err();
        match logits {
            Ok(mut logits) if !lost => self.scheduler.advance(&self.batch, &mut logits),
            Err(error) if !lost => self.scheduler.fail(&self.batch, &error),
            Ok(_) => self
                .scheduler
                .lose_device(&self.batch, "the device is lost"),
            Err(error) => self.scheduler.lose_device(&self.batch, &error),
        }
        if self.batch.grants.is_empty() {
            // Copies alone are no step.
            return;
        }
        self.steps += 1;
        let started = flight.and_then(|flight| flight.started);
        if let (Some(started), Some(observer)) = (started, &self.observer) {
            let times = [started, self.scheduler.scheduled_at(), at];
            let grants = self.batch.grants.iter();
            let shares = grants.map(|grant| (grant.id, grant.tokens));
            let after = self.scheduler.stats(self.steps);
            let before = std::mem::replace(&mut self.told, after);
            let with_requests = observer.requests;
            let report = StepReport::finish(times, shares, with_requests, failed, [before, after]);
            self.report = Some(report);
        }
    }

    /// Works while the device does: on what is left of the step before, and on the next.
    fn prepare(&mut self) {
        self.scheduler.look_ahead();
        self.publish();
    }

    /// Tells all that is left to tell. Statistics before last events, so that whoever has
    /// seen a request end sees its slots returned.
    fn publish(&mut self) {
        self.scheduler.settle();
        if let (Some(report), Some(observer)) = (self.report.take(), &mut self.observer) {
            (observer.observe)(report);
        }
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
