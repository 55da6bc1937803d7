//! The responses that the server stores: in memory, a bounded number of them, and for an hour.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};
use futures_util::future::AbortHandle;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::AppState;

/// Most responses that are stored. The oldest are dropped first.
const MAX_RESPONSES: usize = 1024;
/// Most bytes of JSON that they may have together.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long each is stored.
const TIME_TO_LIVE: Duration = Duration::from_secs(3600);

/// A response, and the conversation up to it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub response: Value,
    /// The messages as the chat template sees them, without the instructions of any request.
    pub messages: Arc<Vec<Value>>,
    /// Ends the computation of a response in the background.
    pub running: Option<AbortHandle>,
}

#[derive(Debug, Default)]
pub struct Responses(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    /// The ids in the order of arrival. Ids of deleted responses stay until their turn comes.
    order: VecDeque<(Instant, String)>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    stored: Stored,
    bytes: usize,
}

impl Responses {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores it under the response's id. A response with the same id is replaced.
    pub fn keep(&self, stored: Stored) {
        let id = stored.response["id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mut shelf = self.shelf();
        if shelf.remove(&id).is_none() {
            shelf.order.push_back((Instant::now(), id.clone()));
        }
        let texts = stored
            .messages
            .iter()
            .map(|message| length(&message["content"]));
        let bytes = texts.sum::<usize>() + length(&stored.response);
        shelf.bytes += bytes;
        shelf.entries.insert(id, Entry { stored, bytes });
        shelf.clear_out(Instant::now());
    }

    /// Replaces the response with the same id, if that is still stored and still running.
    fn replace_running(&self, stored: Stored) {
        let id = stored.response["id"].as_str().unwrap_or_default();
        let runs = |stored: &Stored| stored.running.is_some();
        if self.get(id).is_some_and(|stored| runs(&stored)) {
            self.keep(stored);
        }
    }

    pub fn get(&self, id: &str) -> Option<Stored> {
        let mut shelf = self.shelf();
        shelf.clear_out(Instant::now());
        shelf.entries.get(id).map(|entry| entry.stored.clone())
    }

    /// Stores the result of a computation in the background.
    pub fn finish(&self, response: Value, messages: Vec<Value>) {
        self.replace_running(Stored {
            response,
            messages: Arc::new(messages),
            running: None,
        });
    }

    fn remove(&self, id: &str) -> Option<Stored> {
        self.shelf().remove(id)
    }
}

impl Shelf {
    fn remove(&mut self, id: &str) -> Option<Stored> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.bytes;
        Some(entry.stored)
    }

    /// Drops the responses that are too old, and the oldest while there are too many.
    fn clear_out(&mut self, now: Instant) {
        while let Some((since, id)) = self.order.front() {
            let full = self.entries.len() > MAX_RESPONSES || self.bytes > MAX_BYTES;
            let gone = !self.entries.contains_key(id);
            if !(full || gone || now.duration_since(*since) > TIME_TO_LIVE) {
                break;
            }
            let (_, id) = self.order.pop_front().expect("it was just looked at");
            // Nothing can read its result any more.
            if let Some(running) = self.remove(&id).and_then(|stored| stored.running) {
                running.abort();
            }
        }
    }
}

/// About the number of bytes of the strings in `value`.
fn length(value: &Value) -> usize {
    const REST: usize = 64;
    match value {
        Value::String(text) => REST + text.len(),
        Value::Array(list) => list.iter().map(length).sum::<usize>() + REST,
        Value::Object(map) => map.values().map(length).sum::<usize>() + REST,
        _ => REST,
    }
}

fn not_found(id: &str) -> ApiError {
    ApiError::response_not_found(id)
}

/// # Errors
/// 404 for a response that is not stored, or not any more.
pub async fn retrieve(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let stored = state.responses.get(&id).ok_or_else(|| not_found(&id))?;
    Ok(HttpResponse::Ok().json(stored.response))
}

/// # Errors
/// 404 for a response that is not stored, or not any more.
pub async fn delete(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let stored = state.responses.remove(&id).ok_or_else(|| not_found(&id))?;
    if let Some(running) = stored.running {
        running.abort();
    }
    let answer = json!({"id": id.as_str(), "object": "response", "deleted": true});
    Ok(HttpResponse::Ok().json(answer))
}

/// # Errors
/// 404 for a response that is not stored, 400 for one that does not run in the background.
pub async fn cancel(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let mut stored = state.responses.get(&id).ok_or_else(|| not_found(&id))?;
    if stored.response["background"] != true {
        let message = "only a response that was made with `background` true can be cancelled";
        return Err(ApiError::bad_request(message));
    }
    // As in OpenAI's API, a response that is complete stays as it is.
    if let Some(running) = stored.running.take() {
        stored.response["status"] = "cancelled".into();
        state.responses.replace_running(stored.clone());
        running.abort();
    }
    Ok(HttpResponse::Ok().json(stored.response))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: usize, bytes: usize) -> Stored {
        let text = "x".repeat(bytes);
        Stored {
            response: json!({"id": id.to_string()}),
            messages: Arc::new(vec![json!({"role": "user", "content": text})]),
            running: None,
        }
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_large() {
        let responses = Responses::default();
        for id in 0..=MAX_RESPONSES {
            responses.keep(stored(id, 1));
        }
        assert!(responses.get("0").is_none() && responses.get("1").is_some());
        responses.keep(stored(5000, MAX_BYTES / 2));
        responses.keep(stored(5001, MAX_BYTES / 2));
        assert!(responses.get("5000").is_none() && responses.get("5001").is_some());
        assert!(responses.get("1").is_none());
        let shelf = responses.shelf();
        assert_eq!((shelf.entries.len(), shelf.order.len()), (1, 1));
    }

    #[test]
    fn what_is_too_old_goes_and_what_is_deleted_leaves_nothing() {
        let responses = Responses::default();
        responses.keep(stored(1, 10));
        responses.keep(stored(2, 10));
        responses.remove("1");
        let later = Instant::now() + TIME_TO_LIVE + Duration::from_secs(1);
        let mut shelf = responses.shelf();
        shelf.clear_out(later);
        assert_eq!(
            (shelf.entries.len(), shelf.order.len(), shelf.bytes),
            (0, 0, 0)
        );
    }

    #[test]
    fn what_was_deleted_meanwhile_does_not_come_back() {
        let responses = Responses::default();
        let (running, _) = AbortHandle::new_pair();
        let running = Stored {
            running: Some(running),
            ..stored(1, 10)
        };
        responses.keep(running.clone());
        responses.remove("1");
        responses.finish(json!({"id": "1"}), Vec::new());
        assert!(responses.get("1").is_none());
        responses.keep(running);
        responses.finish(json!({"id": "1", "status": "completed"}), Vec::new());
        assert_eq!(responses.get("1").unwrap().response["status"], "completed");
    }
}
