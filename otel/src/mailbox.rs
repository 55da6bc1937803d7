//! What waits for the telemetry thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::worker::Message;

/// How long messages gather before the thread takes them. To wake it takes whoever sends
/// longer than all else that is done there for telemetry, and takes a core from the model:
/// it is done once for all that come meanwhile.
const GATHER: Duration = Duration::from_millis(20);
/// Messages that may wait; beyond it they are dropped.
const MOST: usize = 8192;

/// The sending side; the mailbox is closed with the last clone.
#[derive(Clone, Debug)]
pub struct Sender(Arc<Open>);

/// The telemetry thread's side.
#[derive(Debug)]
pub struct Receiver(Arc<Mailbox>);

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
    /// The thread waits for the first message.
    asleep: bool,
    /// Somebody waits for the thread.
    urgent: bool,
    closed: bool,
}

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
    /// Leaves `message`; returns whether there was room for it.
    pub fn send(&self, message: Message) -> bool {
        self.leave(message, false)
    }

    /// Leaves `message`, and has it looked at without delay.
    pub fn send_urgent(&self, message: Message) -> bool {
        self.leave(message, true)
    }

    fn leave(&self, message: Message, urgent: bool) -> bool {
        let mailbox = &self.0.0;
        let mut state = mailbox.state();
        if state.messages.len() >= MOST {
            return false;
        }
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
    /// Puts what has come into `taken`, which is empty, in its order: when there is anything
    /// and it had time to become more, or at `until`. Returns whether more may come.
    pub fn receive(&self, until: Instant, taken: &mut Vec<Message>) -> bool {
        let mut state = self.0.state();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        while state.messages.is_empty() && !state.closed && !left(until).is_zero() {
            state.asleep = true;
            let woken = self.0.changed.wait_timeout(state, left(until));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.asleep = false;
        let gathered = Instant::now() + GATHER;
        while !state.messages.is_empty()
            && !state.urgent
            && !state.closed
            && !left(gathered).is_zero()
        {
            let woken = self.0.changed.wait_timeout(state, left(gathered));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.urgent = false;
        std::mem::swap(&mut state.messages, taken);
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::thread;

    use super::*;

    fn flush() -> (Message, std::sync::mpsc::Receiver<()>) {
        let (done, seen): (SyncSender<()>, _) = sync_channel(1);
        (Message::Flush(done), seen)
    }

    #[test]
    fn what_is_sent_is_received_in_order_and_in_few_pieces() {
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
        let (mut pieces, mut all, mut taken) = (0, Vec::new(), Vec::new());
        let far = Instant::now() + Duration::from_secs(60);
        while receiver.receive(far, &mut taken) || !taken.is_empty() {
            pieces += 1;
            all.append(&mut taken);
        }
        assert_eq!(all.len(), 1000);
        assert!(pieces < 500, "{pieces}");
        for (message, seen) in all.into_iter().zip(sending.join().unwrap()) {
            let Message::Flush(done) = message else {
                panic!("another was sent");
            };
            done.try_send(()).unwrap();
            seen.recv_timeout(Duration::from_secs(1))
                .expect("the first for the first");
        }
    }

    #[test]
    fn it_holds_so_much_and_no_more_and_time_may_be_up_without_anything() {
        let (sender, receiver) = mailbox();
        let mut taken = Vec::new();
        assert!(receiver.receive(Instant::now() + Duration::from_millis(1), &mut taken));
        assert!(taken.is_empty());
        let taken_up = (0..MOST + 10).filter(|_| sender.send(flush().0)).count();
        assert_eq!(taken_up, MOST);
        assert!(receiver.receive(Instant::now(), &mut taken));
        assert_eq!(taken.len(), MOST);
        assert!(sender.send_urgent(flush().0), "there is room again");
        drop(sender);
        taken.clear();
        assert!(!receiver.receive(Instant::now(), &mut taken));
        assert_eq!(taken.len(), 1);
    }
}
