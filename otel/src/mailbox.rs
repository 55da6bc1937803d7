//! The queue of the telemetry thread. Sending never waits, and takes a lock only briefly.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanContext;

use crate::records::{RequestRecord, StepRecord};
use crate::spans::RequestSpan;

/// How long messages gather before the thread takes them. Waking the thread costs the sender
/// more than everything else it does for telemetry, and takes a core away from the model. So
/// the thread is woken once for all messages that arrive in this time.
const GATHER: Duration = Duration::from_millis(20);
/// How long the thread looks for further messages by itself, once in each [`GATHER`]: while messages
/// come at least as often as this, nobody wakes it.
const LOOKING: Duration = Duration::from_millis(200);
/// Messages that may wait, where each step counts; further ones are dropped.
const MAX_MESSAGES: usize = 8192;

/// A message to the telemetry thread.
#[derive(Debug)]
pub enum Message {
    /// Steps in the order of their ends.
    Steps(Vec<StepRecord>),
    /// A continuation began: the engine's id, and the span that its steps link to.
    Begin(u64, SpanContext),
    /// A continuation ended.
    End(Box<(RequestSpan, RequestRecord)>),
    /// Asks for an answer once all earlier messages are processed.
    Flush(SyncSender<()>),
}

/// The sending side. Dropping the last clone closes the mailbox.
#[derive(Clone, Debug)]
pub struct Sender(Arc<Open>);

/// The telemetry thread's side of the mailbox.
#[derive(Debug)]
pub struct Receiver(Arc<Mailbox>);

/// Closes the mailbox when the last sender is dropped.
#[derive(Debug)]
struct Open(Arc<Mailbox>);

#[derive(Debug, Default)]
struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    messages: Vec<Message>,
    /// Their number, where each step counts.
    waiting: usize,
    /// True while the thread sleeps until the first message wakes it.
    asleep: bool,
    /// When the thread last found messages.
    latest: Option<Instant>,
    /// Whether a sender is waiting for the thread, which then takes the messages at once.
    urgent: bool,
    closed: bool,
}

/// Creates an open, empty mailbox.
pub fn mailbox() -> (Sender, Receiver) {
    let mailbox = Arc::<Mailbox>::default();
    (
        Sender(Arc::new(Open(Arc::clone(&mailbox)))),
        Receiver(mailbox),
    )
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// Queues `message`. Returns false if the mailbox is full and the message was dropped.
    pub fn send(&self, message: Message) -> bool {
        self.push(message, false)
    }

    /// Queues `message` and has it processed without the gathering delay.
    pub fn send_urgent(&self, message: Message) -> bool {
        self.push(message, true)
    }

    fn push(&self, message: Message, urgent: bool) -> bool {
        let mailbox = &self.0.0;
        let mut state = mailbox.state();
        let count = match &message {
            Message::Steps(steps) => steps.len(),
            _ => 1,
        };
        if state.waiting + count > MAX_MESSAGES {
            return false;
        }
        state.waiting += count;
        state.messages.push(message);
        state.urgent |= urgent;
        let wakes = urgent || std::mem::take(&mut state.asleep);
        drop(state);
        if wakes {
            mailbox.changed.notify_all();
        }
        true
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }
}

