//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::anthropic::request::{
    CountRequest, MessagesRequest, in_output_format, template_messages,
};
use crate::anthropic::stream::{CALL_PREFIX, Events, stop_reason, usage};
use crate::conversation::{self, Conversation, Rendered};
use crate::error::ApiError;
use crate::fields::bounds::at_least;
use crate::fields::sampling::SamplingFields;
use crate::fields::structured::{Asked, compile};
use crate::fields::wire::OneOrMany;
use crate::generate::{Job, submit};
use crate::grammars::Whitespace;
use crate::middleware::request_id::RequestId;
use crate::reader::{Reasoning, Said};
use crate::respond::{collected, streamed};
use crate::served::Served;
use crate::state::AppState;
use crate::tally::Tally;
use crate::tool_plan::{Reading, call_id};
use crate::{body, exchange, offload, prompt};

const ROUTE: &str = "/v1/messages";

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn messages(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        job,
        asked,
        stream,
        reading,
    } = prepared;
    let constraint = compile(&served, asked).await.map_err(in_output_format)?;
    let model = job.model(&served);
    let updates = submit(&served, Job { constraint, ..job })?;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, 1, 1);
    let id = format!("msg_{}", Uuid::now_v7().simple());
    if stream {
        let events = Events::new(id, model, served, &reading);
        return Ok(streamed(updates, tally, events));
    }
    let whole = collected(updates, &mut tally).await?.into_iter().next();
    let whole = whole.unwrap_or_default();
    let said = match reading.reader() {
        Some(reader) => Said::read(reader, whole.text),
        None => Said {
            text: whole.text,
            ..Said::default()
        },
    };
    let (reason, sequence) = match &whole.finish {
        Some(finish) => stop_reason(finish, !said.calls.is_empty())?,
        None => return Err(ApiError::internal("the message did not end")),
    };
    let content = blocks(&served, said);
    Ok(HttpResponse::Ok().json(json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(tally.counts(0)),
    })))
}

/// # Errors
/// 4xx for a faulty request, 503 without a model.
pub async fn count_tokens(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let served = state.served()?.clone();
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let size = bytes.len();
    let tokens = offload::when_large(size, move || count(&served, &bytes)).await??;
    Ok(HttpResponse::Ok().json(json!({"input_tokens": tokens})))
}

/// The content of a whole message.
fn blocks(served: &Served, said: Said) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !said.reasoning.is_empty() {
        let (thinking, signature) = (said.reasoning, "");
        blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": signature}));
    }
    if !said.text.is_empty() {
        blocks.push(json!({"type": "text", "text": said.text}));
    }
    blocks.extend(said.calls.into_iter().map(|call| {
        // Arguments that `max_tokens` cut short are no valid JSON.
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        let id = call_id(served, CALL_PREFIX);
        json!({"type": "tool_use", "id": id, "name": call.name, "input": input})
    }));
    blocks
}

/// A checked request, and how its answer will be written.
struct Prepared {
    job: Job,
    asked: Option<Asked>,
    stream: bool,
    reading: Reading,
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: MessagesRequest = body::parse(bytes)?;
    let adapter = served.choose_model(Some(&request.model))?;
    request.refuse_unsupported(served.formats.reasoning.is_some())?;
    let kwargs = request.template_variables();
    let rooms = request.take_disaggregation().rooms(1, 1)?;
    exchange::note_labels(request.user_id(), []);
    let whitespace = served.grammars.defaults.whitespace;
    let mut plan = request
        .take_tools()?
        .plan(served, whitespace == Whitespace::Compact)?;
    let asked = request.take_grammar(plan.lark.take(), whitespace)?;
    plan.refuse_beside(asked.as_ref())?;
    conversation::refuse_too_many(served, request.messages.given)?;
    let messages = template_messages(&request.system, &request.messages)?;
    let max_tokens = at_least("max_tokens", 1, Some(request.max_tokens))?;
    let fields = SamplingFields {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        cache_salt: request.cache_salt,
        stop: OneOrMany(request.stop_sequences.unwrap_or_default()),
        ..SamplingFields::default()
    };
    let params = fields.params(&served.defaults)?;
    let stop = fields
        .stop_strings()
        .map_err(|error| error.renamed("stop", "stop_sequences"))?;
    let conversation = Conversation {
        tools: plan.template.take(),
        kwargs,
        ..Conversation::of(messages)
    };
    let Rendered { prompt, begin } = conversation.encode(served)?;
    let text = TextOptions {
        skip_special: !plan.shows_special(served, begin),
        stop: stop.to_vec(),
        ..TextOptions::default()
    };
    let max_tokens =
        prompt::output_limit(served, "messages", prompt.len(), "max_tokens", max_tokens)?;
    let job = Job {
        prompts: vec![prompt],
        copies: 1,
        params: SamplingParams {
            max_tokens,
            ..params
        },
        text,
        namespace: fields.namespace()?,
        adapter,
        rooms,
        prompt_field: "messages",
        ..Job::default()
    };
    Ok(Prepared {
        job,
        asked: asked.map(|asked| asked.after_reasoning(begin)),
        stream: request.stream.unwrap_or(false),
        reading: plan.reading(begin, Reasoning::Apart { streamed: true }),
    })
}

fn count(served: &Served, bytes: &[u8]) -> Result<usize, ApiError> {
    let mut request: CountRequest = body::parse(bytes)?;
    AppState::check_model(served, Some(&request.model))?;
    request.refuse_unsupported(served.formats.reasoning.is_some())?;
    conversation::refuse_too_many(served, request.messages.given)?;
    let messages = template_messages(&request.system, &request.messages)?;
    let conversation = Conversation {
        kwargs: request.template_variables(),
        tools: request.take_tools()?.plan(served, false)?.template,
        ..Conversation::of(messages)
    };
    Ok(conversation.encode(served)?.prompt.len())
}
