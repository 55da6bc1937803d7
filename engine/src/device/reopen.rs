//! A device that was lost, until it is there again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{Landing, Order, panic_text};
use crate::executor::Executor;

/// The time from an attempt to the next: a driver that was reset is there within seconds, and
/// a device that is gone is asked for seldom.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Opens the device again, at once and then after longer and longer pauses. Orders that come
/// meanwhile fail. Returns `false` when the engine is gone.
pub(super) fn reopen(
    executor: &mut impl Executor,
    orders: &Receiver<Order>,
    answer: impl Fn(Landing) -> bool,
) -> bool {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = attempt(executor) {
        tracing::warn!(
            next_s = pause.as_secs_f32(),
            "the device is still lost: {error}"
        );
        let next = Instant::now() + pause;
        pause = (pause * 2).min(LONGEST_PAUSE);
        loop {
            match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(order) => {
                    if !answer(fail(order)) {
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

fn fail(order: Order) -> Landing {
    let error = "the device is lost".to_owned();
    Landing {
        copied: match order.copies.is_empty() {
            true => Ok(()),
            false => Err(error.clone()),
        },
        logits: Err(error),
        lost: true,
        order,
        at: Instant::now(),
    }
}
