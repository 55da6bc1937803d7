use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;

use super::*;

fn submit(inbox: &Inbox) -> RequestId {
    let (sender, _) = unbounded_channel();
    let request = Request {
        prompt: vec![1],
        ..Request::default()
    };
    inbox
        .submit(vec![(request, sender)])
        .expect("there is room")
}

#[test]
fn a_burst_is_collected_in_pieces_and_no_withdrawal_or_command_comes_before_its_request() {
    let inbox = Inbox::new(1000, 0);
    let early: Vec<_> = (0..150).map(|_| submit(&inbox)).collect();
    let (reply, _answer) = oneshot::channel();
    inbox.command(|_| Command::Resume(reply));
    let late: Vec<_> = (0..50).map(|_| submit(&inbox)).collect();
    for &id in early.iter().chain(&late) {
        inbox.withdraw(id, Withdrawal::Cancelled);
    }
    let (mut taken, mut withdrawn, mut executed_after) = (Vec::new(), Vec::new(), None);
    while taken.len() < 200 {
        let mail = inbox.collect(Wait::No);
        assert!((1..=MOST_COLLECTED).contains(&mail.requests.len()));
        taken.extend(mail.requests.iter().map(|request| request.id));
        withdrawn.extend(mail.withdrawn.iter().map(|&(id, _)| id));
        assert_eq!(taken, withdrawn, "as many as possible, and none too early");
        assert_eq!(
            inbox.stats().waiting,
            200,
            "a collected request still waits"
        );
        if !mail.commands.is_empty() {
            assert!(taken.len() >= 150, "the command came after 150 requests");
            assert_eq!(executed_after.replace(taken.len()), None, "given once");
        }
    }
    assert_eq!(taken, [early, late].concat());
    assert_eq!(executed_after, Some(3 * MOST_COLLECTED));
}

#[test]
fn commands_wait_until_the_last_of_two_steps_has_completed() {
    let inbox = Inbox::new(1, 0);
    let (reply, _answer) = oneshot::channel();
    inbox.command(|_| Command::Resume(reply));
    inbox.step_completed();
    let mail = inbox.collect(Wait::ForStep { in_flight: 2 });
    assert!(mail.step_completed && mail.commands.is_empty() && mail.commands_wait);
    inbox.step_completed();
    let mail = inbox.collect(Wait::ForStep { in_flight: 1 });
    assert!(mail.step_completed && mail.commands.len() == 1 && !mail.commands_wait);
}
