//! From the updates of a request to its HTTP answer: a whole one, or a stream.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, HeaderName};
use actix_web::web::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, Stream, StreamExt};
use hearth_engine::logprobs::TokenLogprobs;
use serde::Serialize;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::exchange::{self, Exchange};
use crate::generate::{Finish, PieceToken, Update, Updates};
use crate::tally::Tally;
use crate::{offload, sse, stall};

/// A write to the socket collects the updates that are ready until it has this many bytes.
const COALESCED_BYTES: usize = 16 * 1024;
/// Proxies close connections that are silent, often after a minute.
const SILENCE: Duration = Duration::from_secs(15);
/// A comment of a stream of server-sent events, which clients skip.
const HEARTBEAT: &[u8] = b": the request is being worked on\n\n";
/// Tells nginx to pass a stream on at once, instead of buffering it.
pub const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// How a dialect writes the chunks of a stream.
pub trait ChunkFormat {
    /// Appends the chunk for `update`, or keeps it until the next [`flush`](Self::flush). `tally`
    /// has counted it already. Failures go to [`fail`](Self::fail) instead.
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>);
    /// Appends what was kept, because a write is about to begin.
    fn flush(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}
    /// Appends what follows the last update, except the end mark.
    fn close(&mut self, tally: &Tally, out: &mut Vec<u8>);
    /// Appends a failure: the status line has been sent, so the stream itself must say it.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse::push(out, &error.body());
    }
    /// The bytes that every stream ends with.
    fn end_mark(&self) -> &'static [u8] {
        sse::DONE
    }
    fn content_type(&self) -> &'static str {
        sse::CONTENT_TYPE
    }
}

/// An answer that is written while the model generates. It owns the generations: when the client
/// goes away actix drops it, which cancels them.
pub fn streamed(
    updates: Updates,
    tally: Tally,
    format: impl ChunkFormat + 'static,
) -> HttpResponse {
    exchange::note_stream();
    let mut response = HttpResponse::Ok();
    response
        .content_type(format.content_type())
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header((X_ACCEL_BUFFERING, "no"));
    let events = events(updates, tally, format);
    match Exchange::current() {
        Some(exchange) => response.streaming(stall::cut_off(events, exchange.stall_timeout)),
        None => response.streaming(events),
    }
}

struct Streaming<F> {
    updates: Updates,
    tally: Tally,
    format: F,
    closed: bool,
    /// How long a stream may be silent before it says that the request is still worked on.
    patience: Duration,
    /// Bytes of the last write. The next one will have about as many.
    last_write: usize,
}

fn events(
    updates: Updates,
    tally: Tally,
    format: impl ChunkFormat,
) -> impl Stream<Item = Result<Bytes, ApiError>> {
    let streaming = Streaming {
        updates,
        tally,
        format,
        closed: false,
        patience: SILENCE,
        last_write: 0,
    };
    stream::unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next_write().await?;
        Some((Ok(bytes), streaming))
    })
}

impl<F: ChunkFormat> Streaming<F> {
    /// Waits for the first update, then takes all that are ready: the tokens of one step go out in
    /// one write, however many choices they belong to.
    async fn next_write(&mut self) -> Option<Bytes> {
        let mut out = Vec::with_capacity(self.last_write);
        while !self.closed && out.is_empty() {
            let Some(next) = self.next_update().await else {
                return Some(Bytes::from_static(HEARTBEAT));
            };
            self.take(next, &mut out);
            while !self.closed && out.len() < COALESCED_BYTES {
                let Some(next) = self.updates.next().now_or_never() else {
                    break;
                };
                self.take(next, &mut out);
            }
            if !self.closed {
                self.format.flush(&self.tally, &mut out);
            }
        }
        self.last_write = out.len();
        (!out.is_empty()).then(|| out.into())
    }

    /// The next update or the end of the updates; `None` if neither comes for a while and the format
    /// has comments.
    async fn next_update(&mut self) -> Option<Option<(usize, Update)>> {
        if let Some(next) = self.updates.next().now_or_never() {
            return Some(next);
        }
        match self.format.content_type() {
            sse::CONTENT_TYPE => timeout(self.patience, self.updates.next()).await.ok(),
            _ => Some(self.updates.next().await),
        }
    }

    fn take(&mut self, next: Option<(usize, Update)>, out: &mut Vec<u8>) {
        if let Some((index, update)) = &next {
            self.tally.record(*index, update);
        }
        match next {
            Some((_, Update::Failed(error))) => {
                // The status line has been sent: the stream itself must say it.
                self.format.flush(&self.tally, out);
                self.format.fail(&error, out);
                // Cancels what still runs.
                self.updates = stream::empty().boxed();
                self.end(out);
            }
            Some((index, update)) => self.format.update(index, update, &self.tally, out),
            None => {
                self.format.flush(&self.tally, out);
                self.format.close(&self.tally, out);
                self.end(out);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.format.end_mark());
        self.closed = true;
    }
}

/// The JSON of a whole answer.
pub fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer)
        .expect("response types serialise: their map keys are strings and no writer fails")
}

