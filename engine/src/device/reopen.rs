//! A device that was lost, until it is there again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::flights::Flights;
use super::{Landing, Message, panic_text};
use crate::executor::Executor;

/// The time from an attempt to the next: a driver that was reset is there within seconds, and
/// a device that is gone is asked for seldom.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Opens the device again, at once and then after longer and longer pauses. Orders that come
/// meanwhile fail. Returns `false` when the engine is gone.
pub(super) fn reopen(
    flights: &mut Flights<impl Executor>,
    messages: &Receiver<Message>,
    answer: impl Fn(Vec<Landing>) -> bool,
) -> bool {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = attempt(&mut flights.executor) {
        tracing::warn!(
            next_s = pause.as_secs_f32(),
            "the device is still lost: {error}"
        );
        let next = Instant::now() + pause;
        pause = (pause * 2).min(LONGEST_PAUSE);
        loop {
            match messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Message::Launch(order)) => flights.refuse(*order),
                Ok(Message::Land) => {
                    if !answer(flights.land()) {
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

/// Drivers panic where they should return errors.
fn attempt(executor: &mut impl Executor) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| executor.reopen()))
        .map_err(|panic| panic_text(&*panic))
        .and_then(|reopened| reopened.map_err(|error| error.to_string()))
}
