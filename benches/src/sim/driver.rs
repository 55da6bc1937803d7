//! The clients: they send a call when the call before it has been answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hearth_engine::{
    EngineHandle, Event, Generation, PauseMode, Request, SamplingParams, SubmitError,
};

use super::workload::{Call, Workload};

/// An answered call.
#[derive(Clone, Debug)]
pub struct Answered {
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
}

struct Open {
    session: usize,
    generation: Generation,
    prompt: Vec<u32>,
    output: Vec<u32>,
    answered: bool,
    next: Vec<Call>,
}

/// The session of a call, the tokens that the call continues from, and the call.
type Next = (usize, Vec<u32>, Call);

struct Driver {
    engine: Option<EngineHandle>,
    waiting: VecDeque<Call>,
    concurrent: usize,
    /// Calls sent so far.
    sent: u64,
    open: Vec<Open>,
    /// The number of unanswered calls of each started session.
    open_of: Vec<usize>,
    answered: Vec<Answered>,
}

/// Advanced by the device thread in every step, and by the caller's thread when the engine is idle.
#[derive(Clone)]
pub struct SharedDriver(Arc<Mutex<Driver>>);

impl Driver {
    /// Begins sessions up to the concurrent number. Sessions with an open call count, and so do
    /// the sessions of `next`, which are about to have one.
    fn begin_sessions(&mut self, next: &mut Vec<Next>) {
        let is_live =
            |session: &usize| self.open_of[*session] > 0 || next.iter().any(|n| n.0 == *session);
        let live = (0..self.open_of.len()).filter(is_live).count();
        for call in self
            .waiting
            .drain(..(self.concurrent - live).min(self.waiting.len()))
        {
            next.push((self.open_of.len(), Vec::new(), call));
            self.open_of.push(0);
        }
    }

    /// Sends all calls of `next` together.
    fn send(&mut self, next: Vec<Next>) -> Result<(), SubmitError> {
        let Some(engine) = &self.engine else {
            return Ok(());
        };
        let request = |(_, before, call): &Next| Request {
            prompt: [&before[..], &call.suffix].concat(),
            params: SamplingParams {
                max_tokens: call.output,
                temperature: 0.0,
                ..SamplingParams::default()
            },
            ..Request::default()
        };
        let generations = engine.submit_all(next.iter().map(request).collect())?;
        for (generation, (session, before, call)) in generations.into_iter().zip(next) {
            self.sent += 1;
            self.open_of[session] += 1;
            self.open.push(Open {
                session,
                generation,
                prompt: [before, call.suffix].concat(),
                output: Vec::new(),
                answered: false,
                next: call.next,
            });
        }
        Ok(())
    }

    /// Waits until the answers of all requests that ended in the first `steps` steps have arrived.
    fn await_answers(&mut self, steps: u64) {
        let Some(engine) = self.engine.clone() else {
            return;
        };
        let ended = loop {
            let stats = engine.stats();
            if stats.steps >= steps {
                break stats.finished;
            }
            std::thread::yield_now();
        };
        // The last events come after the statistics.
        loop {
            let open = self.open.iter_mut();
            let answered = open.map(Open::is_answered).filter(|&answered| answered);
            if (self.answered.len() + answered.count()) as u64 >= ended {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Waits until the engine thread has received all calls that were sent.
    fn await_receipt(&self) {
        let received = |engine: &EngineHandle| engine.stats().received;
        while self
            .engine
            .as_ref()
            .is_some_and(|engine| received(engine) < self.sent)
        {
            std::thread::yield_now();
        }
    }

    fn advance(&mut self) -> Result<(), SubmitError> {
        let mut next = Vec::new();
        let mut index = 0;
        while index < self.open.len() {
            if !self.open[index].is_answered() {
                index += 1;
                continue;
            }
            let open = self.open.remove(index);
            self.open_of[open.session] -= 1;
            let whole = [&open.prompt[..], &open.output].concat();
            let calls = open.next.into_iter();
            next.extend(calls.map(|call| (open.session, whole.clone(), call)));
            self.answered.push(Answered {
                prompt: open.prompt,
                output: open.output,
            });
        }
        self.begin_sessions(&mut next);
        self.send(next)
    }
}

impl Open {
    /// Reads the events that have arrived, without waiting.
    fn is_answered(&mut self) -> bool {
        while !self.answered {
            let mut context = Context::from_waker(Waker::noop());
            let event = std::pin::pin!(self.generation.next()).poll(&mut context);
            match event {
                Poll::Ready(Some(Event::Token(token))) => self.output.push(token.id),
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => self.answered = true,
                Poll::Pending => break,
            }
        }
        self.answered
    }
}

impl SharedDriver {
    pub fn new(workload: &Workload) -> Self {
        Self(Arc::new(Mutex::new(Driver {
            engine: None,
            waiting: workload.sessions.iter().cloned().collect(),
            concurrent: workload.concurrent,
            sent: 0,
            open: Vec::new(),
            open_of: Vec::new(),
            answered: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Driver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the first calls, as if all had arrived at the same moment.
    pub fn start(&self, engine: &EngineHandle) -> anyhow::Result<()> {
        self.lock().engine = Some(engine.clone());
        self.together(engine, Driver::advance)
    }

    /// Sends the next calls during the step after `steps` others. This waits for the answers of
    /// those steps, and until the engine has received the new calls, so that every run is the
    /// same however the threads are scheduled.
    pub fn advance(&self, steps: u64) -> Result<(), SubmitError> {
        let mut driver = self.lock();
        driver.await_answers(steps);
        driver.advance()?;
        driver.await_receipt();
        Ok(())
    }

    /// Sends the next calls if the engine is idle. Returns whether the workload is done.
    pub fn advance_if_idle(&self, engine: &EngineHandle) -> anyhow::Result<bool> {
        let stats = engine.stats();
        if !stats.is_idle() {
            return Ok(false);
        }
        self.lock().await_answers(stats.steps);
        self.together(engine, Driver::advance)?;
        let driver = self.lock();
        Ok(driver.open.is_empty() && driver.waiting.is_empty())
    }

    /// The answered calls, in the order of their answers.
    pub fn calls(&self) -> Vec<Answered> {
        std::mem::take(&mut self.lock().answered)
    }

    fn together(
        &self,
        engine: &EngineHandle,
        send: impl FnOnce(&mut Driver) -> Result<(), SubmitError>,
    ) -> anyhow::Result<()> {
        engine.pause(PauseMode::InPlace).wait_blocking()?;
        send(&mut self.lock())?;
        Ok(engine.resume().wait_blocking()?)
    }
}
