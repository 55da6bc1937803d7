//! Updates to an HTTP answer: whole, or as they come.

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, HeaderName};
use actix_web::web::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, Stream, StreamExt};
use hearth_engine::logprobs::TokenLogprobs;
use serde::Serialize;

use super::error::ApiError;
use super::exchange::{self, Exchange};
use super::generate::{Finish, PieceToken, Update, Updates};
use super::sse;
use super::stall;
use super::tally::Tally;

/// A write to the socket takes in what is ready until it has this many bytes.
const COALESCED_BYTES: usize = 16 * 1024;
/// nginx would otherwise collect a stream before passing it on.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// How an API writes the chunks of a stream.
pub trait ChunkFormat {
    /// Appends what `update` is to the client, or keeps it until the next
    /// [`flush`](Self::flush); `tally` has it counted already. Failures do not come here.
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>);
    /// Appends what was kept: the write that it belongs to is about to begin.
    fn flush(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}
    /// Appends what follows the last update, the end mark excepted.
    fn close(&mut self, tally: &Tally, out: &mut Vec<u8>);
    /// Appends a failure, in the middle of the stream.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse::push(out, &error.body());
    }
    /// What every stream ends with.
    fn end_mark(&self) -> &'static [u8] {
        sse::DONE
    }
    fn content_type(&self) -> &'static str {
        sse::CONTENT_TYPE
    }
}

/// An answer that is written while the model generates. It holds the
/// generations: when the client goes away, actix drops it, which cancels them.
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
    /// Bytes of the last write, which the next one will have or nearly.
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
        last_write: 0,
    };
    stream::unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next_write().await?;
        Some((Ok(bytes), streaming))
    })
}

impl<F: ChunkFormat> Streaming<F> {
    /// Waits for the first news, then takes in what is there already: one write
    /// for all tokens of a step, however many choices they belong to.
    async fn next_write(&mut self) -> Option<Bytes> {
        let mut out = Vec::with_capacity(self.last_write);
        while !self.closed && out.is_empty() {
            let next = self.updates.next().await;
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

    fn take(&mut self, next: Option<(usize, Update)>, out: &mut Vec<u8>) {
        if let Some((index, update)) = &next {
            self.tally.record(*index, update);
        }
        match next {
            Some((_, Update::Failed(error))) => {
                // The status line is long gone: the stream itself says it.
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

/// The text of a whole answer.
pub fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer)
        .expect("response types serialise: their map keys are strings and no writer fails")
}

/// One choice, complete.
#[derive(Debug, Default)]
pub struct Whole {
    pub text: String,
    /// The output tokens, without the one that ended them.
    pub ids: Vec<u32>,
    pub tokens: Vec<PieceToken>,
    pub prompt_logprobs: Vec<Option<TokenLogprobs>>,
    pub embedding: Vec<f32>,
    pub finish: Option<Finish>,
}

impl Whole {
    /// Adds what `update` brought.
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

    /// How long its JSON will be at the least.
    pub fn json_bytes(&self) -> usize {
        /// A token with its log-probability.
        const LOGPROB: usize = 64;
        /// A number of an embedding.
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

/// All choices, by index, once the last is finished.
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
