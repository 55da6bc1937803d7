//! One internal request for every dialect: prompts go in, and updates of each choice come out.
//!
//! **Architecture Invariant.** A dialect translates; only this file submits requests to the engine.
//! Dropping [`Updates`] cancels every choice that still runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{self, BoxStream, StreamExt};
use hearth_engine::constraint::Constrain;
use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::output::{Detokenize, TextDelta, TextOptions, TextStream};
use hearth_engine::{
    DraftCounts, Event, FinishReason, Pooling, Request, SamplingParams, SubmitError, TokenEvent,
    Usage,
};
use serde::Serialize;

use crate::adapters::{AdapterUse, Choice as AdapterChoice, InUse};
use crate::clients::InFlight;
use crate::disaggregation::{Disaggregation, Events};
use crate::error::{ApiError, out_of_bounds};
use crate::exchange::Exchange;
use crate::fields::disaggregation::Room;
use crate::fields::speculation::Drafting;
use crate::record::{self, Record, Siblings};
use crate::served::Served;
use crate::state::device_lost;

/// A request, ready for the engine.
#[derive(Clone, Debug, Default)]
pub struct Job {
    pub prompts: Vec<Vec<u32>>,
    /// Continuations of each prompt; choice `p * copies + c` is copy `c` of prompt `p`.
    pub copies: usize,
    pub params: SamplingParams,
    pub text: TextOptions,
    pub namespace: Option<String>,
    /// The adapter to compute with, if there is one.
    pub adapter: AdapterChoice,
    pub priority: i32,
    /// Where drafts of speculative decoding come from.
    pub drafting: Drafting,
    /// The grammar that every choice must follow.
    pub constraint: Option<Constrain>,
    /// Present where an embedding of each prompt is asked for, and no continuation.
    pub pooling: Option<Pooling>,
    /// The name by which `/abort_request` finds it, in place of the id of the HTTP request.
    pub id: Option<String>,
    /// Where prefill and decode servers meet, for each choice; empty where the request does not say.
    pub rooms: Vec<Room>,
    /// The name of the prompts in this dialect, for errors.
    pub prompt_field: &'static str,
}

impl Job {
    /// The name of the model in the answer: that of the adapter where the request selected one by it.
    pub fn model(&self, served: &Served) -> String {
        let name = self
            .adapter
            .0
            .as_ref()
            .and_then(|adapter| adapter.name.clone());
        name.unwrap_or_else(|| served.id.clone())
    }
}

/// One event of one choice, in the order in which the engine sends them.
#[derive(Clone, Debug)]
pub enum Update {
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
    },
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// `[hidden_size]`, not normalised.
    Embedding(Vec<f32>),
    Text(Piece),
    Finished(Finish),
    /// The choice failed; no update follows.
    Failed(ApiError),
}

/// Text, and the tokens whose log-probabilities belong to it.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    pub text: String,
    /// The tokens whose text this piece completes, and tokens without a text.
    pub ids: Vec<u32>,
    /// Filled where log-probabilities were asked for.
    pub tokens: Vec<PieceToken>,
    /// Tokens sampled so far, for `continuous_usage_stats`.
    pub completion_tokens: usize,
    pub drafts: DraftCounts,
}

#[derive(Clone, Debug)]
pub struct PieceToken {
    pub logprobs: TokenLogprobs,
    /// Where the token's text begins, in characters of the output.
    pub offset: usize,
    /// True if a grammar forced the token, so that it was not sampled.
    pub forced: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// OpenAI's `stop` or `length`, or SGLang's `abort`.
    pub reason: &'static str,
    pub matched: Option<MatchedStop>,
    pub completion_tokens: usize,
    pub drafts: DraftCounts,
    /// Tokens after the last piece, which have no text.
    pub ids: Vec<u32>,
}

/// The token or the string that ended a choice: SGLang's field beside OpenAI's finish reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum MatchedStop {
    Token(u32),
    Text(String),
}

/// The updates of all choices of a request, as they come.
pub type Updates = BoxStream<'static, (usize, Update)>;

