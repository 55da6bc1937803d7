//! The parts of prefill's response that the client gets: log-probabilities of the prompt on `/generate`, and
//! `usage.prompt_tokens_details` on OpenAI's routes, which say what was cached where the prompt was
//! computed.
//!
//! Values are copied as they are written, so that no number changes its spelling.

use actix_web::web::Bytes;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::body::{Fields, objects};
use crate::sse::{Events, PATIENCE, data, find};

/// Log-probabilities of prompts, in `meta_info`.
const LOGPROBS: [&str; 3] = [
    "input_token_logprobs",
    "input_top_logprobs",
    "input_token_ids_logprobs",
];
const DETAILS: &str = "prompt_tokens_details";

/// The fields [`LOGPROBS`] of each prompt of a request, each as the text of a JSON array.
#[derive(Debug, Default)]
pub struct InputLogprobs(Vec<[Option<String>; 3]>);

impl InputLogprobs {
    /// Reads prefill's response, streamed or not.
    pub fn read(body: &[u8], streamed: bool) -> Self {
        let mut all = Self::default();
        if streamed {
            for event in all_events(body) {
                if let Some(fields) = data(&event).and_then(|data| Fields::parse(data).ok()) {
                    all.add(index(&fields), &fields);
                }
            }
        } else if let Ok(fields) = Fields::parse(body) {
            all.add(0, &fields);
        } else if let Some(responses) = objects(body) {
            for (index, fields) in responses.iter().enumerate() {
                all.add(index, fields);
            }
        }
        all
    }

    /// Takes in a response of prefill to the prompt at `index`. A later event of a stream replaces
    /// an earlier one, unless it has no log-probabilities.
    fn add(&mut self, index: usize, response: &Fields<'_>) {
        let Some(meta) = meta(response) else { return };
        if index >= self.0.len() {
            // An index is bounded by the events of a response that was bounded when it was read.
            self.0.resize_with(index.min(1 << 16) + 1, Default::default);
        }
        let Some(own) = self.0.get_mut(index) else {
            return;
        };
        for (own, name) in own.iter_mut().zip(LOGPROBS) {
            let array = meta.given(name).filter(|array| !inside(array).is_empty());
            if let Some(array) = array {
                *own = Some(array.to_owned());
            }
        }
    }

    /// Decode's response with prefill's log-probabilities before its own.
    pub fn merged(&self, decode: &[u8]) -> Option<String> {
        if let Ok(fields) = Fields::parse(decode) {
            return self.merged_one(index(&fields), &fields);
        }
        let responses = objects(decode)?;
        let merged = responses.iter().enumerate().map(|(index, fields)| {
            self.merged_one(index, fields).unwrap_or_else(|| {
                let mut text = String::new();
                fields.write(&mut text);
                format!("{{{text}}}")
            })
        });
        Some(format!("[{}]", merged.collect::<Vec<_>>().join(",")))
    }

    fn merged_one(&self, index: usize, decode: &Fields<'_>) -> Option<String> {
        // The samples of one prompt share its log-probabilities.
        let own = self.0.get(index).or_else(|| self.0.first())?;
        let mut text = decode.given("meta_info")?.to_owned();
        for (prefill, name) in own.iter().zip(LOGPROBS) {
            if let Some(prefill) = prefill {
                let meta = Fields::parse(text.as_bytes()).ok()?;
                let array = joined(prefill, meta.given(name).unwrap_or("[]"));
                text = meta.with(name, &array);
            }
        }
        Some(decode.with("meta_info", &text))
    }
}

fn all_events(body: &[u8]) -> Vec<Bytes> {
    let mut events = Events::default();
    let mut all = events.add(body);
    all.extend(events.rest());
    all
}

fn index(response: &Fields<'_>) -> usize {
    response.read("index").unwrap_or(0)
}

