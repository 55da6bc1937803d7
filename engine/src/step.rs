//! The engine's inner loop: what the device computed is sampled, the next step is launched,
//! and all else is done while the device is at it. Where nothing depends on what comes of a
//! step, the one after it is launched, too, so that the device goes on at once.

mod commands;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use crate::batch::StepBatch;
use crate::config::EngineConfig;
use crate::constraint::Grace;
use crate::device::{Device, Landing, Order};
use crate::events::{StepObserver, StepReport};
use crate::executor::Choice;
use crate::inbox::{Inbox, Mail, Phase, Wait};
use crate::scheduler::Scheduler;
use crate::stats::EngineStats;

/// All that the engine thread owns.
pub(crate) struct Core {
    /// What the device is at: nothing, a step, or a step and the one after it. Dropped before
    /// the device is: that waits for its thread, which may wait for choices.
    flights: VecDeque<Flight>,
    /// Whether the device is to tell when it is done with the first of them.
    called: bool,
    device: Device,
    scheduler: Scheduler,
    /// Batches that the device is not at; there are two.
    spare: Vec<StepBatch>,
    /// When it was done with the step before.
    landed: Instant,
    inbox: Arc<Inbox>,
    steps: u64,
    /// Whether requests wait, those that hold slots too, until somebody resumes.
    paused: bool,
    observer: Option<StepObserver>,
    /// As the observer knows it.
    told: EngineStats,
    /// Of what landed last, until there is time to tell of it.
    reports: Vec<StepReport>,
}

struct Flight {
    /// The device has its `forward`.
    batch: StepBatch,
    /// When its step began.
    started: Instant,
    /// When the device got it.
    scheduled: Instant,
    /// Where the device takes what is wanted at the rows where it chooses.
    choices: Sender<Vec<Choice>>,
}

impl Core {
    pub fn new(config: EngineConfig, device: Device, inbox: Arc<Inbox>) -> Self {
        let executor_chooses = device.chooses;
        let scheduler = Scheduler::new(config, device.limits, device.host_slots);
        let batch = |table| StepBatch::new(executor_chooses, table);
        let mut core = Self {
            flights: VecDeque::new(),
            called: false,
            device,
            scheduler,
            // The first is enough where no step is launched ahead.
            spare: vec![batch(1), batch(0)],
            landed: Instant::now(),
            inbox,
            steps: 0,
            paused: false,
            observer: None,
            told: EngineStats::default(),
            reports: Vec::new(),
        };
        core.publish();
        core
    }

    /// Serves until the inbox is closed and what it gave is done.
    pub fn serve(&mut self) {
        loop {
            let mail = self.inbox.collect(match self.flights.len() {
                0 if self.paused || self.scheduler.is_idle() => Wait::ForMail,
                0 => Wait::Not,
                of => Wait::ForLanding { of },
            });
            if mail.landed {
                // Who wants no more by now leaves with it, also where the device goes on.
                self.scheduler.withdraw(&mail.withdrawn);
                self.land();
            }
            let goes_on = goes_on(&mail);
            self.scheduler.enqueue(mail.submitted);
            // Those, too, who came and went since the last look.
            self.scheduler.withdraw(&mail.withdrawn);
            if !self.flights.is_empty() {
                self.prepare();
                self.call(goes_on);
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
                self.step(goes_on);
            }
        }
    }