/// One choice, complete.
#[derive(Debug, Default)]
pub struct Whole {
    pub text: String,
    /// The output tokens, without the one that ended the output.
    pub ids: Vec<u32>,
    pub tokens: Vec<PieceToken>,
    pub prompt_logprobs: Vec<Option<TokenLogprobs>>,
    pub embedding: Vec<f32>,
    pub finish: Option<Finish>,
}

impl Whole {
    /// Adds `update`.
    ///
    /// # Errors
    /// The choice failed.
    pub fn take(&mut self, update: Update) -> Result<(), ApiError> {
        match update {
            Update::Started { .. } => {}
            Update::PromptLogprobs(logprobs) => self.prompt_logprobs = logprobs,
            Update::Embedding(vector) => self.embedding = vector,
            Update::Text(piece) => {
                self.text.push_str(&piece.text);
                self.ids.extend(piece.ids);
                self.tokens.extend(piece.tokens);
            }
            Update::Finished(mut finish) => {
                self.ids.append(&mut finish.ids);
                self.finish = Some(finish);
            }
            Update::Failed(error) => return Err(error),
        }
        Ok(())
    }

    /// A lower bound on the length of its JSON in bytes.
    fn json_bytes(&self) -> usize {
        /// Bytes of a token with its log-probability.
        const LOGPROB: usize = 64;
        /// Bytes of a number of an embedding.
        const NUMBER: usize = 12;
        let told = |logprobs: &TokenLogprobs| 1 + logprobs.top.len() + logprobs.asked.len();
        let output = self.tokens.iter().map(|token| told(&token.logprobs));
        let prompt = self.prompt_logprobs.iter();
        let prompt = prompt.map(|logprobs| logprobs.as_ref().map_or(1, told));
        self.text.len()
            + output.chain(prompt).sum::<usize>() * LOGPROB
            + self.embedding.len() * NUMBER
    }
}

/// The answer whose JSON `write` makes of `wholes`. A large one is written off the threads that serve
/// connections.
///
/// # Errors
/// The error of `write`, and a 500 when it panics.
pub async fn written(
    wholes: Vec<Whole>,
    write: impl FnOnce(Vec<Whole>) -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Result<HttpResponse, ApiError> {
    let size = wholes.iter().map(Whole::json_bytes).sum();
    let body = offload::when_large(size, move || write(wholes)).await??;
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .body(body))
}

/// Waits until every choice has finished and gives them by index.
///
/// # Errors
/// The first choice that fails; the others are cancelled.
pub async fn collected(mut updates: Updates, tally: &mut Tally) -> Result<Vec<Whole>, ApiError> {
    let mut choices: Vec<Whole> = (0..tally.choices()).map(|_| Whole::default()).collect();
    while let Some((index, update)) = updates.next().await {
        tally.record(index, &update);
        choices[index].take(update)?;
    }
    Ok(choices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    struct Plain(&'static str);

    impl ChunkFormat for Plain {
        fn update(&mut self, _: usize, _: Update, _: &Tally, out: &mut Vec<u8>) {
            out.push(b'x');
        }
        fn close(&mut self, _: &Tally, _: &mut Vec<u8>) {}
        fn content_type(&self) -> &'static str {
            self.0
        }
    }

    /// The writes of a stream whose only update comes late.
    async fn writes(content_type: &'static str) -> Vec<Bytes> {
        let late = stream::once(async {
            sleep(Duration::from_millis(200)).await;
            (0, Update::Embedding(Vec::new()))
        });
        let mut streaming = Streaming {
            updates: late.boxed(),
            tally: Tally::new("id".to_owned(), "/", 1, 1),
            format: Plain(content_type),
            closed: false,
            patience: Duration::from_millis(20),
            last_write: 0,
        };
        let mut writes = Vec::new();
        while let Some(bytes) = streaming.next_write().await {
            writes.push(bytes);
        }
        writes
    }

    #[actix_web::test]
    async fn a_silent_stream_of_events_has_comments_and_one_of_lines_has_none() {
        let events = writes(sse::CONTENT_TYPE).await;
        assert!(events.len() >= 3, "{events:?}");
        assert_eq!(events[0], HEARTBEAT);
        assert!(events.concat().ends_with(b"xdata: [DONE]\n\n"));
        assert_eq!(writes("application/x-ndjson").await.len(), 1);
    }
}
