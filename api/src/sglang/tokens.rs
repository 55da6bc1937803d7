//! `/tokenize` and `/detokenize`, with the fields of SGLang, of vLLM and of llama-server.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::exchange::Exchange;
use crate::fields::capped::{Capped, Variables};
use crate::fields::each::Each;
use crate::fields::messages::{MAX_MESSAGES, Message, template_messages};
use crate::fields::tools::{GivenTools, Spelling};
use crate::fields::wire::{MAX_PROMPTS, Object};
use crate::served::{ChatPrompt, Served};
use crate::sglang::input::Ids;
use crate::state::AppState;
use crate::tool_plan::Asking;
use crate::{body, conversation, offload, prompt};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<Each<String>>,
    messages: Option<Capped<Object<Message>, MAX_MESSAGES>>,
    add_special_tokens: Option<bool>,
    /// vLLM's: give the text of each token with its id.
    return_token_strs: Option<bool>,
    add_generation_prompt: Option<bool>,
    chat_template_kwargs: Option<Variables>,
    continue_final_message: Option<bool>,
    /// The prompt tells the model of these tools.
    tools: Option<GivenTools>,
    chat_template: Option<IgnoredAny>,
    /// llama-server's: the text. The answer has its form then, and the next three are its fields.
    content: Option<String>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Ids,
    skip_special_tokens: Option<bool>,
}

/// # Errors
/// 4xx for a faulty request, 503 without a model.
pub async fn tokenize(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    answer(request, payload, state, tokens).await
}

/// # Errors
/// 4xx for a faulty request, 503 without a model.
pub async fn detokenize(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    answer(request, payload, state, text).await
}

/// Most tokens of a request to `/detokenize`, and most bytes of one to `/tokenize`. The context
/// bounds neither, and the answer is many times as large.
const MAX_TOGETHER: usize = 1 << 20;

async fn answer(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
    work: fn(&Served, &[u8]) -> Result<Value, ApiError>,
) -> Result<HttpResponse, ApiError> {
    let served = state.served()?.clone();
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let size = bytes.len();
    let written = move || work(&served, &bytes).map(|answer| answer.to_string());
    let answer = offload::when_large(size, written).await??;
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .body(answer))
}

fn tokens(served: &Served, bytes: &[u8]) -> Result<Value, ApiError> {
    let mut request: TokenizeRequest = body::parse(bytes)?;
    AppState::check_model(served, request.model.as_deref())?;
    let refused = [
        ("chat_template", request.chat_template.is_some()),
        (
            "continue_final_message",
            request.continue_final_message == Some(true),
        ),
    ];
    if let Some((field, _)) = refused.into_iter().find(|(_, asked)| *asked) {
        return Err(ApiError::unsupported(field));
    }
    if let Some(content) = request.content.take() {
        return of_content(served, &content, &request);
    }
    let beside_content = [
        ("add_special", request.add_special.is_some()),
        ("parse_special", request.parse_special.is_some()),
        ("with_pieces", request.with_pieces.is_some()),
    ];
    if let Some((field, _)) = beside_content.into_iter().find(|(_, given)| *given) {
        let message = format!("`{field}` must be left out unless `content` is given");
        return Err(ApiError::field(field, message));
    }
    let strings = request.return_token_strs.unwrap_or(false);
    let context = served.context();
    let single = |ids: Vec<u32>| {
        let mut answer = json!({"count": ids.len(), "max_model_len": context});
        if strings {
            answer["token_strs"] = ids.iter().map(|&id| token_text(served, id)).collect();
        }
        answer["tokens"] = ids.into();
        // A router that knows what is cached looks under the name of the caller's key.
        if let Some(namespace) = own_namespace() {
            answer["cache_namespace"] = namespace.into();
        }
        answer
    };
    let tools = request.tools.take();
    let of_messages = [
        ("tools", tools.is_some()),
        (
            "add_generation_prompt",
            request.add_generation_prompt.is_some(),
        ),
        (
            "chat_template_kwargs",
            request.chat_template_kwargs.is_some(),
        ),
    ];
    if request.prompt.is_some()
        && let Some((field, _)) = of_messages.into_iter().find(|(_, given)| *given)
    {
        let message = format!("`{field}` must be left out where `prompt` is given");
        return Err(ApiError::field(field, message));
    }
    match (request.prompt.take(), &request.messages) {
        (Some(_), Some(_)) => {
            let message = "`messages` must be left out where `prompt` is given";
            Err(ApiError::field("messages", message))
        }
        (None, None) => {
            let message = "one of `prompt`, `messages` and `content` must be given";
            Err(ApiError::field("prompt", message).code("missing_required_parameter"))
        }
        (Some(Each::All(text)), None) => {
            let special = request.add_special_tokens.unwrap_or(true);
            prompt::encode(served, "prompt", &text, special).map(single)
        }
        (Some(Each::One(texts)), None) => {
            let special = request.add_special_tokens.unwrap_or(true);
            if texts.given > MAX_PROMPTS || texts.given == 0 {
                let bound = format!("between 1 and {MAX_PROMPTS} prompts");
                return Err(out_of_bounds("prompt", &bound, texts.given));
            }
            let size: usize = texts.items.iter().map(String::len).sum();
            let most = served.max_prompt_bytes().max(MAX_TOGETHER);
            if size > most {
                let bound = format!("at most {most} bytes in all");
                return Err(out_of_bounds("prompt", &bound, format!("{size} bytes")));
            }
            let each = texts.items.iter();
            let lists: Vec<Vec<u32>> = each
                .map(|text| prompt::encode(served, "prompt", text, special))
                .collect::<Result<_, _>>()?;
            let mut answer = json!({
                "count": lists.iter().map(Vec::len).collect::<Vec<_>>(),
                "max_model_len": context,
            });
            if strings {
                let texts = |ids: &Vec<u32>| -> Value {
                    ids.iter().map(|&id| token_text(served, id)).collect()
                };
                answer["token_strs"] = lists.iter().map(texts).collect();
            }
            answer["tokens"] = lists.into();
            Ok(answer)
        }
        (None, Some(messages)) => {
            conversation::refuse_too_many(served, messages.given)?;
            // The template adds the tokens that begin the document itself.
            let special = request.add_special_tokens.unwrap_or(false);
            let tools = tools.map_or(Ok(Vec::new()), |tools| tools.check(Spelling::OpenAi))?;
            let asking = Asking {
                tools,
                ..Asking::default()
            };
            let tools = asking.plan(served, false)?.template;
            let text = served
                .text
                .render_chat(&ChatPrompt {
                    messages: &template_messages(messages)?,
                    tools: tools.as_ref(),
                    add_generation_prompt: request.add_generation_prompt.unwrap_or(true),
                    kwargs: &request.chat_template_kwargs.take().unwrap_or_default().0,
                })
                .map_err(conversation::refused)?;
            prompt::encode_chat(served, "messages", &text, special).map(single)
        }
    }
}