impl Receiver {
    /// Moves the waiting messages into `taken`, which must be empty, in the order of sending.
    /// Returns after messages have arrived and gathered, or at `until`. The result is false
    /// once the mailbox is closed, so that no more messages can arrive.
    pub fn receive(&self, until: Instant, taken: &mut Vec<Message>) -> bool {
        let mut state = self.0.state();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let looks_until = state.latest.map(|latest| latest + LOOKING);
        while state.messages.is_empty() && !state.closed && !left(until).is_zero() {
            let looks = looks_until.is_some_and(|until| !left(until).is_zero());
            state.asleep = !looks;
            let wait = if looks { GATHER } else { left(until) };
            let woken = self.0.changed.wait_timeout(state, wait.min(left(until)));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.asleep = false;
        if !state.messages.is_empty() {
            state.latest = Some(Instant::now());
        }
        let gathered = Instant::now() + GATHER;
        while !state.messages.is_empty()
            && !state.urgent
            && !state.closed
            && !left(gathered).is_zero()
        {
            let woken = self.0.changed.wait_timeout(state, left(gathered));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        (state.urgent, state.waiting) = (false, 0);
        std::mem::swap(&mut state.messages, taken);
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use super::*;

    fn flush() -> (Message, std::sync::mpsc::Receiver<()>) {
        let (done, seen): (SyncSender<()>, _) = sync_channel(1);
        (Message::Flush(done), seen)
    }

    #[test]
    fn messages_are_received_in_order_and_in_few_batches() {
        let (sender, receiver) = mailbox();
        let sending = thread::spawn(move || {
            (0..1000)
                .map(|_| {
                    let (message, seen) = flush();
                    assert!(sender.send(message));
                    seen
                })
                .collect::<Vec<_>>()
        });
        let (mut batches, mut all, mut taken) = (0, Vec::new(), Vec::new());
        let far = Instant::now() + Duration::from_secs(60);
        while receiver.receive(far, &mut taken) || !taken.is_empty() {
            batches += 1;
            all.append(&mut taken);
        }
        assert_eq!(all.len(), 1000);
        assert!(batches < 500, "{batches}");
        for (message, seen) in all.into_iter().zip(sending.join().unwrap()) {
            let Message::Flush(done) = message else {
                panic!("only flushes were sent");
            };
            done.try_send(()).unwrap();
            seen.recv_timeout(Duration::from_secs(1))
                .expect("the answers come in the order of the messages");
        }
    }

    #[test]
    fn messages_that_follow_others_closely_wake_nobody_and_are_received_all_the_same() {
        let (sender, receiver) = mailbox();
        let mut taken = Vec::new();
        let far = Instant::now() + Duration::from_secs(60);
        let begin = Instant::now();
        assert!(sender.send(flush().0));
        assert!(receiver.receive(far, &mut taken));
        taken.clear();
        let receiving = thread::spawn(move || {
            receiver.receive(far, &mut taken);
            taken.len()
        });
        thread::sleep(GATHER / 2);
        let asleep = sender.0.0.state().asleep;
        // A machine that stood still for longer says nothing.
        assert!(!asleep || begin.elapsed() > LOOKING, "it looks by itself");
        assert!(sender.send(flush().0));
        assert_eq!(receiving.join().unwrap(), 1);
    }

    #[test]
    fn after_a_while_without_messages_the_thread_waits_to_be_woken() {
        let (sender, receiver) = mailbox();
        let mut taken = Vec::new();
        assert!(sender.send(flush().0));
        assert!(receiver.receive(Instant::now() + Duration::from_secs(60), &mut taken));
        taken.clear();
        let far = Instant::now() + Duration::from_secs(60);
        let receiving = thread::spawn(move || receiver.receive(far, &mut taken));
        while !sender.0.0.state().asleep {
            assert!(Instant::now() < far, "the thread never stops looking");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(sender.send(flush().0));
        assert!(receiving.join().unwrap());
    }

    #[test]
    fn a_full_mailbox_refuses_messages_and_an_empty_one_returns_when_the_time_is_up() {
        let (sender, receiver) = mailbox();
        let mut taken = Vec::new();
        assert!(receiver.receive(Instant::now() + Duration::from_millis(1), &mut taken));
        assert!(taken.is_empty());
        let accepted = (0..MAX_MESSAGES + 10)
            .filter(|_| sender.send(flush().0))
            .count();
        assert_eq!(accepted, MAX_MESSAGES);
        assert!(receiver.receive(Instant::now(), &mut taken));
        assert_eq!(taken.len(), MAX_MESSAGES);
        assert!(sender.send_urgent(flush().0), "there is room again");
        drop(sender);
        taken.clear();
        assert!(!receiver.receive(Instant::now(), &mut taken));
        assert_eq!(taken.len(), 1);
    }
}
