//! Every order in which callers and the engine thread can meet, by
//! [loom](https://docs.rs/loom):
//! `cargo test -p hearth-engine --features loom --lib interleavings`.

use std::sync::Arc;

use loom::thread;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use super::*;
use crate::request::FinishReason;

fn request() -> Request {
    Request {
        prompt: vec![1],
        ..Request::default()
    }
}

fn submit(inbox: &Inbox) -> Result<(RequestId, UnboundedReceiver<Event>), SubmitError> {
    let (sender, events) = unbounded_channel();
    let id = inbox.submit(vec![(request(), sender)])?;
    Ok((id, events))
}

/// An engine thread that starts and ends requests at once, until it is closed.
fn serve(inbox: &Inbox) {
    let mut held: Vec<Submission> = Vec::new();
    loop {
        let mail = inbox.collect(if held.is_empty() {
            Wait::ForMail
        } else {
            Wait::Not
        });
        held.extend(mail.submitted);
        held.retain(|held| !mail.withdrawn.iter().any(|(id, _)| *id == held.id));
        for command in mail.commands {
            if let Command::Resume(reply) = command {
                let _ = reply.send(());
            }
        }
        inbox.publish(EngineStats::default());
        for Submission { events, .. } in held.drain(..) {
            let finished = Event::Finished(FinishReason::Length, crate::Usage::default());
            let _ = events.send(finished);
        }
        if mail.phase != Phase::Open {
            return inbox.stop();
        }
    }
}

#[test]
fn every_accepted_stream_ends_with_an_event_or_with_its_channel() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(8));
        let caller = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || submit(&inbox)
        });
        let closer = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.close(None)
        });
        serve(&inbox);
        closer.join().unwrap();
        match caller.join().unwrap() {
            Ok((_, mut events)) => {
                let first = events.try_recv();
                assert!(
                    matches!(
                        first,
                        Ok(Event::Finished(..)) | Err(TryRecvError::Disconnected)
                    ),
                    "{first:?}"
                );
            }
            Err(error) => assert_eq!(error, SubmitError::ShuttingDown),
        }
        assert_eq!(inbox.stats().waiting, 0);
    });
}

#[test]
fn a_cancellation_wakes_an_engine_that_sleeps_and_is_never_lost() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(8));
        let caller = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || {
                let (id, _) = submit(&inbox).expect("it is open");
                inbox.withdraw(id, Withdrawal::Cancelled);
            }
        });
        // A lost one would leave this loop asleep for ever, which loom sees.
        let (mut submitted, mut withdrawn) = (Vec::new(), Vec::new());
        while withdrawn.is_empty() {
            let mail = inbox.collect(Wait::ForMail);
            submitted.extend(mail.submitted.iter().map(|submission| submission.id));
            withdrawn.extend(mail.withdrawn.iter().map(|(id, _)| *id));
            assert!(
                submitted.len() >= withdrawn.len(),
                "never before its request"
            );
        }
        caller.join().unwrap();
        assert_eq!(submitted, withdrawn);
    });
}

#[test]
fn a_queue_of_one_takes_one_of_two_however_they_come() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1));
        let other = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || submit(&inbox).is_ok()
        });
        // What was taken counts until it is published that it does not wait.
        let own = submit(&inbox).is_ok();
        let taken = inbox.collect(Wait::Not).submitted.len();
        let accepted = usize::from(own) + usize::from(other.join().unwrap());
        assert_eq!((accepted, inbox.stats().waiting), (1, 1));
        assert!(taken <= 1);
        inbox.publish(EngineStats::default());
    });
}

#[test]
fn a_command_is_answered_or_dropped_when_the_engine_ends() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1));
        let (reply, mut answer) = oneshot::channel();
        let operator = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.command(|_| Command::Resume(reply))
        });
        inbox.close(None);
        serve(&inbox);
        operator.join().unwrap();
        // Never still open: whoever waits for it would wait for ever.
        assert_ne!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    });
}

#[test]
fn whoever_waits_for_the_end_is_woken_by_it() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1));
        let waiter = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.wait_stopped(Duration::MAX)
        });
        inbox.close(None);
        inbox.stop();
        assert!(waiter.join().unwrap());
        assert!(inbox.is_stopped());
    });
}

#[test]
fn an_engine_that_waits_for_the_device_hears_of_it_and_of_mail_and_obeys_afterwards() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1));
        let (reply, _answer) = oneshot::channel();
        let device = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.landed()
        });
        inbox.command(|_| Command::Resume(reply));
        let caller = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || submit(&inbox).expect("it is open").0
        });
        let (mut submitted, mut landed) = (Vec::new(), false);
        while !landed {
            let mail = inbox.collect(Wait::ForLanding { of: 1 });
            landed = mail.landed;
            assert_eq!(mail.commands.len(), usize::from(landed), "between steps");
            submitted.extend(mail.submitted.iter().map(|submission| submission.id));
        }
        let id = caller.join().unwrap();
        device.join().unwrap();
        let rest = inbox.collect(Wait::Not);
        assert!(!rest.landed, "told once");
        submitted.extend(rest.submitted.iter().map(|submission| submission.id));
        assert_eq!(submitted, [id]);
    });
}
