//! The engine thread's loop.
//!
//! ```text
//! schedule ──▶ submit ──▶ overlap ──▶ complete ──▶ schedule ...
//!                 │          ▲            ▲
//!                 │          │ prepare    │ output
//!                 ▼          │ step n+1   │
//!              the device computes step n ┘
//! ```
//!
//! The device is idle only from `complete` to the next `submit`. Where step n+1 does not depend
//! on the output of step n, `overlap` submits it as well, and the device is never idle.

mod commands;
mod in_flight;
mod looks;

use std::sync::Arc;
use std::time::Instant;

use crate::batch::StepBatch;
use crate::cache_reports::CacheReports;
use crate::command::Look;
use crate::config::EngineConfig;
use crate::constraint::WaitBudget;
use crate::device::Device;
use crate::inbox::{Inbox, Mail, Phase, Wait};
use crate::kv::KvSizes;
use crate::reports::Reports;
use crate::scheduler::{DeviceIs, Scheduler};
use crate::speculation::DraftModel;
use crate::stats::EngineStats;
use in_flight::{CompletedStep, InFlight};

/// Everything that the engine thread owns.
pub(crate) struct EngineCore {
    in_flight: InFlight,
    scheduler: Scheduler,
    inbox: Arc<Inbox>,
    /// Steps completed.
    steps: u64,
    /// Whether all requests wait, including those that hold slots, until an operator resumes
    /// the engine.
    paused: bool,
    /// Whether the engine has nothing to compute until a caller ends a transfer of KV.
    awaits_transfers: bool,
    reports: Reports,
    cache_reports: CacheReports,
    /// Looks that have not been answered yet.
    looks: Vec<Look>,
}

impl EngineCore {
    pub fn new(
        config: EngineConfig,
        device: Device,
        draft_model: Option<Box<dyn DraftModel>>,
        inbox: Arc<Inbox>,
    ) -> Self {
        let mut scheduler = Scheduler::new(
            EngineConfig {
                max_submission: config.max_submission.filter(|_| device.has_watchdog),
                ..config
            },
            device.limits,
            KvSizes {
                slots: device.limits.kv_slots,
                window: device.window,
                host_slots: device.host_slots,
            },
            device.adapter_slots,
        );
        if let Some(model) = draft_model {
            scheduler.set_draft_model(model);
        }
        let mut core = Self {
            in_flight: InFlight::new(device),
            scheduler,
            inbox,
            steps: 0,
            paused: false,
            awaits_transfers: false,
            reports: Reports::default(),
            cache_reports: CacheReports::default(),
            looks: Vec::new(),
        };
        core.publish();
        core
    }

    /// Serves until the inbox is closed and all its requests have ended.
    pub fn serve(&mut self) {
        loop {
            let mail = self.inbox.collect(self.wait());
            let may_overlap = mail.phase == Phase::Open && !mail.commands_wait;
            if mail.step_completed {
                // Withdrawn requests leave with this step, even if another one is in flight.
                self.scheduler.withdraw(&mail.withdrawn, DeviceIs::Busy);
                self.complete();
            }
            let is_over = self.receive(mail);
            if is_over {
                return self.publish();
            }
            self.step(may_overlap);
        }
    }

    /// Keeps the device busy: schedules and submits a step if none is in flight, and overlaps it
    /// with other work. [`complete`](Self::complete) follows when the device is done.
    fn step(&mut self, may_overlap: bool) {
        if self.in_flight.is_empty() {
            if self.paused {
                return self.publish();
            }
            let started = Instant::now();
            match self.schedule() {
                Some(batch) => self.submit(batch, started),
                None => return self.await_others(),
            }
            self.awaits_transfers = false;
        }
        self.overlap(may_overlap);
    }

    /// The next step, for all requests that can use one. `None` if there is nothing to compute.
    fn schedule(&mut self) -> Option<StepBatch> {
        let mut batch = self.in_flight.take_spare().expect("no step is in flight");
        self.scheduler.schedule(&mut batch);
        if batch.is_empty() {
            self.in_flight.put_spare(batch);
            return None;
        }
        Some(batch)
    }

    fn submit(&mut self, batch: StepBatch, started: Instant) {
        self.in_flight.submit(batch, started);
        self.send_sample_requests(&mut WaitBudget::none(), false);
        if !self.in_flight.samples_on_device() {
            self.in_flight.notify();
        }
    }

    /// Works while the device is busy: finishes the step before, prepares the next one, and
    /// submits it if it does not depend on the output of the step in flight.
    fn overlap(&mut self, may_overlap: bool) {
        self.scheduler.prepare_next();
        self.publish();
        // Grammars that were late have had all of this time.
        self.send_sample_requests(&mut WaitBudget::for_next_row(), true);
        if may_overlap && self.in_flight.can_overlap() {
            self.submit_overlapping();
        }
        self.in_flight.notify();
    }

    /// Submits the step after the one in flight, if its batch can be made already.
    fn submit_overlapping(&mut self) {
        let started = Instant::now();
        let Some(mut batch) = self.in_flight.take_spare() else {
            return;
        };
        let before = self.in_flight.oldest_batch();
        match self.scheduler.overlap(before, &mut batch) {
            Some(sample_requests) => {
                self.in_flight.submit(batch, started);
                self.in_flight.send_sample_requests(sample_requests);
            }
            None => self.in_flight.put_spare(batch),
        }
    }

