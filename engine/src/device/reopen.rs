//! Opens a lost device again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hearth_forward::{Executor, panic_text};

use super::work::{Completion, Message};
use super::worker::Worker;

/// The pause between two attempts. A driver that was reset is back within seconds; a device
/// that is gone is tried seldom.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Opens the device again, at once and then after longer and longer pauses. Steps that are
/// submitted meanwhile fail. Returns `false` when the engine thread is gone.
pub(super) fn reopen(
    worker: &mut Worker<impl Executor>,
    messages: &Receiver<Message>,
    answer: impl Fn(Vec<Completion>) -> bool,
) -> bool {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = attempt(&mut worker.executor) {
        tracing::warn!(
            next_s = pause.as_secs_f32(),
            "the device is still lost: {error}"
        );
        let next = Instant::now() + pause;
        pause = (pause * 2).min(LONGEST_PAUSE);
        loop {
            match messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Message::Submit(work)) => worker.refuse(*work),
                Ok(Message::Notify) => {
                    if !answer(worker.complete()) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
    true
}

fn attempt(executor: &mut impl Executor) -> Result<(), String> {
    // Drivers panic where they should return errors.
    catch_unwind(AssertUnwindSafe(|| executor.reopen()))
        .map_err(|panic| panic_text(&*panic))
        .and_then(|reopened| reopened.map_err(|error| error.to_string()))
}
