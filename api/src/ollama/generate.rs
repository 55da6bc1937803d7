//! `POST /api/chat` and `/api/generate`.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::json;

use crate::conversation::{self, Conversation};
use crate::error::ApiError;
use crate::fields::sampling::SamplingFields;
use crate::fields::structured::{Asked, compile};
use crate::fields::wire::Object;
use crate::generate::{Job, submit};
use crate::grammars::Whitespace;
use crate::middleware::request_id::RequestId;
use crate::ollama::options::Options;
use crate::ollama::request::{ChatRequest, Format, GenerateRequest, choose, in_format};
use crate::ollama::stream::{Lines, Place};
use crate::reader::Reasoning;
use crate::respond::{collected, streamed};
use crate::served::Served;
use crate::state::AppState;
use crate::tally::Tally;
use crate::tool_plan::{Plan, Reading};
use crate::{body, offload, prompt};

/// A checked request.
struct Prepared {
    /// `None` for a request without a prompt, which is answered by saying that the model is loaded.
    job: Option<Job>,
    asked: Option<Asked>,
    stream: bool,
    reading: Reading,
    /// The model's name in the request.
    model: String,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn chat(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    answer(request, payload, state, "/api/chat", Place::Message).await
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn generate(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    answer(request, payload, state, "/api/generate", Place::Response).await
}

async fn answer(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
    route: &'static str,
    place: Place,
) -> Result<HttpResponse, ApiError> {
    let served = state.served()?.clone();
    let bytes = body::read_any_type(&request, payload, state.config.max_body_bytes).await?;
    let prepare = move |served: &Served, bytes: &[u8]| match place {
        Place::Message => prepare_chat(served, bytes),
        Place::Response => prepare_generate(served, bytes),
    };
    let (served, prepared) = offload::prepare_read(served, bytes, prepare).await?;
    let Prepared {
        job,
        asked,
        stream,
        reading,
        model,
    } = prepared;
    let mut lines = Lines::new(model, place, &reading);
    let Some(job) = job else {
        return Ok(HttpResponse::Ok().json(lines.loaded()));
    };
    let constraint = compile(&served, asked).await.map_err(in_format)?;
    let updates = submit(&served, Job { constraint, ..job })
        .map_err(|error| error.renamed("repetition_penalty", "repeat_penalty"))?;
    let mut tally = Tally::new(RequestId::of(&request), route, 1, 1);
    if stream {
        return Ok(streamed(updates, tally, lines));
    }
    let whole = collected(updates, &mut tally).await?.into_iter().next();
    let whole = whole.unwrap_or_default();
    let Some(finish) = &whole.finish else {
        return Err(ApiError::internal("the answer did not end"));
    };
    Ok(HttpResponse::Ok().json(lines.whole(&whole.text, finish, &tally)))
}

fn prepare_chat(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: ChatRequest = body::parse(bytes)?;
    let adapter = choose(served, &request.model)?;
    request.refuse_unsupported(served.formats.reasoning.is_some())?;
    let whitespace = served.grammars.defaults.whitespace;
    let plan = request
        .take_tools()?
        .plan(served, whitespace == Whitespace::Compact)?;
    // Ollama's clients read only complete calls.
    let mut plan = plan.with_whole_calls();
    let asked = Format::asked(
        request.format.take(),
        plan.lark.take(),
        request.complete,
        whitespace,
    )?;
    plan.refuse_beside(asked.as_ref()).map_err(in_format)?;
    let given = request.messages.as_ref().map_or(0, |list| list.given);
    conversation::refuse_too_many(served, given)?;
    let messages = request.template_messages()?;
    let (mut job, mut begin) = (None, None);
    if !messages.is_empty() {
        let conversation = Conversation {
            tools: plan.template.take(),
            kwargs: request.template_variables(),
            ..Conversation::of(messages)
        };
        let rendered = conversation.encode(served)?;
        begin = rendered.begin;
        let mut made = self::job(served, rendered.prompt, request.options, "messages")?;
        made.namespace = namespace(request.cache_salt)?;
        made.text.skip_special = !plan.shows_special(served, begin);
        made.adapter = adapter;
        job = Some(made);
    }
    Ok(Prepared {
        job,
        asked: asked.map(|asked| asked.after_reasoning(begin)),
        stream: request.stream.unwrap_or(true),
        reading: plan.reading(begin, Reasoning::Apart { streamed: true }),
        model: request.model,
    })
}

fn prepare_generate(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: GenerateRequest = body::parse(bytes)?;
    let adapter = choose(served, &request.model)?;
    request.refuse_unsupported(served.formats.reasoning.is_some())?;
    let kwargs = request.template_variables();
    let whitespace = served.grammars.defaults.whitespace;
    let asked = Format::asked(request.format.take(), None, request.complete, whitespace)?;
    let text = request.prompt.take().unwrap_or_default();
    // As in Ollama, a model without a template gets the text as it is.
    let raw = request.raw.unwrap_or(false) || !served.text.can_chat();
    if raw
        && request
            .system
            .as_ref()
            .is_some_and(|system| !system.is_empty())
    {
        let message = "`system` must be left out where `raw` is true or the model has no template";
        return Err(ApiError::field("system", message));
    }
    if raw && request.thinks() {
        let message =
            "`think` must be false or left out where `raw` is true or the model has no template";
        return Err(ApiError::field("think", message));
    }
    let mut begin = None;
    let prompt = match text.as_str() {
        "" => None,
        text if raw => Some(prompt::encode(served, "prompt", text, true)?),
        text => {
            let system = request.system.filter(|system| !system.is_empty());
            let system = system.map(|system| json!({"role": "system", "content": system}));
            let user = json!({"role": "user", "content": text});
            let messages = system.into_iter().chain([user]).collect();
            let conversation = Conversation {
                kwargs,
                ..Conversation::of(messages)
            };
            let rendered = conversation.encode(served).map_err(|mut error| {
                error.param = Some("prompt".to_owned());
                error.message = error.message.replacen("`messages`", "`prompt`", 1);
                error
            })?;
            begin = rendered.begin;
            Some(rendered.prompt)
        }
    };
    let plan = Plan::default();
    let mut job = prompt
        .map(|prompt| job(served, prompt, request.options, "prompt"))
        .transpose()?;
    if let Some(job) = &mut job {
        job.namespace = namespace(request.cache_salt)?;
        job.text.skip_special = !plan.shows_special(served, begin);
        job.adapter = adapter;
    }
    Ok(Prepared {
        job,
        asked: asked.map(|asked| asked.after_reasoning(begin)),
        stream: request.stream.unwrap_or(true),
        reading: plan.reading(begin, Reasoning::Apart { streamed: true }),
        model: request.model,
    })
}

fn namespace(cache_salt: Option<String>) -> Result<Option<String>, ApiError> {
    let fields = SamplingFields {
        cache_salt,
        ..SamplingFields::default()
    };
    fields.namespace()
}

fn job(
    served: &Served,
    prompt: Vec<u32>,
    options: Option<Object<Options>>,
    prompt_field: &'static str,
) -> Result<Job, ApiError> {
    let options = options.map(|options| options.0).unwrap_or_default();
    let (params, text) = options.check(served, prompt_field, prompt.len())?;
    Ok(Job {
        prompts: vec![prompt],
        copies: 1,
        params,
        text,
        prompt_field,
        ..Job::default()
    })
}
