//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde_json::json;
use uuid::Uuid;

use super::super::conversation;
use super::super::error::ApiError;
use super::super::generate::{Job, submit};
use super::super::openai::sampling::{SamplingFields, at_least};
use super::super::openai::structured::{Asked, compile};
use super::super::openai::wire::OneOrMany;
use super::super::request_id::RequestId;
use super::super::respond::{collected, streamed};
use super::super::shape::{Shape, Shaped};
use super::super::state::AppState;
use super::super::tally::Tally;
use super::super::{body, offload, prompt};
use super::request::{CountRequest, MessagesRequest, in_output_format, template_messages};
use super::stream::{Events, stop_reason, usage};
use crate::served::Served;

const ROUTE: &str = "/v1/messages";

/// # Errors
/// 4xx for what is wrong with the request, 503 when it cannot be taken now.
pub async fn messages(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, Shaped> {
    answer(request, payload, state)
        .await
        .map_err(|error| Shape::Anthropic.refuse(error))
}

/// # Errors
/// 4xx for what is wrong with the request, 503 without a model.
pub async fn count_tokens(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, Shaped> {
    let counted = async {
        let served = state.served()?.clone();
        let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
        let size = bytes.len();
        offload::when_large(size, move || count(&served, &bytes)).await?
    };
    let tokens = counted
        .await
        .map_err(|error| Shape::Anthropic.refuse(error))?;
    Ok(HttpResponse::Ok().json(json!({"input_tokens": tokens})))
}

async fn answer(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let served = state.served()?.clone();
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let name = RequestId::of(&request);
    let prepare = move |served: &Served, bytes: &[u8]| prepare(served, bytes, name);
    let (served, prepared) = offload::prepare(served, bytes, prepare).await?;
    let (job, asked, stream) = prepared;
    let constraint = compile(&served, asked).await.map_err(in_output_format)?;
    let updates = submit(&served, Job { constraint, ..job })?;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, 1, 1);
    let id = format!("msg_{}", Uuid::now_v7().simple());
    if stream {
        let model = served.id;
        return Ok(streamed(updates, tally, Events { id, model }));
    }
    let whole = collected(updates, &mut tally).await?.into_iter().next();
    let whole = whole.unwrap_or_default();
    let (reason, sequence) = match &whole.finish {
        Some(finish) => stop_reason(finish)?,
        None => return Err(ApiError::internal("the message did not end")),
    };
    let content = match whole.text.as_str() {
        "" => json!([]),
        text => json!([{"type": "text", "text": text}]),
    };
    Ok(HttpResponse::Ok().json(json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": served.id,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(tally.counts(0)),
    })))
}

/// The job, the grammar it is to follow, and whether its answer is streamed.
fn prepare(
    served: &Served,
    bytes: &[u8],
    id: String,
) -> Result<(Job, Option<Asked>, bool), ApiError> {
    let mut request: MessagesRequest = body::parse(bytes)?;
    AppState::check_model(served, Some(&request.model))?;
    request.refuse_unsupported()?;
    let asked = request.take_grammar(served.grammars.defaults.whitespace)?;
    conversation::refuse_too_many(served, request.messages.given)?;
    let messages = template_messages(&request.system, &request.messages)?;
    let max_tokens = at_least("max_tokens", 1, Some(request.max_tokens))?;
    let fields = SamplingFields {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        stop: OneOrMany(request.stop_sequences.unwrap_or_default()),
        ..SamplingFields::default()
    };
    let params = fields.params(&served.defaults)?;
    let stop = fields.stop_strings().map_err(|mut error| {
        error.param = error
            .param
            .map(|param| param.replacen("stop", "stop_sequences", 1));
        error.message = error.message.replacen("`stop", "`stop_sequences", 1);
        error
    })?;
    let text = TextOptions {
        stop: stop.to_vec(),
        ..TextOptions::default()
    };
    let prompt = conversation::encode(served, messages)?;
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
        id: Some(id),
        prompt_field: "messages",
        ..Job::default()
    };
    Ok((job, asked, request.stream.unwrap_or(false)))
}

fn count(served: &Served, bytes: &[u8]) -> Result<usize, ApiError> {
    let request: CountRequest = body::parse(bytes)?;
    AppState::check_model(served, Some(&request.model))?;
    request.refuse_unsupported()?;
    conversation::refuse_too_many(served, request.messages.given)?;
    let messages = template_messages(&request.system, &request.messages)?;
    Ok(conversation::encode(served, messages)?.len())
}
