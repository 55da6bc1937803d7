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
/// Messages and steps that may wait; further ones are dropped.
const MAX_WAITING: usize = 8192;

/// A message to the telemetry thread.
#[derive(Debug)]
pub enum Message {
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

/// Messages that wait in a mailbox, or were taken out of it.
#[derive(Debug, Default)]
pub struct Mail {
    /// Steps in the order of their ends.
    pub steps: Vec<StepRecord>,
    /// Messages in the order of their sending.
    pub messages: Vec<Message>,
}

impl Mail {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.steps.len() + self.messages.len()
    }
}

#[derive(Debug, Default)]
struct State {
    mail: Mail,
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
        self.push(1, false, |mail| mail.messages.push(message))
    }

    /// Queues `message` and has it processed without the gathering delay.
    pub fn send_urgent(&self, message: Message) -> bool {
        self.push(1, true, |mail| mail.messages.push(message))
    }

    /// Queues `steps`. Returns false if the mailbox has no room for them and they were dropped.
    pub fn send_steps(&self, steps: impl ExactSizeIterator<Item = StepRecord>) -> bool {
        self.push(steps.len(), false, |mail| mail.steps.extend(steps))
    }

    fn push(&self, count: usize, urgent: bool, add: impl FnOnce(&mut Mail)) -> bool {
        let mailbox = &self.0.0;
        let mut state = mailbox.state();
        if state.mail.len() + count > MAX_WAITING {
            return false;
        }
        add(&mut state.mail);
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
    /// Moves what waits into `taken`, which must be empty. Returns after mail has arrived and
    /// gathered, or at `until`. The result is false once the mailbox is closed, so that nothing
    /// more can arrive.
    pub fn receive(&self, until: Instant, taken: &mut Mail) -> bool {
        let mut state = self.0.state();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let looks_until = state.latest.map(|latest| latest + LOOKING);
        while state.mail.is_empty() && !state.closed && !left(until).is_zero() {
            let looks = looks_until.is_some_and(|until| !left(until).is_zero());
            state.asleep = !looks;
            let wait = if looks { GATHER } else { left(until) };
            let woken = self.0.changed.wait_timeout(state, wait.min(left(until)));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.asleep = false;
        if !state.mail.is_empty() {
            state.latest = Some(Instant::now());
        }
        let gathered = Instant::now() + GATHER;
        while !state.mail.is_empty() && !state.urgent && !state.closed && !left(gathered).is_zero()
        {
            let woken = self.0.changed.wait_timeout(state, left(gathered));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.urgent = false;
        std::mem::swap(&mut state.mail, taken);
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

    fn steps(count: usize) -> impl ExactSizeIterator<Item = StepRecord> {
        let now = Instant::now();
        (0..count).map(move |_| StepRecord::empty(now))
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
        let (mut batches, mut all, mut taken) = (0, Vec::new(), Mail::default());
        let far = Instant::now() + Duration::from_secs(60);
        while receiver.receive(far, &mut taken) || !taken.is_empty() {
            batches += 1;
            all.append(&mut taken.messages);
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
        let far = Instant::now() + Duration::from_secs(60);
        let begin = Instant::now();
        assert!(sender.send(flush().0));
        assert!(receiver.receive(far, &mut Mail::default()));
        let receiving = thread::spawn(move || {
            let mut taken = Mail::default();
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
        assert!(sender.send(flush().0));
        let far = Instant::now() + Duration::from_secs(60);
        assert!(receiver.receive(far, &mut Mail::default()));
        let far = Instant::now() + Duration::from_secs(60);
        let receiving = thread::spawn(move || receiver.receive(far, &mut Mail::default()));
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
        let mut taken = Mail::default();
        assert!(receiver.receive(Instant::now() + Duration::from_millis(1), &mut taken));
        assert!(taken.is_empty());
        assert!(sender.send_steps(steps(10)));
        let accepted = (0..MAX_WAITING).filter(|_| sender.send(flush().0)).count();
        assert_eq!(accepted, MAX_WAITING - 10);
        assert!(!sender.send_steps(steps(1)));
        assert!(receiver.receive(Instant::now(), &mut taken));
        assert_eq!(taken.len(), MAX_WAITING);
        assert!(sender.send_urgent(flush().0), "there is room again");
        drop(sender);
        let mut taken = Mail::default();
        assert!(!receiver.receive(Instant::now(), &mut taken));
        assert_eq!(taken.len(), 1);
    }
}