/// llama-server's answer: the ids of `content`, or objects with the text of each.
fn of_content(
    served: &Served,
    content: &str,
    request: &TokenizeRequest,
) -> Result<Value, ApiError> {
    let beside = [
        ("prompt", request.prompt.is_some()),
        ("messages", request.messages.is_some()),
        ("tools", request.tools.is_some()),
        ("add_special_tokens", request.add_special_tokens.is_some()),
        ("return_token_strs", request.return_token_strs.is_some()),
        (
            "add_generation_prompt",
            request.add_generation_prompt.is_some(),
        ),
        (
            "chat_template_kwargs",
            request.chat_template_kwargs.is_some(),
        ),
    ];
    if let Some((field, _)) = beside.into_iter().find(|(_, given)| *given) {
        let message = format!("`{field}` must be left out where `content` is given");
        return Err(ApiError::field(field, message));
    }
    let special = request.add_special.unwrap_or(false);
    let ids = match request.parse_special.unwrap_or(true) {
        true => prompt::encode(served, "content", content, special)?,
        false => prompt::encode_literally(served, "content", content, special)?,
    };
    let tokens: Value = match request.with_pieces.unwrap_or(false) {
        false => ids.into(),
        true => ids.into_iter().map(|id| with_piece(served, id)).collect(),
    };
    Ok(json!({"tokens": tokens}))
}

/// A token and its text, or its bytes where they are not text by themselves.
fn with_piece(served: &Served, id: u32) -> Value {
    let piece = match String::from_utf8(served.text.token_bytes(id)) {
        Ok(text) => Value::from(text),
        Err(error) => error.into_bytes().into(),
    };
    json!({"id": id, "piece": piece})
}

/// The beginning of the names of the namespaces that the caller's prompts have in the prefix cache, if
/// its API key has its own.
fn own_namespace() -> Option<String> {
    Exchange::current()?.own_namespace(None)
}

fn token_text(served: &Served, id: u32) -> Value {
    hearth_engine::output::token_text(&*served.text, id)
        .0
        .into()
}

fn text(served: &Served, bytes: &[u8]) -> Result<Value, ApiError> {
    let request: DetokenizeRequest = body::parse(bytes)?;
    AppState::check_model(served, request.model.as_deref())?;
    let vocab = served.engine.limits().vocab_size;
    let decode = |ids: &[u32], skip: bool| match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => {
            let bound = format!("token ids below the vocabulary size ({vocab})");
            Err(out_of_bounds("tokens", &bound, id))
        }
        None => Ok(served.text.decode(ids, skip)),
    };
    let together = match &request.tokens {
        Ids::One(ids) => ids.len(),
        Ids::Many(lists) => lists.items.iter().map(|ids| ids.len()).sum(),
    };
    if together > MAX_TOGETHER {
        let bound = format!("at most {MAX_TOGETHER} token ids");
        return Err(out_of_bounds("tokens", &bound, together));
    }
    if let Ids::Many(lists) = &request.tokens
        && lists.given > MAX_PROMPTS
    {
        let bound = format!("at most {MAX_PROMPTS} lists");
        return Err(out_of_bounds("tokens", &bound, lists.given));
    }
    let text = |skip: bool| -> Result<Value, ApiError> {
        match &request.tokens {
            Ids::One(ids) => Ok(decode(ids, skip)?.into()),
            Ids::Many(lists) => lists
                .items
                .iter()
                .map(|ids| decode(ids, skip))
                .collect::<Result<Vec<_>, _>>()
                .map(Value::from),
        }
    };
    let skip = request.skip_special_tokens;
    let plain = text(skip.unwrap_or(true))?;
    // SGLang's clients read `text`, and vLLM's read `prompt`. llama-server's read `content`, in which
    // special tokens have their text.
    let content = text(skip.unwrap_or(false))?;
    Ok(json!({"text": plain.clone(), "prompt": plain, "content": content}))
}
