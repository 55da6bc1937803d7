//! `POST /v1/chat/completions`.

use std::sync::Arc;

use actix_web::web::{BytesMut, Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::output::{Detokenize, TextOptions};
use uuid::Uuid;

use super::chat_request::ChatRequest;
use super::logprobs;
use super::response::{
    AssistantMessage, ChatChoice, ChatChunkChoice, Chunk, Delta, Head, Response,
    SYSTEM_FINGERPRINT, Usage,
};
use super::sampling::{StreamUsage, check_logprob_entries};
use super::structured::{self, Asked};
use crate::http::error::ApiError;
use crate::http::generate::{Job, Piece, Update, submit};
use crate::http::request_id::RequestId;
use crate::http::respond::{ChunkFormat, Whole, collected, json, streamed};
use crate::http::state::{AppState, unix_time};
use crate::http::tally::Tally;
use crate::http::{body, conversation, offload, prompt, sse};
use crate::served::{ChatPrompt, Served};

const ROUTE: &str = "/v1/chat/completions";

/// A checked request, and how its answer is to be written.
struct Prepared {
    job: Job,
    asked: Option<Asked>,
    stream: Option<StreamUsage>,
    /// Whether log-probabilities were asked for.
    logprobs: bool,
}

/// # Errors
/// 4xx for what is wrong with the request, 503 when it cannot be taken now.
pub async fn chat_completions(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let served = state.served()?.clone();
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let id = RequestId::of(&request);
    let prepare = move |served: &Served, bytes: &[u8]| prepare(served, bytes, id);
    let (served, prepared) = offload::prepare(served, bytes, prepare).await?;
    let Prepared {
        mut job,
        asked,
        stream,
        logprobs,
    } = prepared;
    job.constraint = structured::compile(&served, asked).await?;
    let (prompts, copies) = (job.prompts.len(), job.copies);
    let updates = submit(&served, job)?;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, prompts, copies);
    let tokenizer: Arc<dyn Detokenize> = Arc::clone(&served.text) as Arc<dyn Detokenize>;
    let head = |object| Head {
        id: format!("chatcmpl-{}", Uuid::now_v7().simple()),
        object,
        created: unix_time(),
        model: served.id.clone(),
        system_fingerprint: SYSTEM_FINGERPRINT,
    };
    if let Some(usage) = stream {
        let opened = vec![false; tally.choices()];
        let head = head("chat.completion.chunk");
        let format = ChatChunks {
            head,
            tokenizer,
            usage,
            logprobs,
            opened,
        };
        return Ok(streamed(updates, tally, format));
    }
    let wholes = collected(updates, &mut tally).await?;
    let (head, usage) = (head("chat.completion"), tally.usage());
    let size = wholes.iter().map(Whole::json_bytes).sum();
    let written = offload::when_large(size, move || {
        let choices = wholes.into_iter().enumerate();
        json(&Response {
            head,
            choices: choices
                .map(|(i, whole)| choice(&*tokenizer, i, whole, logprobs))
                .collect(),
            usage,
        })
    })
    .await?;
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .body(written))
}

