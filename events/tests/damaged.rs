//! Damaged batches of KV events, as a publisher that is not trusted might send them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use hearth_events::{BlockHash, BlockRemoved, BlockStored, EventBatch, ExtraKey, KvEvent};
use mutate::{Random, cases};

const CASES: u64 = 20_000;

#[test]
fn a_damaged_batch_is_read_or_refused() {
    let stored = BlockStored {
        block_hashes: vec![BlockHash(7), BlockHash(u64::MAX)],
        parent_block_hash: Some(BlockHash(3)),
        token_ids: vec![1, 2, 3, 4],
        block_size: 2,
        medium: Some("GPU".to_owned()),
        extra_keys: Some(vec![Some(vec![ExtraKey::Text("salt".to_owned())]), None]),
        ..BlockStored::default()
    };
    let removed = BlockRemoved {
        block_hashes: vec![BlockHash(7)],
        medium: None,
    };
    let events = vec![
        KvEvent::BlockStored(stored),
        KvEvent::BlockRemoved(removed),
        KvEvent::AllBlocksCleared,
    ];
    let whole = EventBatch { ts: 1.5, events }.encode().unwrap();
    assert!(EventBatch::decode(&whole).is_ok());
    let (mut count, mut read) = (0, 0);
    for case in cases(CASES) {
        let mut bytes = whole.clone();
        mutate::bytes(&mut bytes, &mut Random(case));
        count += 1;
        read += u64::from(EventBatch::decode(&bytes).is_ok());
    }
    println!("{count} damaged batches, {read} read");
    assert!(read > 0 && read < count, "damage was not varied");
}
