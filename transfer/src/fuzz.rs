//! Damaged messages on the wire of keys and values: each is read or refused, with or without proof of
//! the secret, and takes no more memory than its bound.

#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use std::time::Duration;

use mutate::{Random, cases};

use crate::frame;
use crate::message::{Hello, Message, Pages, PullRequest, Trust};

const CASES: u64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a frame before its payload: length, kind and checksum.
const HEAD: usize = 9;

fn messages() -> Vec<Message> {
    let hello = Hello {
        version: 1,
        nonce: vec![1, 2, 3],
        with_secret: true,
    };
    let pull = PullRequest {
        room: u64::MAX,
        from: 3,
        tokens: 40,
        digest: 12345,
    };
    let pages = Pages {
        from: 3,
        tokens: 2,
        bytes: vec![9; 200],
    };
    vec![
        Message::Hello(hello),
        Message::Proof(vec![7; 32]),
        Message::Fail("no such room".to_owned()),
        Message::Pull(pull),
        Message::Alive,
        Message::Pages(pages),
        Message::Output(b"{\"tokens\":[1]}".to_vec()),
        Message::Done,
    ]
}

#[test]
fn a_damaged_message_is_read_or_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut whole = Vec::new();
        for message in messages() {
            let mut bytes = Vec::new();
            message.send(&mut bytes, PATIENCE).await.unwrap();
            whole.push(bytes);
        }
        let (mut count, mut read) = (0, 0);
        for case in cases(CASES) {
            let mut random = Random(case);
            let mut bytes = whole[random.below(whole.len())].clone();
            if random.below(2) == 0 {
                mutate::bytes(&mut bytes, &mut random);
            } else {
                // The payload alone is damaged, and the frame around it is whole.
                let mut payload = bytes.split_off(HEAD);
                mutate::bytes(&mut payload, &mut random);
                let kind = if random.below(8) == 0 {
                    random.word() as u8
                } else {
                    bytes[4]
                };
                bytes.clear();
                frame::write(&mut bytes, kind, &[&payload], PATIENCE)
                    .await
                    .unwrap();
            }
            let trust = match random.below(2) {
                0 => Trust::Stranger,
                _ => Trust::Proven,
            };
            let mut stream = bytes.as_slice();
            count += 1;
            read += u64::from(Message::receive(&mut stream, trust, PATIENCE).await.is_ok());
        }
        println!("{count} damaged messages, {read} read");
        assert!(read > 0 && read < count, "damage was not varied");
    });
}