fn meta<'a>(response: &Fields<'a>) -> Option<Fields<'a>> {
    Fields::parse(response.given("meta_info")?.as_bytes()).ok()
}

/// The text between the brackets of an array; empty for anything else.
fn inside(array: &str) -> &str {
    let inside = array.strip_prefix('[').and_then(|a| a.strip_suffix(']'));
    inside.unwrap_or("").trim()
}

fn joined(first: &str, second: &str) -> String {
    match (inside(first), inside(second)) {
        (first, "") => format!("[{first}]"),
        ("", second) => format!("[{second}]"),
        (first, second) => format!("[{first},{second}]"),
    }
}

/// `usage.prompt_tokens_details` of prefill's response, streamed or not.
pub fn prompt_details(body: &[u8], streamed: bool) -> Option<String> {
    let of = |text: &[u8]| {
        let response = Fields::parse(text).ok()?;
        let usage = Fields::parse(response.given("usage")?.as_bytes()).ok()?;
        usage.given(DETAILS).map(str::to_owned)
    };
    if !streamed {
        return of(body);
    }
    let events = all_events(body);
    events.iter().rev().find_map(|event| of(data(event)?))
}

/// Decode's response with these `prompt_tokens_details`; `None` if it has no usage.
pub fn with_details(decode: &[u8], details: &str) -> Option<String> {
    let response = Fields::parse(decode).ok()?;
    let usage = Fields::parse(response.given("usage")?.as_bytes()).ok()?;
    Some(response.with("usage", &usage.with(DETAILS, details)))
}

/// The data that the events of decode's stream are rewritten with.
#[derive(Debug)]
pub enum Rewriter {
    Logprobs(InputLogprobs),
    /// Prefill's body, which may not be there yet.
    Usage(Details),
}

/// `prompt_tokens_details`, read when they are first needed.
#[derive(Debug)]
pub enum Details {
    Pending(oneshot::Receiver<Bytes>),
    Read(Option<String>),
}

impl Rewriter {
    /// Whether a piece of a stream may have the begin of something to rewrite. Text of the model
    /// cannot look so: in a JSON string, the closing quote would have a backslash before it.
    pub fn concerns(&self, piece: &[u8]) -> bool {
        match self {
            Self::Logprobs(_) => LOGPROBS
                .iter()
                .any(|name| find(piece, format!("\"{name}\"").as_bytes()).is_some()),
            Self::Usage(_) => has_usage(piece),
        }
    }

    /// The event as the client gets it.
    pub async fn rewrite(&mut self, event: Bytes) -> Bytes {
        if !self.concerns(&event) {
            return event;
        }
        let Some(json) = data(&event) else {
            return event;
        };
        let merged = match self {
            Self::Logprobs(logprobs) => logprobs.merged(json),
            Self::Usage(details) => match details.get().await {
                Some(details) => with_details(json, details),
                None => None,
            },
        };
        match merged {
            Some(json) => Bytes::from(format!("data: {json}\n\n")),
            None => event,
        }
    }
}

impl Details {
    async fn get(&mut self) -> Option<&str> {
        if let Self::Pending(body) = self {
            // Prefill ends before decode begins, so that this practically never waits.
            let body = timeout(PATIENCE, body).await;
            let details = match body {
                Ok(Ok(body)) => prompt_details(&body, true),
                Ok(Err(_)) | Err(_) => None,
            };
            *self = Self::Read(details);
        }
        match self {
            Self::Read(details) => details.as_deref(),
            Self::Pending(_) => None,
        }
    }
}

