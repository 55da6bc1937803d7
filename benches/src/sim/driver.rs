//! The clients: they send a call when the one before it is answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hearth_engine::{
    EngineHandle, Event, Generation, PauseMode, Request, SamplingParams, SubmitError,
};

use super::workload::{Call, Workload};

/// A call that was answered: its prompt, and its output.
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
    next: Vec<Call>,
}

pub struct Driver {
    engine: Option<EngineHandle>,
    waiting: VecDeque<Call>,
    concurrent: usize,
    open: Vec<Open>,
    /// Calls of each started session that are not answered.
    open_of: Vec<usize>,
    answered: Vec<Answered>,
}

/// The engine's thread advances it in every step, the caller's when there is none.
#[derive(Clone)]
pub struct SharedDriver(Arc<Mutex<Driver>>);

impl Driver {
    pub fn shared(workload: &Workload) -> SharedDriver {
        SharedDriver(Arc::new(Mutex::new(Self {
            engine: None,
            waiting: workload.sessions.iter().cloned().collect(),
            concurrent: workload.concurrent,
            open: Vec::new(),
            open_of: Vec::new(),
            answered: Vec::new(),
        })))
    }

    fn begin_sessions(&mut self) -> Result<(), SubmitError> {
        let mut live = self.open_of.iter().filter(|&&open| open > 0).count();
        while live < self.concurrent
            && let Some(call) = self.waiting.pop_front()
        {
            self.open_of.push(0);
            self.send(self.open_of.len() - 1, Vec::new(), call)?;
            live += 1;
        }
        Ok(())
    }

    /// Sends `call`, which goes on from the tokens `before`.
    fn send(&mut self, session: usize, before: Vec<u32>, call: Call) -> Result<(), SubmitError> {
        let Some(engine) = &self.engine else {
            return Ok(());
        };
        let prompt = [before, call.suffix].concat();
        let generation = engine.submit(Request {
            prompt: prompt.clone(),
            params: SamplingParams {
                max_tokens: call.output,
                temperature: 0.0,
                ..SamplingParams::default()
            },
            ..Request::default()
        })?;
        self.open_of[session] += 1;
        self.open.push(Open {
            session,
            generation,
            prompt,
            output: Vec::new(),
            next: call.next,
        });
        Ok(())
    }

    fn advance(&mut self) -> Result<(), SubmitError> {
        let mut index = 0;
        while index < self.open.len() {
            if !self.open[index].is_answered() {
                index += 1;
                continue;
            }
            let open = self.open.remove(index);
            self.open_of[open.session] -= 1;
            let whole = [&open.prompt[..], &open.output].concat();
            for call in open.next {
                self.send(open.session, whole.clone(), call)?;
            }
            self.answered.push(Answered {
                prompt: open.prompt,
                output: open.output,
            });
        }
        self.begin_sessions()
    }
}

impl Open {
    /// Takes in what came; never waits.
    fn is_answered(&mut self) -> bool {
        loop {
            let mut context = Context::from_waker(Waker::noop());
            let event = std::pin::pin!(self.generation.next()).poll(&mut context);
            match event {
                Poll::Ready(Some(Event::Token(token))) => self.output.push(token.id),
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }
}

impl SharedDriver {
    fn lock(&self) -> MutexGuard<'_, Driver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the first calls, as if all had come at the same moment.
    pub fn start(&self, engine: &EngineHandle) -> anyhow::Result<()> {
        self.lock().engine = Some(engine.clone());
        self.together(engine, Driver::begin_sessions)
    }

    pub fn advance(&self) -> Result<(), SubmitError> {
        self.lock().advance()
    }

    /// Goes on for an engine that has nothing to do; returns whether all is done.
    pub fn advance_if_idle(&self, engine: &EngineHandle) -> anyhow::Result<bool> {
        if !engine.stats().is_idle() {
            return Ok(false);
        }
        self.together(engine, Driver::advance)?;
        let driver = self.lock();
        Ok(driver.open.is_empty() && driver.waiting.is_empty())
    }

    /// Calls in the order of their answers.
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