/// Submits all of `job`, or nothing of it.
///
/// # Errors
/// 400 for what the model cannot take, 503 when the queue is full or closing.
pub fn submit(served: &Served, job: Job) -> Result<Updates, ApiError> {
    submit_each(served, vec![job])
}

/// Submits all of `jobs`, or nothing of them. The choices of a job follow those of the
/// jobs before it.
///
/// # Errors
/// The errors of [`submit`].
pub fn submit_each(served: &Served, jobs: Vec<Job>) -> Result<Updates, ApiError> {
    let mut choices = Vec::new();
    let mut first = 0;
    for job in &jobs {
        check_sequences(served, job.prompts.len(), job.copies, job.prompt_field)?;
    }
    let mut accounts = begin(&jobs)?;
    for job in jobs {
        push(served, &job, first, &mut accounts, &mut choices)?;
        first += job.prompts.len() * job.copies;
    }
    // Most requests have one choice: its stream needs no merging.
    Ok(match choices.pop() {
        Some(only) if choices.is_empty() => only,
        last => stream::select_all(choices.into_iter().chain(last)).boxed(),
    })
}

/// Takes `jobs` into the account of the client whose API key the request has.
fn begin(jobs: &[Job]) -> Result<Vec<InFlight>, ApiError> {
    let exchange = Exchange::current();
    let Some(client) = exchange.as_ref().and_then(|exchange| exchange.client()) else {
        return Ok(Vec::new());
    };
    let sequences = jobs.iter().map(|job| job.prompts.len() * job.copies).sum();
    let tokens = jobs.iter().flat_map(|job| &job.prompts).map(Vec::len).sum();
    let begun = client.begin(sequences, tokens);
    if begun.is_err()
        && let Some(engine) = exchange.as_ref().and_then(|e| e.telemetry.engine())
    {
        engine.client_refused(&client.name);
    }
    begun
}

/// Submits `job`, whose first choice is number `first`. Each choice takes one of `accounts`, if
/// there are any.
fn push(
    served: &Served,
    job: &Job,
    first: usize,
    accounts: &mut Vec<InFlight>,
    choices: &mut Vec<Updates>,
) -> Result<(), ApiError> {
    let exchange = Exchange::current();
    let namespace = match &exchange {
        Some(exchange) => exchange.own_namespace(job.namespace.clone()),
        None => job.namespace.clone(),
    };
    let client = exchange.as_ref().and_then(|exchange| exchange.client());
    let own_id = exchange.as_ref().map(|exchange| &*exchange.request_id);
    let id = job
        .id
        .as_deref()
        .or(own_id)
        .map(|id| owned_id(id, client.map(|client| client.name.as_str())));
    let tokenizer: Arc<dyn Detokenize> = Arc::clone(&served.text) as Arc<dyn Detokenize>;
    let siblings = Siblings::new(job.copies);
    let adapter = job.adapter.0.as_ref();
    let prompts = job.prompts.iter();
    let copies = prompts.flat_map(|prompt| (0..job.copies).map(move |copy| (prompt, copy)));
    let requests = copies.clone().map(|(prompt, copy)| Request {
        prompt: prompt.clone(),
        params: SamplingParams {
            seed: copy_seed(job, copy),
            ..job.params.clone()
        },
        namespace: namespace.clone(),
        adapter: adapter.map(|adapter| Arc::clone(&adapter.adapter)),
        constraint: job.constraint.clone(),
        id: id.clone(),
        priority: job.priority,
        pooling: job.pooling,
        no_speculation: job.drafting.off,
        prediction: job.drafting.prediction.clone(),
        // An embedding has no output that another server could generate.
        transfer: served
            .disaggregation
            .transfer()
            .filter(|_| !job.rooms.is_empty() && job.pooling.is_none()),
    });
    // On an error, the choices of earlier jobs are dropped, which cancels them.
    let generations = served.engine.submit_all(requests.collect());
    let generations = generations.map_err(|error| refusal(error, job))?;
    for (index, (generation, (prompt, _))) in (first..).zip(generations.into_iter().zip(copies)) {
        let room = job
            .rooms
            .get(index - first)
            .filter(|_| job.pooling.is_none());
        let text = TextStream::new(Arc::clone(&tokenizer), prompt, &text_options(served, job));
        let record = siblings.as_ref().map(|siblings| {
            let params = job.params.clone();
            let mut record = Record::new(siblings, &generation, params, prompt.len());
            record.adapter = adapter.map(|adapter| adapter.labels.clone());
            record.stop.clone_from(&job.text.stop);
            // The first `most` tokens have at least `most` bytes.
            record.keep_input(|most| tokenizer.decode(&prompt[..prompt.len().min(most)], false));
            record
        });
        let events = served
            .disaggregation
            .events(
                &served.engine,
                generation,
                room,
                prompt,
                adapter.map(|adapter| adapter.adapter.digest.as_str()),
            )
            .map_err(|error| ApiError::field("bootstrap_room", error))?;
        let choice = Choice {
            generation: Some(events),
            record,
            account: accounts.pop(),
            text,
            unreported: Vec::new(),
            ids: Vec::new(),
            told: 0,
            drafts: DraftCounts::default(),
            last: None,
            lost: Arc::clone(&served.lost),
            in_use: adapter.map(AdapterUse::begin),
        };
        choices.push(choice.into_stream(index));
    }
    Ok(())
}

