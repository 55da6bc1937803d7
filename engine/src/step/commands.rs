//! The commands of operators.

use super::EngineCore;
use crate::command::{CacheInUse, Command, PauseMode};

impl EngineCore {
    /// Carries out `command` between two steps. The statistics show its effect before the reply
    /// is sent.
    pub(super) fn execute(&mut self, command: Command) {
        self.scheduler.flush_step();
        // The command is carried out even if the operator does not wait for the reply.
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
            Command::Transfer(command) => self.scheduler.transfer(command),
            Command::Prefix(command) => self.scheduler.prefix(command),
            Command::Observe(observer) => {
                let now = self.scheduler.step_counts();
                self.reports.start(observer, now);
            }
            Command::ObserveCache(observer) => {
                self.cache_reports.start(observer);
                self.publish();
            }
        }
    }
}
