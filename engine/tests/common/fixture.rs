//! An engine over the fake model, for tests to observe and control.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hearth_engine::{
    BuildDraftModel, DraftModel, Engine, EngineConfig, EngineHandle, Generation, KvStats,
    PauseMode, Request,
};
use hearth_forward::{ExecutorLimits, WindowLimits};

use super::model::{Call, Copies, FakeModel, Step, VOCAB};
use super::{Answer, answer, request};

/// An engine over the fake model, with what a test needs to observe and control it.
pub struct Fixture {
    pub engine: EngineHandle,
    pub steps: Arc<Mutex<Vec<Step>>>,
    pub calls: Arc<Mutex<Vec<Call>>>,
    pub copies: Copies,
    /// The digests of the adapters that were loaded, with their slots.
    pub loaded: Arc<Mutex<Vec<(u32, String)>>>,
    /// True if the next load of an adapter fails.
    pub fail_load: Arc<AtomicBool>,
}

pub fn limits(kv_slots: usize) -> ExecutorLimits {
    ExecutorLimits {
        kv_slots,
        max_model_len: 512,
        vocab_size: VOCAB,
    }
}

/// The pools of the model.
struct Sizes {
    limits: ExecutorLimits,
    window: Option<WindowLimits>,
    host_slots: usize,
}

impl Sizes {
    fn new(limits: ExecutorLimits, host_slots: usize) -> Self {
        Self {
            limits,
            window: None,
            host_slots,
        }
    }

    fn with_window(limits: ExecutorLimits, window: WindowLimits) -> Self {
        Self {
            window: Some(window),
            ..Self::new(limits, 0)
        }
    }
}

impl Fixture {
    pub fn new(config: EngineConfig, kv_slots: usize) -> Self {
        Self::build(config, limits(kv_slots), None)
    }

    /// Each forward pass waits for a permit from the sender, until the sender is dropped.
    pub fn gated(config: EngineConfig, kv_slots: usize) -> (Self, Sender<()>) {
        let (permits, gate) = channel();
        (Self::build(config, limits(kv_slots), Some(gate)), permits)
    }

    /// With `host_slots` in the host's memory.
    pub fn with_host(config: EngineConfig, kv_slots: usize, host_slots: usize) -> Self {
        Self::build_all(config, limits(kv_slots), host_slots, None)
    }

    /// Over a model that does not sample on the device.
    pub fn sampling_on_host(config: EngineConfig, kv_slots: usize) -> Self {
        Self::build_any(config, limits(kv_slots), 0, None, false)
    }

    /// As [`with_host`](Self::with_host) and [`gated`](Self::gated): loads from the host wait for
    /// permits, too.
    pub fn gated_with_host(
        config: EngineConfig,
        kv_slots: usize,
        host_slots: usize,
    ) -> (Self, Sender<()>) {
        let (permits, gate) = channel();
        let fixture = Self::build_all(config, limits(kv_slots), host_slots, Some(gate));
        (fixture, permits)
    }

    pub fn build(config: EngineConfig, limits: ExecutorLimits, gate: Option<Receiver<()>>) -> Self {
        Self::build_all(config, limits, 0, gate)
    }

    fn build_all(
        config: EngineConfig,
        limits: ExecutorLimits,
        host_slots: usize,
        gate: Option<Receiver<()>>,
    ) -> Self {
        Self::build_any(config, limits, host_slots, gate, true)
    }

    pub fn build_any(
        config: EngineConfig,
        limits: ExecutorLimits,
        host_slots: usize,
        gate: Option<Receiver<()>>,
        samples_on_device: bool,
    ) -> Self {
        let sizes = Sizes::new(limits, host_slots);
        Self::build_with(config, sizes, gate, samples_on_device, None)
    }

    /// Over a model with window slots.
    pub fn with_window(
        config: EngineConfig,
        limits: ExecutorLimits,
        window: WindowLimits,
        samples_on_device: bool,
    ) -> Self {
        let sizes = Sizes::with_window(limits, window);
        Self::build_with(config, sizes, None, samples_on_device, None)
    }