/// The engine's name of a request: its id, which only the client with the same API key can use, and
/// the client's name. Ids are printable, so that none has the separator in it.
pub fn owned_id(id: &str, client: Option<&str>) -> String {
    const SEPARATOR: char = '\u{1f}';
    match client {
        Some(client) => format!("{id}{SEPARATOR}{client}"),
        None => id.to_owned(),
    }
}

/// How the tokens of `job` become text. On a prefill server no string ends the text, because the
/// decode server finds it, and needs the first token for that.
fn text_options<'a>(served: &Served, job: &'a Job) -> Cow<'a, TextOptions> {
    let is_sent = matches!(served.disaggregation, Disaggregation::Prefill(_));
    match is_sent && !job.rooms.is_empty() {
        false => Cow::Borrowed(&job.text),
        true => Cow::Owned(TextOptions {
            stop: Vec::new(),
            stop_regex: None,
            ..job.text.clone()
        }),
    }
}

/// Checks what can be checked before any prompt is tokenised.
///
/// # Errors
/// 400 for more sequences than the queue takes when it is empty.
pub fn check_sequences(
    served: &Served,
    prompts: usize,
    copies: usize,
    prompt_field: &str,
) -> Result<(), ApiError> {
    let most = served.engine_config.max_queue;
    let sequences = prompts.saturating_mul(copies);
    if sequences <= most {
        return Ok(());
    }
    Err(if copies == 1 {
        let bound = format!("at most {most} prompts (--max-queue)");
        out_of_bounds(prompt_field, &bound, prompts)
    } else {
        let message = format!(
            "`n` times the number of prompts must be at most {most} (--max-queue), got {sequences}"
        );
        ApiError::field("n", message)
    })
}

/// The seed of one copy. The first copy has the request's own, so that its tokens do not depend
/// on `n`.
fn copy_seed(job: &Job, copy: usize) -> Option<u64> {
    /// Multiples of the golden ratio lie far apart, so that two requests with neighbouring seeds
    /// share no copies.
    const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;
    job.params
        .seed
        .map(|seed| seed.wrapping_add((copy as u64).wrapping_mul(STRIDE)))
}

fn refusal(error: SubmitError, job: &Job) -> ApiError {
    let message = error.to_string();
    match error {
        SubmitError::PromptTooLong { .. } => ApiError::context_length(job.prompt_field, message),
        SubmitError::EmptyPrompt | SubmitError::TokenOutOfRange { .. } => {
            ApiError::field(job.prompt_field, message)
        }
        SubmitError::NoAdapters | SubmitError::NoTables => ApiError::bad_request(message),
        SubmitError::Params(error) => ApiError::field(error.field, message),
        SubmitError::QueueFull { .. } => {
            record::rejected();
            ApiError::unavailable("queue_full", message)
        }
        SubmitError::ShuttingDown => ApiError::unavailable("shutting_down", message),
    }
}

