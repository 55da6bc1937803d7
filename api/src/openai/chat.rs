//! `POST /v1/chat/completions`.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use uuid::Uuid;

use crate::conversation::{self, Conversation, Rendered};
use crate::error::ApiError;
use crate::fields::bounds::check_logprob_entries;
use crate::fields::rid::given_rids;
use crate::fields::sampling::StreamUsage;
use crate::fields::structured::{self, Asked};
use crate::generate::{Job, submit};
use crate::middleware::request_id::RequestId;
use crate::openai::chat_chunks::{CALL_PREFIX, ChatChunks, finish_reason};
use crate::openai::chat_request::ChatRequest;
use crate::openai::chunk::ChunkWriter;
use crate::openai::logprobs;
use crate::openai::response::{
    AssistantMessage, CalledFunction, ChatChoice, Head, Response, SYSTEM_FINGERPRINT, ToolCall,
};
use crate::reader::Said;
use crate::respond::{Whole, collected, json, streamed, written};
use crate::served::Served;
use crate::state::{AppState, unix_time};
use crate::tally::Tally;
use crate::tool_plan::{Reading, call_id};
use crate::{body, offload, prompt};

const ROUTE: &str = "/v1/chat/completions";

/// A checked request, and how its answer will be written.
struct Prepared {
    job: Job,
    asked: Option<Asked>,
    stream: Option<StreamUsage>,
    /// True if log-probabilities were asked for.
    logprobs: bool,
    reading: Reading,
    seed: Option<i64>,
    /// The name that the request gives itself.
    rid: Option<String>,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn chat_completions(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        mut job,
        asked,
        stream,
        logprobs,
        reading,
        seed,
        rid,
    } = prepared;
    job.constraint = structured::compile(&served, asked).await?;
    let (prompts, copies) = (job.prompts.len(), job.copies);
    let model = job.model(&served);
    let updates = submit(&served, job)?;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, prompts, copies);
    let id = rid.unwrap_or_else(|| format!("chatcmpl-{}", Uuid::now_v7().simple()));
    let head = |object| Head {
        id: id.clone(),
        object,
        created: unix_time(),
        model: model.clone(),
        system_fingerprint: SYSTEM_FINGERPRINT,
        seed,
    };
    if let Some(usage) = stream {
        let chunks = ChunkWriter::new(&head("chat.completion.chunk"), usage);
        let choices = tally.choices();
        let format = ChatChunks::new(chunks, served, logprobs, choices, &reading);
        return Ok(streamed(updates, tally, format));
    }
    let wholes = collected(updates, &mut tally).await?;
    let (head, usage) = (head("chat.completion"), tally.usage());
    written(wholes, move |wholes| {
        let choices = wholes.into_iter().enumerate();
        Ok(json(&Response {
            head,
            choices: choices
                .map(|(i, whole)| choice(&served, i, whole, logprobs, &reading))
                .collect(),
            usage,
        }))
    })
    .await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: ChatRequest = body::parse(bytes)?;
    let adapter = request.choose(served)?;
    request.refuse_unsupported()?;
    conversation::refuse_too_many(served, request.messages.given)?;
    let mut sampling = request.take_sampling();
    let whitespace = served.grammars.defaults.whitespace;
    let mut plan = request
        .take_tools()?
        .plan(served, sampling.structured.is_compact(whitespace))?;
    sampling.structured.calls = plan.lark.take();
    let asked = std::mem::take(&mut sampling.structured).asked(whitespace, sampling.ignore_eos)?;
    plan.refuse_beside(asked.as_ref())?;
    let continues = request.continues()?;
    let conversation = Conversation {
        messages: request.template_messages()?,
        tools: plan.template.take(),
        kwargs: request.take_variables(),
        continues,
        closed: request.add_generation_prompt == Some(false),
    };
    let Rendered { prompt, begin } = conversation.encode(served)?;
    let logprobs = request.logprobs()?;
    let (limit_field, limit) = request.token_limit()?;
    let params = sampling.params(&served.defaults)?;
    let (copies, stop) = (sampling.copies()?, sampling.stop_strings()?.to_vec());
    let rooms = request.take_disaggregation().rooms(1, copies)?;
    let rid = given_rids(request.rid.take(), 1)?.and_then(|mut rids| rids.pop());
    let stop_regex = sampling.stop_regexes()?;
    let namespace = sampling.namespace()?;
    sampling.label_trace();
    let priority = sampling.priority(served.engine.heeds_priority())?;
    let drafting = request.take_speculation().drafting(served)?;
    let stream = sampling.stream.then_some(sampling.stream_usage()?);
    let max_tokens = prompt::output_limit(served, "messages", prompt.len(), limit_field, limit)?;
    check_logprob_entries(
        &format!("`n` times `{limit_field}` times (1 + `top_logprobs`)"),
        limit_field,
        copies.saturating_mul(max_tokens),
        logprobs,
    )?;
    let shows_special = plan.shows_special(served, begin);
    let text = TextOptions {
        skip_special: sampling.skip_special_tokens && !shows_special,
        stop,
        stop_regex,
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
        adapter,
        priority,
        drafting,
        rooms,
        id: rid.clone(),
        prompt_field: "messages",
        ..Job::default()
    };
    Ok(Prepared {
        job,
        asked: asked.map(|asked| asked.after_reasoning(begin)),
        stream,
        logprobs: logprobs.is_some(),
        reading: plan.reading(begin, request.reasoning()),
        seed: sampling.seed,
        rid,
    })
}

fn choice(
    served: &Served,
    index: usize,
    whole: Whole,
    logprobs: bool,
    reading: &Reading,
) -> ChatChoice {
    let (reason, matched_stop) = whole
        .finish
        .map_or(("stop", None), |finish| (finish.reason, finish.matched));
    let said = match reading.reader() {
        Some(reader) => Said::read(reader, whole.text),
        None => Said {
            text: whole.text,
            ..Said::default()
        },
    };
    let filled = |text: String| (!text.is_empty()).then_some(text);
    let alone = said.calls.is_empty() && said.reasoning.is_empty();
    let calls = said.calls.into_iter().map(|call| ToolCall {
        id: call_id(served, CALL_PREFIX),
        r#type: "function",
        function: CalledFunction {
            name: call.name,
            arguments: call.arguments,
        },
    });
    let tool_calls: Vec<ToolCall> = calls.collect();
    ChatChoice {
        index,
        finish_reason: finish_reason(reason, !tool_calls.is_empty()),
        message: AssistantMessage {
            role: "assistant",
            content: match alone {
                true => Some(said.text),
                false => filled(said.text),
            },
            refusal: None,
            reasoning_content: filled(said.reasoning),
            tool_calls,
        },
        logprobs: logprobs.then(|| logprobs::chat(&*served.text, &whole.tokens)),
        matched_stop,
    }
}
