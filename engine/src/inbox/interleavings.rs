//! Every order in which callers and the engine thread can meet, explored by
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

/// An engine thread that starts and finishes requests immediately, until it is closed.
fn serve(inbox: &Inbox) {
    let mut held: Vec<NewRequest> = Vec::new();
    loop {
        let mail = inbox.collect(if held.is_empty() {
            Wait::ForMail
        } else {
            Wait::No
        });
        held.extend(mail.requests);
        held.retain(|held| !mail.withdrawn.iter().any(|(id, _)| *id == held.id));
        for command in mail.commands {
            if let Command::Resume(reply) = command {
                let _ = reply.send(());
            }
        }
        inbox.publish(EngineStats::default());
        for NewRequest { events, .. } in held.drain(..) {
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
        let inbox = Arc::new(Inbox::new(8, 0));
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
        let inbox = Arc::new(Inbox::new(8, 0));
        let caller = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || {
                let (id, _) = submit(&inbox).expect("it is open");
                inbox.withdraw(id, Withdrawal::Cancelled);
            }
        });
        // A lost cancellation would leave this loop asleep for ever, which loom detects.
        let (mut submitted, mut withdrawn) = (Vec::new(), Vec::new());
        while withdrawn.is_empty() {
            let mail = inbox.collect(Wait::ForMail);
            submitted.extend(mail.requests.iter().map(|request| request.id));
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
fn a_queue_of_one_accepts_one_of_two_requests_in_any_order() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1, 0));
        let other = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || submit(&inbox).is_ok()
        });
        // A collected request counts as waiting until new statistics are published.
        let own = submit(&inbox).is_ok();
        let taken = inbox.collect(Wait::No).requests.len();
        let accepted = usize::from(own) + usize::from(other.join().unwrap());
        assert_eq!((accepted, inbox.stats().waiting), (1, 1));
        assert!(taken <= 1);
        inbox.publish(EngineStats::default());
    });
}

#[test]
fn a_command_is_answered_or_dropped_when_the_engine_ends() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1, 0));
        let (reply, mut answer) = oneshot::channel();
        let operator = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.command(|_| Command::Resume(reply))
        });
        inbox.close(None);
        serve(&inbox);
        operator.join().unwrap();
        // An open channel without an answer would make the operator wait for ever.
        assert_ne!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    });
}

#[test]
fn a_thread_that_waits_for_the_engine_to_stop_is_woken() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1, 0));
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
fn an_engine_that_waits_for_a_step_is_woken_by_it_and_by_requests_and_executes_commands_afterwards()
{
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1, 0));
        let (reply, _answer) = oneshot::channel();
        let device = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.step_completed()
        });
        inbox.command(|_| Command::Resume(reply));
        let caller = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || submit(&inbox).expect("it is open").0
        });
        let (mut submitted, mut completed) = (Vec::new(), false);
        while !completed {
            let mail = inbox.collect(Wait::ForStep { in_flight: 1 });
            completed = mail.step_completed;
            assert_eq!(mail.commands.len(), usize::from(completed), "between steps");
            submitted.extend(mail.requests.iter().map(|request| request.id));
        }
        let id = caller.join().unwrap();
        device.join().unwrap();
        let rest = inbox.collect(Wait::No);
        assert!(!rest.step_completed, "reported once");
        submitted.extend(rest.requests.iter().map(|request| request.id));
        assert_eq!(submitted, [id]);
    });
}
