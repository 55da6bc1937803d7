//! Tells once when the engine hangs, and writes what it did before.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::flight::{FlightRecorder, KEPT};
use crate::instruments::EngineSnapshot;

#[derive(Debug)]
pub struct StallLog {
    /// Where traces are written; `None` for a log line alone.
    dir: Option<PathBuf>,
    /// An engine that has work and finishes no step for this long hangs.
    after: Duration,
    /// True if the current stall has been told.
    is_told: bool,
}

impl StallLog {
    pub fn new(dir: Option<PathBuf>, after: Duration) -> Self {
        Self {
            dir,
            after,
            is_told: false,
        }
    }

    /// Looks at the engine, `now`.
    pub fn tick(&mut self, now: Instant, engine: &EngineSnapshot, flight: &FlightRecorder) {
        let stalls = engine.heartbeat_age >= self.after;
        if stalls && !self.is_told {
            let written = self
                .dir
                .as_deref()
                .map(|dir| write(dir, now, engine, flight));
            let seconds = engine.heartbeat_age.as_secs();
            match written {
                None => tracing::error!(
                    seconds,
                    "the engine has work and has finished no step; /debug/trace shows its last steps"
                ),
                Some(Ok(path)) => tracing::error!(
                    seconds,
                    path = %path.display(),
                    "the engine has work and has finished no step; its last steps were written"
                ),
                Some(Err(error)) => tracing::error!(
                    seconds,
                    %error,
                    "the engine has work and has finished no step; its last steps could not be written"
                ),
            }
        }
        self.is_told = stalls;
    }
}

/// Writes a trace of all steps that are kept. Returns the path.
fn write(
    dir: &Path,
    now: Instant,
    engine: &EngineSnapshot,
    flight: &FlightRecorder,
) -> std::io::Result<PathBuf> {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = time.map_or(0, |time| time.as_secs());
    let path = dir.join(format!("hearth-stall-{seconds}.json"));
    fs::create_dir_all(dir)?;
    fs::write(&path, flight.trace(now, KEPT, engine))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stall_is_written_once() {
        let dir = std::env::temp_dir().join(format!("hearth-stall-{}", std::process::id()));
        let mut log = StallLog::new(Some(dir.clone()), Duration::from_secs(30));
        let flight = FlightRecorder::default();
        let mut tick = |seconds| {
            let engine = EngineSnapshot {
                heartbeat_age: Duration::from_secs(seconds),
                ..EngineSnapshot::default()
            };
            log.tick(Instant::now(), &engine, &flight);
            let files = fs::read_dir(&dir).map_or(0, Iterator::count);
            let _ = fs::remove_dir_all(&dir);
            files
        };
        assert_eq!([29, 30, 31, 0, 5, 40].map(&mut tick), [0, 1, 0, 0, 0, 1]);
    }
}