/// A choice while it runs.
struct Choice {
    /// None once the choice is finished.
    generation: Option<Events>,
    /// None once the choice is finished, and where nothing is measured.
    record: Option<Record>,
    /// The client's account, if it has one.
    account: Option<InFlight>,
    text: TextStream,
    /// The log-probabilities of tokens whose text is still held back.
    unreported: Vec<PieceToken>,
    /// Tokens that are in no update yet; the text of the first `told` of them is.
    ids: Vec<u32>,
    told: usize,
    /// The drafts up to the latest token.
    drafts: DraftCounts,
    /// The last update, where one event became two.
    last: Option<Update>,
    /// True if the device is lost, which explains why a forward pass failed.
    lost: Arc<AtomicBool>,
    /// Counts this choice among those of its adapter.
    in_use: Option<InUse>,
}

impl Choice {
    fn into_stream(self, index: usize) -> Updates {
        stream::unfold(self, move |mut choice| async move {
            let update = choice.next().await?;
            Some(((index, update), choice))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Update> {
        if let Some(last) = self.last.take() {
            return Some(last);
        }
        loop {
            let generation = self.generation.as_mut()?;
            let event = generation.next().await?;
            if let (Some(record), Some(transfer)) = (&mut self.record, generation.transferred()) {
                record.transferred(transfer);
            }
            match event {
                Event::Started {
                    prompt_tokens,
                    cached_tokens,
                    queued,
                    started,
                } => {
                    if let Some(in_use) = &mut self.in_use {
                        in_use.set_running(true);
                    }
                    if let Some(record) = &mut self.record {
                        record.started(cached_tokens, queued, started);
                    }
                    return Some(Update::Started {
                        prompt_tokens,
                        cached_tokens,
                    });
                }
                Event::Preempted { at } => {
                    if let Some(in_use) = &mut self.in_use {
                        in_use.set_running(false);
                    }
                    if let Some(record) = &mut self.record {
                        record.preempted(at);
                    }
                }
                Event::Resumed { at } => {
                    if let Some(in_use) = &mut self.in_use {
                        in_use.set_running(true);
                    }
                    if let Some(record) = &mut self.record {
                        record.resumed(at);
                    }
                }
                Event::Computed { .. } | Event::Receiving { .. } => {}
                Event::PromptLogprobs(logprobs) => return Some(Update::PromptLogprobs(logprobs)),
                Event::Embedding(vector) => return Some(Update::Embedding(vector)),
                Event::Token(token) => {
                    let delta = self.take_token(token, false);
                    if let Some(update) = self.piece(delta) {
                        return Some(update);
                    }
                }
                Event::Forced(tokens) => {
                    if let (Some(record), Some(first)) = (&mut self.record, tokens.first()) {
                        record.jumped(first.at, tokens.len());
                    }
                    // All of them are one delta, because they came at once.
                    let mut all = TextDelta::default();
                    for token in tokens {
                        let delta = self.take_token(token, true);
                        all.text += &delta.text;
                        all.tokens += delta.tokens;
                        all.stop = delta.stop;
                        if all.stop.is_some() {
                            break;
                        }
                    }
                    if let Some(update) = self.piece(all) {
                        return Some(update);
                    }
                }
                Event::Finished(reason, usage) => {
                    self.generation = None;
                    self.drafts = usage.drafts;
                    let delta = self.text.finish();
                    if let Some(mut record) = self.record.take() {
                        record.says(&delta.text);
                        record.drafted(usage.drafts);
                        record.finished(&reason, usage.completion_tokens);
                    }
                    let stop = delta.stop.clone();
                    let piece = self.piece(TextDelta {
                        stop: None,
                        ..delta
                    });
                    let end = finish(reason, stop, usage, self.take_told());
                    return match piece {
                        Some(piece) => {
                            self.last = Some(end);
                            Some(piece)
                        }
                        None => Some(end),
                    };
                }
                Event::Refused(message) => {
                    self.generation = None;
                    if let Some(record) = self.record.take() {
                        record.failed(&message);
                    }
                    let error = ApiError::bad_request(message).code("grammar_too_complex");
                    return Some(Update::Failed(error));
                }
                Event::Failed(message) => {
                    self.generation = None;
                    if let Some(record) = self.record.take() {
                        record.failed(&message);
                    }
                    return Some(Update::Failed(match self.lost.load(Ordering::Relaxed) {
                        true => device_lost(),
                        false => ApiError::internal(message),
                    }));
                }
            }
        }
    }

    fn take_token(&mut self, token: TokenEvent, forced: bool) -> TextDelta {
        let offset = self.text.offset();
        if let Some(logprobs) = token.logprob {
            self.unreported.push(PieceToken {
                logprobs,
                offset,
                forced,
            });
        }
        self.ids.push(token.id);
        self.drafts = token.drafts;
        if let Some(account) = &self.account {
            account.spend(1);
        }
        if let Some(in_use) = &mut self.in_use {
            // After a preemption it runs again.
            in_use.set_running(true);
        }
        if let Some(record) = &mut self.record {
            record.token(token.at, token.run);
            record.drafted(token.drafts);
        }
        let text = &mut self.text;
        Record::while_detokenizing(self.record.as_mut(), || text.push(token.id))
    }

    /// The update for `delta`; none while its text is held back. A stop string also ends the
    /// choice.
    fn piece(&mut self, delta: TextDelta) -> Option<Update> {
        if let Some(record) = &mut self.record {
            record.says(&delta.text);
        }
        let completion_tokens = self.text.tokens();
        let reported = delta.tokens.min(self.unreported.len());
        let tokens: Vec<_> = self.unreported.drain(..reported).collect();
        self.told = (self.told + delta.tokens).min(self.ids.len());
        let has_news = !delta.text.is_empty() || !tokens.is_empty();
        let piece = Piece {
            text: delta.text,
            ids: if has_news {
                self.take_told()
            } else {
                Vec::new()
            },
            tokens,
            completion_tokens,
            drafts: self.drafts,
        };
        let Some(stop) = delta.stop else {
            return has_news.then_some(Update::Text(piece));
        };
        if let Some(generation) = self.generation.take() {
            generation.stop();
        }
        if let Some(record) = self.record.take() {
            record.stopped();
        }
        let matched = Some(MatchedStop::Text(stop));
        let end = Update::Finished(Finish {
            reason: "stop",
            matched,
            completion_tokens,
            drafts: self.drafts,
            ids: self.take_told(),
        });
        if !has_news {
            return Some(end);
        }
        self.last = Some(end);
        Some(Update::Text(piece))
    }

    fn take_told(&mut self) -> Vec<u32> {
        self.ids.drain(..std::mem::take(&mut self.told)).collect()
    }
}

/// The last update of a choice. `stop` is a stop string that the last bytes of the text
/// completed.
fn finish(reason: FinishReason, stop: Option<String>, usage: Usage, ids: Vec<u32>) -> Update {
    let (reason, matched) = match (reason, stop) {
        (_, Some(text)) => ("stop", Some(MatchedStop::Text(text))),
        (FinishReason::Stop { token }, None) => ("stop", token.map(MatchedStop::Token)),
        (FinishReason::Length, None) => ("length", None),
        (FinishReason::Aborted, None) => ("abort", None),
        (FinishReason::Cancelled, None) => {
            let message = "the server is shutting down";
            return Update::Failed(ApiError::unavailable("shutting_down", message));
        }
    };
    Update::Finished(Finish {
        reason,
        matched,
        completion_tokens: usage.completion_tokens,
        drafts: usage.drafts,
        ids,
    })
}