/// Whether there is a `usage` that is an object: most events of a stream with usage have null.
fn has_usage(event: &[u8]) -> bool {
    const NAME: &[u8] = b"\"usage\"";
    let mut rest = event;
    while let Some(at) = find(rest, NAME) {
        rest = &rest[at + NAME.len()..];
        let value = rest.trim_ascii_start().strip_prefix(b":");
        if value.is_some_and(|value| value.trim_ascii_start().starts_with(b"{")) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFILL: &str = r#"{"text":"","meta_info":{"input_token_logprobs":[[null,1,null],[-0.50,2,null]],"input_top_logprobs":[null]}}"#;

    #[test]
    fn logprobs_of_the_prompt_come_before_those_of_decode() {
        let logprobs = InputLogprobs::read(PREFILL.as_bytes(), false);
        for (decode, expected) in [
            ("[]", "[[null,1,null],[-0.50,2,null]]"),
            ("null", "[[null,1,null],[-0.50,2,null]]"),
            (
                "[[-1e-3,3,null]]",
                "[[null,1,null],[-0.50,2,null],[-1e-3,3,null]]",
            ),
        ] {
            let decode = format!(
                r#"{{"text":"a","meta_info":{{"input_token_logprobs":{decode},"id":"x"}}}}"#
            );
            let merged = logprobs.merged(decode.as_bytes()).unwrap();
            let expected = format!(
                r#"{{"text":"a","meta_info":{{"input_token_logprobs":{expected},"id":"x","input_top_logprobs":[null]}}}}"#
            );
            assert_eq!(merged, expected);
        }
        assert_eq!(logprobs.merged(br#"{"error":{}}"#), None);
        let none = InputLogprobs::read(b"{}", false);
        assert_eq!(none.merged(PREFILL.as_bytes()), None);
    }

    #[test]
    fn each_prompt_of_a_batch_gets_its_own() {
        let one =
            |n: u32| format!(r#"{{"meta_info":{{"input_token_logprobs":[[-0.1,{n},null]]}}}}"#);
        let prefill = format!("[{},{}]", one(1), one(2));
        let decode = r#"[{"meta_info":{}},{"meta_info":{}}]"#;
        let logprobs = InputLogprobs::read(prefill.as_bytes(), false);
        assert_eq!(logprobs.merged(decode.as_bytes()).unwrap(), prefill);
        let stream = "data: {\"index\":1,\"meta_info\":{\"input_token_logprobs\":[[7]]}}\n\n\
                      data: {\"index\":0,\"meta_info\":{\"input_token_logprobs\":[[6]]}}\n\n\
                      data: {\"index\":1,\"meta_info\":{\"input_token_logprobs\":[]}}\n\ndata: [DONE]\n\n";
        let logprobs = InputLogprobs::read(stream.as_bytes(), true);
        let merged = logprobs.merged(br#"{"index":1,"meta_info":{}}"#).unwrap();
        assert_eq!(
            merged,
            r#"{"index":1,"meta_info":{"input_token_logprobs":[[7]]}}"#
        );
    }

    #[test]
    fn an_index_of_any_size_is_harmless() {
        let stream = "data: {\"index\":18446744073709551615,\"meta_info\":{}}\n\n";
        assert!(InputLogprobs::read(stream.as_bytes(), true).0.len() < 100_000);
    }

    #[test]
    fn prefill_says_what_was_cached() {
        let prefill =
            br#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let details = prompt_details(prefill, false).unwrap();
        let decode =
            br#"{"id":"a","usage":{"prompt_tokens":9,"prompt_tokens_details":null,"x":1}}"#;
        let merged = with_details(decode, &details).unwrap();
        assert_eq!(
            merged,
            r#"{"id":"a","usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4},"x":1}}"#
        );
        assert_eq!(
            prompt_details(br#"{"usage":{"prompt_tokens":9}}"#, false),
            None
        );
        assert_eq!(with_details(br#"{"usage":null}"#, &details), None);
    }

    #[test]
    fn only_events_with_a_usage_are_looked_at() {
        assert!(has_usage(
            br#"data: {"usage":null,"x":{"usage" : {"a":1}}}"#
        ));
        assert!(!has_usage(br#"data: {"usage":null}"#));
        assert!(!has_usage(br#"data: {"text":"\"usage\":{"}"#));
    }
}
