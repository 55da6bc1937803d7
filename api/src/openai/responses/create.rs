//! `POST /v1/responses`.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::future::{AbortHandle, Abortable};
use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::conversation::{self, Conversation, Rendered};
use crate::error::ApiError;
use crate::fields::structured::{Asked, StructuredFields, compile};
use crate::generate::{Job, Updates, submit};
use crate::middleware::request_id::RequestId;
use crate::openai::responses::answer::Answer;
use crate::openai::responses::output::Output;
use crate::openai::responses::request::{ResponseRequest, in_format};
use crate::openai::responses::stored::{Keeper, owner};
use crate::openai::responses::stream::Events;
use crate::reader::Reasoning;
use crate::respond::{collected, streamed};
use crate::served::Served;
use crate::state::{AppState, unix_time};
use crate::tally::Tally;
use crate::tool_plan::Reading;
use crate::{body, exchange, offload, prompt};

const ROUTE: &str = "/v1/responses";

/// A checked request, and how its answer will be written.
struct Prepared {
    job: Job,
    asked: Option<Asked>,
    answer: Answer,
    reading: Reading,
    /// The conversation so far, without instructions.
    messages: Vec<Value>,
    stream: bool,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn create(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let stored = state.clone();
    let prepare = move |served: &Served, bytes: &[u8]| prepare(served, bytes, &stored);
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let constraint = compile(&served, prepared.asked).await.map_err(in_format)?;
    let job = Job {
        constraint,
        ..prepared.job
    };
    let updates = submit(&served, job)?;
    let tally = Tally::new(RequestId::of(&request), ROUTE, 1, 1);
    let (answer, messages) = (prepared.answer, prepared.messages);
    let output = Output::new(served, &prepared.reading);
    if prepared.stream {
        let format = Events {
            keep: answer.store.then(|| Keeper::new(state)),
            answer,
            messages,
            output,
            sent: 0,
        };
        return Ok(streamed(updates, tally, format));
    }
    if answer.background {
        let response = in_background(updates, tally, (answer, output), messages, state);
        return Ok(HttpResponse::Ok().json(response));
    }
    let (response, messages) = finished(updates, tally, &answer, output, messages).await?;
    if answer.store {
        Keeper::new(state).keep(response.clone(), messages, None);
    }
    Ok(HttpResponse::Ok().json(response))
}

/// Answers at once with a response that has no output yet, and continues to compute it.
fn in_background(
    updates: Updates,
    tally: Tally,
    (answer, output): (Answer, Output),
    messages: Vec<Value>,
    state: Data<AppState>,
) -> Value {
    let response = answer.pending("in_progress");
    let (handle, registration) = AbortHandle::new_pair();
    let keeper = Keeper::new(state);
    keeper.keep(response.clone(), messages.clone(), Some(handle));
    let computed = async move {
        let (response, messages) = match finished(updates, tally, &answer, output, messages).await {
            Ok(done) => done,
            Err(error) => (answer.failed(&error.message), Vec::new()),
        };
        keeper.finish(response, messages);
    };
    // When it is aborted it drops the updates, which cancels the generation.
    actix_web::rt::spawn(Abortable::new(computed, registration));
    response
}

/// The whole response, and the conversation up to it.
async fn finished(
    updates: Updates,
    mut tally: Tally,
    answer: &Answer,
    mut output: Output,
    mut messages: Vec<Value>,
) -> Result<(Value, Vec<Value>), ApiError> {
    let whole = collected(updates, &mut tally).await?.into_iter().next();
    let whole = whole.unwrap_or_default();
    output.push(whole.text);
    output.finish();
    let response = answer.finished(&output.items, whole.finish.as_ref(), tally.counts(0));
    messages.push(output.message());
    Ok((response, messages))
}

fn prepare(served: &Served, bytes: &[u8], state: &AppState) -> Result<Prepared, ApiError> {
    let mut request: ResponseRequest = body::parse(bytes)?;
    let adapter = served.choose_model(request.model.as_deref())?;
    request.refuse_unsupported()?;
    let whitespace = served.grammars.defaults.whitespace;
    let (asking, tools, tool_choice) = request.take_tools()?;
    let parallel_tool_calls = asking.parallel.unwrap_or(true);
    let compact = StructuredFields::default().is_compact(whitespace);
    let mut plan = asking.plan(served, compact)?;
    let (asked, text) = request.take_text(whitespace, plan.lark.take())?;
    plan.refuse_beside(asked.as_ref()).map_err(in_format)?;
    let metadata = request.labels()?;
    let labels = metadata
        .iter()
        .filter_map(|(name, label)| Some((name.as_str(), label.as_str()?)));
    exchange::note_labels(request.user.as_deref(), labels);
    let mut messages = before(&request, state)?;
    conversation::refuse_too_many(served, messages.len() + request.input.given())
        .map_err(of_input)?;
    request.input.extend(&mut messages)?;
    let instructions = request.instructions.as_deref();
    let instructions = instructions.map(|text| json!({"role": "system", "content": text}));
    let whole = instructions.into_iter().chain(messages.iter().cloned());
    let mut conversation = Conversation::of(whole.collect());
    conversation.tools = plan.template.take();
    let reasoning = request.reasoning.take().map(|reasoning| reasoning.0);
    let reasoning = reasoning.unwrap_or_default();
    if let Some(effort) = reasoning.effort {
        effort.add_to(&mut conversation.kwargs);
    }
    let Rendered { prompt, begin } = conversation.encode(served).map_err(of_input)?;
    let limit = request.token_limit()?;
    let max_tokens =
        prompt::output_limit(served, "input", prompt.len(), "max_output_tokens", limit)?;
    let sampling = request.sampling();
    let params = SamplingParams {
        max_tokens,
        ..sampling.params(&served.defaults)?
    };
    let priority = sampling.priority(served.engine.heeds_priority())?;
    let rooms = request.take_disaggregation().rooms(1, 1)?;
    let mut job = Job {
        prompts: vec![prompt],
        copies: 1,
        text: TextOptions {
            skip_special: !plan.shows_special(served, begin),
            ..TextOptions::default()
        },
        namespace: sampling.namespace()?,
        adapter,
        priority,
        rooms,
        prompt_field: "input",
        ..Job::default()
    };
    let answer = Answer {
        id: format!("resp_{}", Uuid::now_v7().simple()),
        model: job.model(served),
        created: unix_time(),
        instructions: request.instructions,
        previous_response_id: request.previous_response_id,
        max_output_tokens: limit,
        temperature: request
            .temperature
            .unwrap_or_else(|| decimal(params.temperature)),
        top_p: request.top_p.unwrap_or_else(|| decimal(params.top_p)),
        text,
        reasoning: reasoning.repeated(),
        tools,
        tool_choice,
        parallel_tool_calls,
        store: request.store != Some(false),
        background: request.background == Some(true),
        metadata,
        user: request.user,
    };
    job.params = params;
    Ok(Prepared {
        job,
        asked: asked.map(|asked| asked.after_reasoning(begin)),
        answer,
        reading: plan.reading(begin, Reasoning::Apart { streamed: true }),
        messages,
        stream: request.stream == Some(true),
    })
}

/// The stored conversation that the request continues.
fn before(request: &ResponseRequest, state: &AppState) -> Result<Vec<Value>, ApiError> {
    let Some(id) = &request.previous_response_id else {
        return Ok(Vec::new());
    };
    let field = "previous_response_id";
    let Some(stored) = state.responses.get(id, &owner()) else {
        let error = ApiError::response_not_found(id);
        return Err(ApiError {
            param: Some(field.to_owned()),
            ..error
        });
    };
    match stored.response["status"].as_str() {
        Some("completed" | "incomplete") => Ok(stored.messages.to_vec()),
        status => {
            let status = status.unwrap_or_default();
            let message = format!("`{field}` must be of a response with an output, got {status}");
            Err(ApiError::field(field, message))
        }
    }
}

/// An error about `messages`, which this API calls `input`.
fn of_input(mut error: ApiError) -> ApiError {
    error.message = error.message.replacen("`messages`", "`input`", 1);
    error.param = Some("input".to_owned());
    error
}

/// The decimal number that `value` was written as: 0.7, and not 0.699999988079071, which is the
/// `f32` nearest to it.
fn decimal(value: f32) -> f64 {
    let written = value.to_string();
    written.parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_shown_as_it_was_written() {
        assert_eq!(decimal(0.7), 0.7);
        assert_eq!(decimal(1.0), 1.0);
    }
}
