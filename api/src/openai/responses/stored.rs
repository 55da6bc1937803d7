//! The responses that the server stores: in memory, a bounded number of them, and for an hour.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};
use futures_util::future::AbortHandle;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::exchange::Exchange;
use crate::state::AppState;

/// Most responses that are stored. The oldest are dropped first.
const MAX_RESPONSES: usize = 1024;
/// Most bytes of JSON that they may have together.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long each is stored.
const TIME_TO_LIVE: Duration = Duration::from_secs(3600);

/// Whose response it is: the name of the API key that made it; `None` where it was made without one
/// of a name.
pub type Owner = Option<String>;

/// The owner of the responses that the current request makes, and the only one whose it sees.
pub fn owner() -> Owner {
    let exchange = Exchange::current()?;
    exchange.client().map(|client| client.name.clone())
}

/// Where a response is stored, under its owner.
pub struct Keeper {
    state: Data<AppState>,
    owner: Owner,
}

impl Keeper {
    /// For a response that the current request makes.
    pub fn new(state: Data<AppState>) -> Self {
        let owner = owner();
        Self { state, owner }
    }

    /// Stores a response with the conversation up to it; `running` ends its computation in the
    /// background.
    pub fn keep(&self, response: Value, messages: Vec<Value>, running: Option<AbortHandle>) {
        self.state.responses.keep(Stored {
            response,
            messages: Arc::new(messages),
            running,
            owner: self.owner.clone(),
        });
    }

    /// Stores the result of a computation in the background.
    pub fn finish(&self, response: Value, messages: Vec<Value>) {
        self.state.responses.replace_running(Stored {
            response,
            messages: Arc::new(messages),
            running: None,
            owner: self.owner.clone(),
        });
    }
}

/// A response, and the conversation up to it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub response: Value,
    /// The messages as the chat template sees them, without the instructions of any request.
    pub messages: Arc<Vec<Value>>,
    /// Ends the computation of a response in the background.
    pub running: Option<AbortHandle>,
    owner: Owner,
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
    fn keep(&self, stored: Stored) {
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
        if self
            .get(id, &stored.owner)
            .is_some_and(|stored| runs(&stored))
        {
            self.keep(stored);
        }
    }

    /// The response with this id, if it is the `owner`'s. Somebody else's looks as if there were none.
    pub fn get(&self, id: &str, owner: &Owner) -> Option<Stored> {
        let mut shelf = self.shelf();
        shelf.clear_out(Instant::now());
        let stored = &shelf.entries.get(id)?.stored;
        (stored.owner == *owner).then(|| stored.clone())
    }

    fn remove(&self, id: &str, owner: &Owner) -> Option<Stored> {
        self.get(id, owner)?;
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
    let stored = state.responses.get(&id, &owner());
    let stored = stored.ok_or_else(|| not_found(&id))?;
    Ok(HttpResponse::Ok().json(stored.response))
}

/// # Errors
/// 404 for a response that is not stored, or not any more.
pub async fn delete(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let stored = state.responses.remove(&id, &owner());
    let stored = stored.ok_or_else(|| not_found(&id))?;
    if let Some(running) = stored.running {
        running.abort();
    }
    let answer = json!({"id": id.as_str(), "object": "response", "deleted": true});
    Ok(HttpResponse::Ok().json(answer))
}

/// # Errors
/// 404 for a response that is not stored, 400 for one that does not run in the background.
pub async fn cancel(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let stored = state.responses.get(&id, &owner());
    let mut stored = stored.ok_or_else(|| not_found(&id))?;
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
            owner: None,
        }
    }

    fn is_there(responses: &Responses, id: &str) -> bool {
        responses.get(id, &None).is_some()
    }

    #[test]
    fn a_response_is_seen_by_its_owner_alone() {
        let responses = Responses::default();
        let ann = Some("ann".to_owned());
        responses.keep(Stored {
            owner: ann.clone(),
            ..stored(1, 10)
        });
        for other in [None, Some("bob".to_owned())] {
            assert!(responses.get("1", &other).is_none());
            assert!(responses.remove("1", &other).is_none());
        }
        assert!(responses.get("1", &ann).is_some());
        assert!(responses.remove("1", &ann).is_some());
        assert!(responses.get("1", &ann).is_none());
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_large() {
        let responses = Responses::default();
        for id in 0..=MAX_RESPONSES {
            responses.keep(stored(id, 1));
        }
        assert!(!is_there(&responses, "0") && is_there(&responses, "1"));
        responses.keep(stored(5000, MAX_BYTES / 2));
        responses.keep(stored(5001, MAX_BYTES / 2));
        assert!(!is_there(&responses, "5000") && is_there(&responses, "5001"));
        assert!(!is_there(&responses, "1"));
        let shelf = responses.shelf();
        assert_eq!((shelf.entries.len(), shelf.order.len()), (1, 1));
    }

    #[test]
    fn what_is_too_old_goes_and_what_is_deleted_leaves_nothing() {
        let responses = Responses::default();
        responses.keep(stored(1, 10));
        responses.keep(stored(2, 10));
        responses.remove("1", &None);
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
        responses.remove("1", &None);
        let finish = |response: Value| {
            responses.replace_running(Stored {
                response,
                ..stored(1, 0)
            });
        };
        finish(json!({"id": "1"}));
        assert!(!is_there(&responses, "1"));
        responses.keep(running);
        finish(json!({"id": "1", "status": "completed"}));
        let done = responses.get("1", &None).unwrap();
        assert_eq!(done.response["status"], "completed");
    }
}