    /// As [`with_window`](Self::with_window) and [`gated`](Self::gated).
    pub fn gated_with_window(
        config: EngineConfig,
        limits: ExecutorLimits,
        window: WindowLimits,
        samples_on_device: bool,
    ) -> (Self, Sender<()>) {
        let (permits, gate) = channel();
        let sizes = Sizes::with_window(limits, window);
        let fixture = Self::build_with(config, sizes, Some(gate), samples_on_device, None);
        (fixture, permits)
    }

    /// Over a model that does not sample on the device, with the draft model that `draft` makes.
    pub fn with_draft_model(
        config: EngineConfig,
        kv_slots: usize,
        draft: impl FnOnce() -> Box<dyn DraftModel> + Send + 'static,
    ) -> Self {
        let build: BuildDraftModel = Box::new(|_| Ok(draft()));
        let sizes = Sizes::new(limits(kv_slots), 0);
        Self::build_with(config, sizes, None, false, Some(build))
    }

    fn build_with(
        config: EngineConfig,
        sizes: Sizes,
        gate: Option<Receiver<()>>,
        samples_on_device: bool,
        draft: Option<BuildDraftModel>,
    ) -> Self {
        let Sizes {
            limits,
            window,
            host_slots,
        } = sizes;
        let steps = Arc::default();
        let log = Arc::clone(&steps);
        let calls = Arc::default();
        let called = Arc::clone(&calls);
        let copies = Copies::default();
        let copied = copies.clone();
        let (loaded, fail_load) = (Arc::default(), Arc::default());
        let (loads, fails) = (Arc::clone(&loaded), Arc::clone(&fail_load));
        let build = move || {
            Ok(FakeModel {
                loaded: loads,
                fail_load: fails,
                copies: copied,
                steps: log,
                calls: called,
                samples_on_device,
                gate,
                ..FakeModel::new(limits, host_slots).with_window(window)
            })
        };
        Self {
            engine: Engine::spawn_with_draft_model(config, build, draft).unwrap(),
            steps,
            calls,
            copies,
            loaded,
            fail_load,
        }
    }

    pub fn submit(&self, prompt: &[u32], max_tokens: usize) -> Generation {
        self.engine.submit(request(prompt, max_tokens)).unwrap()
    }

    pub fn run(&self, prompt: &[u32], max_tokens: usize) -> Answer {
        answer(self.submit(prompt, max_tokens))
    }

    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap().clone()
    }

    /// Waits until the engine has seen what just happened. A test that waits longer than this has
    /// found a bug.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            let stats = self.engine.stats();
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "never: {what}; {stats:?}"
            );
            std::thread::yield_now();
        }
    }

    /// Runs `requests` as if all had arrived at the same moment.
    pub fn run_at_once(&self, requests: impl IntoIterator<Item = Request>) -> Vec<Answer> {
        self.engine
            .pause(PauseMode::InPlace)
            .wait_blocking()
            .unwrap();
        let submitted: Vec<_> = requests
            .into_iter()
            .map(|request| self.engine.submit(request).unwrap())
            .collect();
        self.engine.resume().wait_blocking().unwrap();
        submitted.into_iter().map(answer).collect()
    }

    /// Checks that no request runs or waits, and that every slot is free or cached. The engine
    /// answers before it publishes its counts, so a slot that was just given back may still be
    /// counted as held: one that is never given back fails after the wait.
    pub fn assert_idle_and_conserved(&self) {
        self.wait_until("idle, and no slot held or protected", |fixture| {
            let stats = fixture.engine.stats();
            let pools = [stats.kv, stats.window, stats.draft_kv];
            let is_given_back = |kv: &KvStats| kv.held == 0 && kv.protected == 0;
            stats.is_idle() && pools.iter().all(is_given_back) && stats.host.protected == 0
        });
        let stats = self.engine.stats();
        let ended = stats.finished + stats.cancelled + stats.failed;
        assert_eq!(stats.received, ended, "{stats:?}");
        assert!(stats.kv.is_conserved(), "{stats:?}");
        assert!(stats.window.is_conserved(), "{stats:?}");
        assert!(stats.host.is_conserved(), "{stats:?}");
        assert!(stats.draft_kv.is_conserved(), "{stats:?}");
    }
}
