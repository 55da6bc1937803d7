//! `POST /v1/score`: how likely each of some tokens is after a query and an item.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use serde::{Deserialize, Serialize};

use super::super::error::ApiError;
use super::super::generate::{Job, check_sequences, submit_each};
use super::super::openai::capped::Capped;
use super::super::openai::response::Usage;
use super::super::openai::sampling::out_of_bounds;
use super::super::openai::wire::{MAX_PROMPTS, Prompt, Prompts};
use super::super::request_id::RequestId;
use super::super::respond::{Whole, collected, json};
use super::super::shape::{Sglang, Shaped};
use super::super::state::AppState;
use super::super::tally::Tally;
use super::super::{body, offload, prompt};
use crate::served::Served;

const ROUTE: &str = "/v1/score";

/// SGLang's `ScoringRequest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ScoreRequest {
    model: Option<String>,
    query: Prompts,
    items: Prompts,
    label_token_ids: Capped<u32, MAX_PROMPTS>,
    /// Divide the labels' probabilities by their sum.
    apply_softmax: Option<bool>,
    /// The item comes before the query.
    item_first: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    object: &'static str,
    /// `[items, label_token_ids]`
    scores: Vec<Vec<f64>>,
    model: &'a str,
    usage: Usage,
}

struct Prepared {
    /// One for each item, with a prompt for each label.
    jobs: Vec<Job>,
    labels: usize,
    /// Tokens of queries and items, the labels not counted.
    prompt_tokens: usize,
    softmax: bool,
}

/// # Errors
/// 4xx for what is wrong with the request, 503 when it cannot be taken now.
pub async fn score(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, Shaped<Sglang>> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        jobs,
        labels,
        prompt_tokens,
        softmax,
    } = prepared;
    let prompts = jobs.len() * labels;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, prompts, 1);
    let updates = submit_each(&served, jobs)?;
    let wholes = collected(updates, &mut tally).await?;
    let scores = wholes.chunks(labels).map(|labels| scores(labels, softmax));
    let scores = scores.collect::<Result<_, ApiError>>()?;
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .body(json(&Answer {
            object: "scoring",
            scores,
            model: &served.id,
            usage: Usage::new(prompt_tokens, 0, 0),
        })))
}

/// The scores of one item from what was told of each label.
fn scores(labels: &[Whole], softmax: bool) -> Result<Vec<f64>, ApiError> {
    let logprobs = labels.iter().map(|whole| {
        let last = whole.prompt_logprobs.last().and_then(Option::as_ref);
        let last = last.map(|scored| f64::from(scored.logprob));
        last.filter(|logprob| !logprob.is_nan())
            .ok_or_else(|| ApiError::internal("the model gave no probability of a label"))
    });
    let logprobs = logprobs.collect::<Result<Vec<_>, _>>()?;
    let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Without a likely one among them there is nothing to compare.
    let base = if softmax && most.is_finite() {
        most
    } else {
        0.0
    };
    let mut scores: Vec<f64> = logprobs.iter().map(|x| (x - base).exp()).collect();
    if softmax {
        let sum: f64 = scores.iter().sum();
        let even = 1.0 / scores.len() as f64;
        for score in &mut scores {
            *score = if sum > 0.0 { *score / sum } else { even };
        }
    }
    Ok(scores)
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let request: ScoreRequest = body::parse(bytes)?;
    AppState::check_model(served, request.model.as_deref())?;
    let labels = request.label_token_ids;
    if labels.given == 0 {
        return Err(out_of_bounds(
            "label_token_ids",
            "at least 1 token id",
            "an empty list",
        ));
    }
    let vocab = served.engine.limits().vocab_size;
    if let Some(id) = labels.items.iter().find(|&&id| id as usize >= vocab) {
        let bound = format!("token ids below the vocabulary size ({vocab})");
        return Err(out_of_bounds("label_token_ids", &bound, id));
    }
    let given = request.items.0.given;
    check_sequences(served, given.saturating_mul(labels.given), 1, "items")
        .map_err(|_| too_many(served, given, labels.given))?;
    let mut query = request.query.checked("query")?;
    if query.len() != 1 {
        return Err(out_of_bounds(
            "query",
            "one text or list of token ids",
            query.len(),
        ));
    }
    let query = query.remove(0);
    let item_first = request.item_first.unwrap_or(false);
    let mut jobs = Vec::new();
    let mut prompt_tokens = 0;
    for item in request.items.checked("items")? {
        let ids = joined(served, &query, item, item_first)?;
        let most = served.context() - 2;
        if ids.len() > most || ids.is_empty() {
            let message = format!(
                "`query` and an item must have between 1 and {most} tokens, got {}",
                ids.len()
            );
            return Err(ApiError::context_length("items", message));
        }
        prompt_tokens += ids.len();
        // A label is scored as the last token of a prompt; what comes before it is computed
        // once and shared.
        let prompts = labels.items.iter().map(|&label| {
            let mut prompt = ids.clone();
            prompt.push(label);
            prompt
        });
        jobs.push(Job {
            prompts: prompts.collect(),
            copies: 1,
            params: SamplingParams {
                max_tokens: 0,
                prompt_logprobs: Some(0),
                prompt_logprobs_from: ids.len() - 1,
                ..SamplingParams::default()
            },
            prompt_field: "items",
            ..Job::default()
        });
    }
    Ok(Prepared {
        jobs,
        labels: labels.given,
        prompt_tokens,
        softmax: request.apply_softmax.unwrap_or(false),
    })
}

fn too_many(served: &Served, items: usize, labels: usize) -> ApiError {
    let message = format!(
        "the number of `items` times that of `label_token_ids` must be at most {} (--max-queue), \
         got {}",
        served.max_queue,
        items.saturating_mul(labels)
    );
    ApiError::field("items", message)
}

fn joined(
    served: &Served,
    query: &Prompt,
    item: Prompt,
    item_first: bool,
) -> Result<Vec<u32>, ApiError> {
    match (query, item) {
        (Prompt::Text(query), Prompt::Text(item)) => {
            let text = match item_first {
                false => format!("{query}{item}"),
                true => format!("{item}{query}"),
            };
            prompt::encode(served, "items", &text, true)
        }
        (Prompt::Tokens(query), Prompt::Tokens(item)) => Ok(match item_first {
            false => [query.as_slice(), &item].concat(),
            true => [item.as_slice(), query].concat(),
        }),
        _ => {
            let message = "`items` must be texts where `query` is one, and lists of token ids \
                           where it is a list of token ids";
            Err(ApiError::field("items", message))
        }
    }
}