fn prepare(served: &Served, bytes: &[u8], id: String) -> Result<Prepared, ApiError> {
    let mut request: ChatRequest = body::parse(bytes)?;
    AppState::check_model(served, request.model.as_deref())?;
    request.refuse_unsupported()?;
    conversation::refuse_too_many(served, request.messages.given)?;
    let mut sampling = request.take_sampling();
    let asked = std::mem::take(&mut sampling.structured)
        .asked(served.grammars.defaults.whitespace, sampling.ignore_eos)?;
    let continues = request.continues()?;
    let (messages, kwargs) = (
        request.template_messages()?,
        request.chat_template_kwargs.take().unwrap_or_default().0,
    );
    let text = if continues {
        conversation::continued(served, messages, &kwargs)?
    } else {
        let chat = ChatPrompt {
            messages: &messages,
            add_generation_prompt: request.add_generation_prompt.unwrap_or(true),
            kwargs: &kwargs,
        };
        let rendered = served.text.render_chat(&chat);
        rendered.map_err(conversation::refused)?
    };
    let logprobs = request.logprobs()?;
    let (limit_field, limit) = request.token_limit()?;
    let params = sampling.params(&served.defaults)?;
    let (copies, stop) = (sampling.copies()?, sampling.stop_strings()?.to_vec());
    let namespace = sampling.namespace()?;
    let priority = sampling.priority(served.engine.heeds_priority())?;
    let stream = sampling.stream.then_some(sampling.stream_usage()?);
    // The template frames the conversation itself.
    let prompt = prompt::encode(served, "messages", &text, false)?;
    let max_tokens = prompt::output_limit(served, "messages", prompt.len(), limit_field, limit)?;
    check_logprob_entries(
        &format!("`n` times `{limit_field}` times (1 + `top_logprobs`)"),
        limit_field,
        copies.saturating_mul(max_tokens),
        logprobs,
    )?;
    let text = TextOptions {
        skip_special: sampling.skip_special_tokens,
        stop,
        include_stop: sampling.include_stop_str_in_output,
        min_tokens: params.min_tokens,
    };
    let params = SamplingParams {
        max_tokens,
        logprobs,
        ..params
    };
    let job = Job {
        prompts: vec![prompt],
        copies,
        params,
        text,
        namespace,
        priority,
        id: Some(id),
        prompt_field: "messages",
        ..Job::default()
    };
    Ok(Prepared {
        job,
        asked,
        stream,
        logprobs: logprobs.is_some(),
    })
}

fn choice(tokenizer: &dyn Detokenize, index: usize, whole: Whole, logprobs: bool) -> ChatChoice {
    let (finish_reason, matched_stop) = whole
        .finish
        .map_or(("stop", None), |finish| (finish.reason, finish.matched));
    ChatChoice {
        index,
        message: AssistantMessage {
            role: "assistant",
            content: whole.text,
            refusal: None,
        },
        logprobs: logprobs.then(|| logprobs::chat(tokenizer, &whole.tokens)),
        finish_reason,
        matched_stop,
    }
}

/// A stream: the role, the text, the reason for the end, and the usage if asked for.
struct ChatChunks {
    head: Head,
    tokenizer: Arc<dyn Detokenize>,
    usage: StreamUsage,
    logprobs: bool,
    /// Choices whose role was sent.
    opened: Vec<bool>,
}

impl ChatChunks {
    fn push(&self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>, out: &mut BytesMut) {
        let usage = self.usage.at_end.then_some(usage);
        sse::push(
            out,
            &Chunk {
                head: &self.head,
                choices,
                usage,
            },
        );
    }

    fn push_choice(&self, choice: ChatChunkChoice, tally: &Tally, out: &mut BytesMut) {
        let usage = self.usage.in_every_chunk.then(|| tally.usage());
        self.push(vec![choice], usage, out);
    }

    fn open(&mut self, index: usize, tally: &Tally, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.opened[index], true) {
            let delta = Delta {
                role: Some("assistant"),
                content: Some(String::new()),
            };
            self.push_choice(chunk_choice(index, delta), tally, out);
        }
    }

    fn piece(&self, index: usize, piece: Piece) -> ChatChunkChoice {
        let delta = Delta {
            content: Some(piece.text),
            ..Delta::default()
        };
        let logprobs = self
            .logprobs
            .then(|| logprobs::chat(&*self.tokenizer, &piece.tokens));
        ChatChunkChoice {
            logprobs,
            ..chunk_choice(index, delta)
        }
    }
}

fn chunk_choice(index: usize, delta: Delta) -> ChatChunkChoice {
    ChatChunkChoice {
        index,
        delta,
        logprobs: None,
        finish_reason: None,
        matched_stop: None,
    }
}

impl ChunkFormat for ChatChunks {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut BytesMut) {
        match update {
            Update::Text(piece) => {
                self.open(index, tally, out);
                self.push_choice(self.piece(index, piece), tally, out);
            }
            Update::Finished(finish) => {
                self.open(index, tally, out);
                let choice = ChatChunkChoice {
                    finish_reason: Some(finish.reason),
                    matched_stop: finish.matched,
                    ..chunk_choice(index, Delta::default())
                };
                self.push_choice(choice, tally, out);
            }
            _ => {}
        }
    }

    fn close(&mut self, tally: &Tally, out: &mut BytesMut) {
        if self.usage.at_end {
            self.push(Vec::new(), Some(tally.usage()), out);
        }
    }
}
