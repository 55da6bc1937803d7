//! Which worker keeps a stored response of `/v1/responses`.
//!
//! The id of a response is read out of the first bytes of its body, where it always is. The last
//! [`MOST`] ids are remembered.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sse::find;

const MOST: usize = 1 << 16;
/// The source of a response's id.
const BEFORE: &[u8] = b"\"id\":";
const PREFIX: &[u8] = b"resp_";
/// Longest id.
const LONGEST: usize = 256;

#[derive(Debug, Default)]
pub struct Stored(Mutex<Ids>);

#[derive(Debug, Default)]
struct Ids {
    workers: HashMap<String, String>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl Stored {
    /// Remembers the response whose body begins with `body` as kept by the worker of this id.
    pub fn learn(&self, body: &[u8], worker: &str) {
        let Some(id) = response_id(body) else { return };
        let mut ids = self.ids();
        if ids.workers.insert(id.clone(), worker.to_owned()).is_none() {
            ids.order.push_back(id);
        }
        if ids.order.len() > MOST
            && let Some(oldest) = ids.order.pop_front()
        {
            ids.workers.remove(&oldest);
        }
    }

    /// The id of the worker that keeps a response.
    pub fn worker(&self, id: &str) -> Option<String> {
        self.ids().workers.get(id).cloned()
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first id of a response in a body or in the begin of one.
fn response_id(body: &[u8]) -> Option<String> {
    let mut rest = body;
    while let Some(at) = find(rest, BEFORE) {
        rest = rest[at + BEFORE.len()..].trim_ascii_start();
        if let Some(id) = rest.strip_prefix(b"\"")
            && id.starts_with(PREFIX)
        {
            let end = id.iter().take(LONGEST).position(|&byte| byte == b'"')?;
            return String::from_utf8(id[..end].to_vec()).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_learned_from_bodies_and_from_streams() {
        let stored = Stored::default();
        stored.learn(br#"{"id": "resp_1", "output": [{"id": "msg_1"}]}"#, "a");
        let event =
            b"event: response.created\ndata: {\"type\":\"x\",\"response\":{\"id\":\"resp_2\"}}\n\n";
        stored.learn(event, "b");
        stored.learn(br#"{"id":"chatcmpl-1"}"#, "c");
        stored.learn(br#"{"id":"resp_3"#, "c");
        assert_eq!(stored.worker("resp_1").as_deref(), Some("a"));
        assert_eq!(stored.worker("resp_2").as_deref(), Some("b"));
        assert_eq!(stored.worker("chatcmpl-1"), None);
        assert_eq!(stored.ids().order.len(), 2);
    }

    #[test]
    fn the_oldest_ids_are_forgotten() {
        let stored = Stored::default();
        for number in 0..=MOST {
            stored.learn(format!(r#"{{"id":"resp_{number}"}}"#).as_bytes(), "a");
        }
        assert_eq!(stored.worker("resp_0"), None);
        assert!(stored.worker("resp_1").is_some());
        assert_eq!(stored.ids().workers.len(), MOST);
    }
}