    /// Tells the executor, which is at the latest step, how to sample, unless it knows. With
    /// `must_answer`, this happens even if some grammars are late, because the executor waits.
    fn send_sample_requests(&mut self, budget: &mut WaitBudget, must_answer: bool) {
        let Some(batch) = self.in_flight.batch_without_sample_requests() else {
            return;
        };
        let requests = self.scheduler.sample_requests(batch, budget, must_answer);
        if let Some(requests) = requests {
            self.in_flight.send_sample_requests(requests);
        }
    }

    /// Completes the oldest step in flight, or all of them if the device is lost.
    fn complete(&mut self) {
        while self.complete_oldest() && !self.in_flight.is_empty() {}
    }

    /// Samples from the output of the oldest step, and does no more, because the device may be
    /// idle. Returns whether the device is lost.
    fn complete_oldest(&mut self) -> bool {
        let CompletedStep {
            mut batch,
            copied,
            mut output,
            lost,
            lost_here,
            started,
            submitted,
            completed,
        } = self.in_flight.complete();
        if let Err(error) = copied {
            self.scheduler.fail_copies(&mut batch, &error);
        }
        let sampled = output.as_mut().ok().map(|output| &mut output.sampled);
        self.scheduler.drop_ended_rows(&mut batch, sampled);
        let failed = lost || output.is_err();
        let took = completed.saturating_duration_since(submitted);
        match failed {
            false => self.scheduler.note_submission(&batch, took),
            true if lost_here => self.scheduler.note_loss(&batch, took),
            true => {}
        }
        match output {
            Ok(mut output) if !lost => self.scheduler.complete(&batch, &mut output, took),
            Err(error) if !lost => self.scheduler.fail(&batch, &error),
            Ok(_) => self.scheduler.lose_device(&batch, "the device is lost"),
            Err(error) => self.scheduler.lose_device(&batch, &error),
        }
        // Copies alone are not a step, and neither is a batch whose requests have all ended.
        if !batch.grants.is_empty() {
            self.steps += 1;
            let finished = match self.in_flight.is_empty() {
                true => Instant::now(),
                // The device is at the next step already, in whose time this sampling is.
                false => completed,
            };
            if !failed {
                let took = finished.saturating_duration_since(started);
                self.scheduler.note_time(&batch, took);
            }
            self.report(&batch, [started, submitted, completed, finished], failed);
        }
        self.in_flight.put_spare(batch);
        lost
    }

    /// What to wait for before the next turn of the loop.
    fn wait(&self) -> Wait {
        match self.in_flight.len() {
            0 if self.paused || self.awaits_transfers || self.scheduler.is_idle() => Wait::ForMail,
            0 => Wait::No,
            in_flight => Wait::ForStep { in_flight },
        }
    }

    /// Takes new requests in and, between two steps, carries out commands. Returns whether the
    /// engine is closed and has nothing left to do.
    fn receive(&mut self, mail: Mail) -> bool {
        self.looks.extend(mail.looks);
        self.scheduler.enqueue(mail.requests);
        // This also ends requests that arrived and were withdrawn in the same mail.
        let device = self.in_flight.device();
        self.scheduler.withdraw(&mail.withdrawn, device);
        if device == DeviceIs::Busy {
            return false;
        }
        for command in mail.commands {
            self.execute(command);
        }
        let Phase::Closing { deadline } = mail.phase else {
            return false;
        };
        // A paused engine would never end, because no operator can resume it any more.
        self.paused = false;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.scheduler.cancel_all();
        }
        self.scheduler.is_idle() && !mail.is_held
    }

    /// Notes the report of a step for the observer, if there is one.
    fn report(&mut self, batch: &StepBatch, times: [Instant; 4], failed: bool) {
        if self.reports.are_wanted() {
            let after = self.scheduler.step_counts();
            self.reports.add(batch, times, failed, after);
        }
    }

    /// There is nothing to compute: waits a moment for grammars, if requests wait for them.
    fn await_others(&mut self) {
        let awaits_grammars = self.scheduler.awaits_grammars();
        self.awaits_transfers = !awaits_grammars && self.scheduler.awaits_transfers();
        debug_assert!(
            awaits_grammars || self.awaits_transfers || self.scheduler.is_idle(),
            "a request that runs alone can always continue"
        );
        self.publish();
        if awaits_grammars {
            self.scheduler.await_grammars();
            self.publish();
        }
    }

    /// Sends the reports that are due, statistics and events. The statistics are published before the final
    /// events, so that a client that has seen its request end sees its slots returned.
    fn publish(&mut self) {
        self.scheduler.flush_step();
        match self.in_flight.is_empty() {
            true => self.reports.hand_over(),
            false => self.reports.hand_over_due(),
        }
        self.scheduler.report_cache(&mut self.cache_reports);
        let stats = EngineStats {
            paused: self.paused,
            ..self.scheduler.stats(self.steps)
        };
        self.inbox.publish(stats);
        self.answer_looks(stats);
        for (consumer, event) in self.scheduler.take_final_events() {
            // A consumer that is gone needs no final event.
            let _ = consumer.send(event);
        }
    }
}
