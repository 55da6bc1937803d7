//! The engine's inner loop.
use std::any::Any;
use std::sync::{Arc, Mutex};

use crate::config::EngineConfig;
use crate::executor::Executor;
use crate::inbox::Inbox;
use crate::stats::EngineStats;

pub(crate) struct Core<E> {
    executor: E,
}
impl<E: Executor> Core<E> {
    pub fn new(
        _config: EngineConfig,
        executor: E,
        _inbox: Arc<Inbox>,
        _stats: Arc<Mutex<EngineStats>>,
    ) -> Self {
        Self { executor }
    }
    pub fn serve(&mut self) {
        let _ = self.executor.limits();
    }
}
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic")
        .to_owned()
}
