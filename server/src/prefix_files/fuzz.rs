//! Damaged files give an error, and never a panic or other tokens than were written.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::block::{self, Block, Kind};

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;

use mutate::{Random, bytes as damage, cases};

const KIND: Kind = Kind {
    identity: 0x0123_4567_89ab_cdef,
    token_bytes: 24,
};
/// Damaged copies, if no variable says otherwise.
const CASES: u64 = 3000;

fn sample() -> (Block, Vec<u8>) {
    let block = Block {
        namespace: "key:5:alice:salt".to_owned(),
        tokens: (0..300).collect(),
        from: 256,
    };
    let kv: Vec<u8> = (0..44 * KIND.token_bytes).map(|i| i as u8).collect();
    let mut file = block::head(KIND, &block.namespace, &block.tokens, block.from, &kv);
    file.extend(&kv);
    (block, file)
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let (block, file) = sample();
    let (read, kv) = block::read(&file, KIND).unwrap();
    assert_eq!(read, block);
    assert_eq!(kv.len(), 44 * KIND.token_bytes);
    let other = Kind {
        identity: 1,
        ..KIND
    };
    assert_eq!(block::read(&file, other), Err(block::BadFile::Identity));
}

#[test]
fn a_damaged_file_is_an_error_and_nothing_worse() {
    let (block, whole) = sample();
    let (mut count, mut refused, mut forged_read) = (0, 0, 0);
    for case in cases(CASES) {
        let mut file = whole.clone();
        damage(&mut file, &mut Random(case));
        count += 1;
        let read = |file: &[u8]| {
            catch_unwind(AssertUnwindSafe(|| block::read(file, KIND)))
                .unwrap_or_else(|_| panic!("case {case} panics"))
        };
        match read(&file) {
            Ok((read, _)) => assert_eq!((read, &file), (block.clone(), &whole), "case {case}"),
            Err(_) => refused += 1,
        }
        // Someone who damages a file on purpose mends its checksum.
        if file.len() >= 16 {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&file[16..]);
            file[12..16].copy_from_slice(&hasher.finalize().to_le_bytes());
            if let Ok((read, kv)) = read(&file) {
                forged_read += 1;
                let own = read.tokens.len() - read.from;
                assert_eq!(kv.len(), own * KIND.token_bytes, "case {case}");
            }
        }
    }
    println!("{count} damaged files: {refused} refused, {forged_read} read with a mended checksum");
    assert!(refused > 0 && forged_read > 0, "damage was not varied");
}
