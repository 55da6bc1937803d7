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
fn a_burst_is_taken_in_pieces_and_what_concerns_a_request_comes_with_it_or_later() {
    let inbox = Inbox::new(1000);
    let early: Vec<_> = (0..150).map(|_| submit(&inbox)).collect();
    let (reply, _answer) = oneshot::channel();
    inbox.command(|_| Command::Resume(reply));
    let late: Vec<_> = (0..50).map(|_| submit(&inbox)).collect();
    for &id in early.iter().chain(&late) {
        inbox.withdraw(id, Withdrawal::Cancelled);
    }
    let (mut taken, mut withdrawn, mut obeyed) = (Vec::new(), Vec::new(), None);
    while taken.len() < 200 {
        let mail = inbox.collect(Wait::Not);
        assert!((1..=MOST_TAKEN).contains(&mail.submitted.len()));
        taken.extend(mail.submitted.iter().map(|submission| submission.id));
        withdrawn.extend(mail.withdrawn.iter().map(|&(id, _)| id));
        assert_eq!(taken, withdrawn, "as many as can be, and none too early");
        assert_eq!(inbox.stats().waiting, 200, "whoever is taken still waits");
        if !mail.commands.is_empty() {
            assert!(taken.len() >= 150, "the command came after 150 requests");
            assert_eq!(obeyed.replace(taken.len()), None, "given once");
        }
    }
    assert_eq!(taken, [early, late].concat());
    assert_eq!(obeyed, Some(3 * MOST_TAKEN));
}

#[test]
fn commands_wait_until_the_last_of_two_steps_has_landed() {
    let inbox = Inbox::new(1);
    let (reply, _answer) = oneshot::channel();
    inbox.command(|_| Command::Resume(reply));
    inbox.landed();
    let mail = inbox.collect(Wait::ForLanding { of: 2 });
    assert!(mail.landed && mail.commands.is_empty() && mail.commands_wait);
    inbox.landed();
    let mail = inbox.collect(Wait::ForLanding { of: 1 });
    assert!(mail.landed && mail.commands.len() == 1 && !mail.commands_wait);
}