    /// Launches one forward of the model, for all requests that can use one. What is left to
    /// do of the step before is done while it runs, and what can be of the next one; it is
    /// launched, too, if it can be and the engine `goes_on` to it.
    fn step(&mut self, goes_on: bool) {
        let started = Instant::now();
        let mut batch = self.spare.pop().expect("the device is at nothing");
        self.scheduler.schedule(&mut batch);
        if batch.asks_for_nothing() {
            self.spare.push(batch);
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
        self.launch(batch, started);
        let chosen = self.choose(&mut Grace::none(), false);
        if !self.device.chooses {
            self.call(false);
        }
        self.prepare();
        if !chosen {
            // The masks that were not there yet have had all of this time.
            self.choose(&mut Grace::to_follow(), true);
        }
        self.call(goes_on);
    }

    fn launch(&mut self, mut batch: StepBatch, started: Instant) {
        let (choices, taken) = channel();
        self.device.launch(Order {
            copies: std::mem::take(&mut batch.copies),
            forward: std::mem::take(&mut batch.forward),
            choices: taken,
        });
        self.flights.push_back(Flight {
            batch,
            started,
            scheduled: self.scheduler.scheduled_at(),
            choices,
        });
    }

    /// Tells the device, which is at the forward, what is wanted at the rows where it chooses,
    /// if all of it is known; `finally` something is in any case, as the device waits for it.
    /// Returns whether it was told.
    fn choose(&mut self, grace: &mut Grace, finally: bool) -> bool {
        let Some(flight) = self.flights.back_mut() else {
            return false;
        };
        let choices = self.scheduler.choices(&mut flight.batch, grace, finally);
        if let Some(choices) = choices {
            // A device that is gone, or failed before it asked, wants none.
            let _ = flight.choices.send(choices);
            return true;
        }
        false
    }

    /// Has the device tell when it is done with what it is at. Before that it gets the step
    /// after, if the engine `goes_on` to it whatever comes of this one.
    fn call(&mut self, goes_on: bool) {
        if self.called {
            return;
        }
        if goes_on && self.device.chooses {
            self.run_ahead();
        }
        self.device.call();
        self.called = true;
    }

    fn run_ahead(&mut self) {
        let started = Instant::now();
        let Some(mut batch) = self.spare.pop() else {
            return;
        };
        let before = &self.flights[0].batch;
        match self.scheduler.follow(before, &mut batch) {
            Some(choices) => {
                self.launch(batch, started);
                let _ = self.flights[1].choices.send(choices);
            }
            None => self.spare.push(batch),
        }
    }

    /// The device is done with the first step that it was at, or is lost, and all are.
    fn land(&mut self) {
        self.called = false;
        while self.take_in() && !self.flights.is_empty() {}
    }

    /// Samples from what the device computed, and no more, as it may wait. Returns whether it
    /// is lost.
    fn take_in(&mut self) -> bool {
        let Landing {
            copied,
            logits,
            lost,
            order,
            at,
        } = self.device.land();
        let flight = self.flights.pop_front().expect("what lands was launched");
        let Flight {
            mut batch,
            started,
            scheduled,
            ..
        } = flight;
        Order {
            copies: batch.copies,
            forward: batch.forward,
            ..
        } = order;
        // The device was at the step before.
        let [started, scheduled] = [started, scheduled].map(|time| time.max(self.landed));
        self.landed = at;
        if let Err(error) = copied {
            self.scheduler.fail_copies(&mut batch, &error);
        }
        self.scheduler
            .landed(at.saturating_duration_since(scheduled));
        let failed = lost || logits.is_err();
        let mut logits = logits;
        let chosen = logits.as_mut().ok().map(|logits| &mut logits.chosen);
        self.scheduler.leave_out(&mut batch, chosen);
        match logits {
            Ok(mut logits) if !lost => self.scheduler.advance(&batch, &mut logits),
            Err(error) if !lost => self.scheduler.fail(&batch, &error),
            Ok(_) => self.scheduler.lose_device(&batch, "the device is lost"),
            Err(error) => self.scheduler.lose_device(&batch, &error),
        }
        // Copies alone are no step, nor is what nobody waits for any more.
        if !batch.grants.is_empty() {
            self.steps += 1;
            // Else the device goes on, and this time is the next step's.
            let finished = match self.flights.is_empty() {
                true => Instant::now(),
                false => at,
            };
            self.report(&batch, [started, scheduled, at, finished], failed);
        }
        self.spare.push(batch);
        lost
    }

    /// Notes what is to be told of a step, where somebody observes the engine.
    fn report(&mut self, batch: &StepBatch, times: [Instant; 4], failed: bool) {
        let Some(observer) = &self.observer else {
            return;
        };
        let shares = batch.grants.iter().map(|grant| (grant.id, grant.tokens));
        let after = self.scheduler.stats(self.steps);
        let before = std::mem::replace(&mut self.told, after);
        let with_requests = observer.requests;
        let report = StepReport::finish(times, shares, with_requests, failed, [before, after]);
        self.reports.push(report);
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
        for report in self.reports.drain(..) {
            if let Some(observer) = &mut self.observer {
                (observer.observe)(report);
            }
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

/// Whether nobody wants the engine to stop after the step that it is at.
fn goes_on(mail: &Mail) -> bool {
    mail.phase == Phase::Open && !mail.commands_wait
}
