//! What operators ask of the engine.

use super::Core;
use crate::command::{CacheInUse, Command, PauseMode};

impl Core {
    /// Carries out `command` between two steps; the statistics show it when its reply comes.
    pub(super) fn obey(&mut self, command: Command) {
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
}
