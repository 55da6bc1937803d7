//! `POST /v1/score`: the probability of each of some label tokens after a query and an item.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use serde::{Deserialize, Serialize};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::token_ids;
use crate::fields::wire::{Prompt, Prompts};
use crate::generate::{Job, check_sequences, submit_each};
use crate::middleware::request_id::RequestId;
use crate::respond::{Whole, collected, json, written};
use crate::served::Served;
use crate::sglang::prompts;
use crate::state::AppState;
use crate::tally::{Tally, Usage};
use crate::{body, offload, prompt};

const ROUTE: &str = "/v1/score";

/// SGLang's `ScoringRequest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoreRequest {
    model: Option<String>,
    query: Prompts,
    items: Prompts,
    label_token_ids: Vec<u32>,
    /// True if the labels' probabilities are divided by their sum.
    apply_softmax: Option<bool>,
    /// True if the item comes before the query.
    item_first: Option<bool>,
    /// Requests with different salts share no prefixes.
    cache_salt: Option<String>,
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
    /// One for each item.
    jobs: Vec<Job>,
    /// The tokens of all queries and items together.
    prompt_tokens: usize,
    softmax: bool,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn score(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        jobs,
        prompt_tokens,
        softmax,
    } = prepared;
    let model = jobs
        .first()
        .map_or_else(String::new, |job| job.model(&served));
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, jobs.len(), 1);
    let updates = submit_each(&served, jobs)?;
    let wholes = collected(updates, &mut tally).await?;
    written(wholes, move |wholes| {
        let scores = wholes.iter().map(|item| scores(item, softmax));
        Ok(json(&Answer {
            object: "scoring",
            scores: scores.collect::<Result<_, ApiError>>()?,
            model: &model,
            usage: Usage::new(prompt_tokens, 0, 0),
        }))
    })
    .await
}

/// The scores of one item, from the log-probabilities of the labels after it.
fn scores(item: &Whole, softmax: bool) -> Result<Vec<f64>, ApiError> {
    let next = item.tokens.first();
    let next = next.ok_or_else(|| ApiError::internal("the model gave no probabilities"))?;
    let labels = next.logprobs.asked.iter();
    let logprobs: Vec<f64> = labels.map(|&(_, logprob)| f64::from(logprob)).collect();
    let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // If none of them is possible at all, they cannot be compared.
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
    let adapter = served.choose_model(request.model.as_deref())?;
    let labels = request.label_token_ids;
    if labels.is_empty() {
        return Err(out_of_bounds(
            "label_token_ids",
            "at least 1 token id",
            "an empty list",
        ));
    }
    let vocab_size = served.engine.limits().vocab_size;
    token_ids("label_token_ids", &labels, vocab_size)?;
    check_sequences(served, request.items.0.given, 1, "items")?;
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
    let namespace = prompts::namespace(request.cache_salt.as_deref(), None)?;
    let mut jobs = Vec::new();
    let mut prompt_tokens = 0;
    for item in request.items.checked("items")? {
        let ids = joined(served, &query, item, item_first)?;
        let most = served.context() - 1;
        if ids.len() > most || ids.is_empty() {
            let message = format!(
                "`query` and an item must have between 1 and {most} tokens, got {}",
                ids.len()
            );
            return Err(ApiError::context_length("items", message));
        }
        prompt_tokens += ids.len();
        jobs.push(Job {
            prompts: vec![ids],
            copies: 1,
            // One token is computed, for the log-probabilities at its position.
            params: SamplingParams {
                max_tokens: 1,
                temperature: 0.0,
                logprobs: Some(0),
                logprob_ids: labels.clone(),
                ..SamplingParams::default()
            },
            namespace: namespace.clone(),
            adapter: adapter.clone(),
            prompt_field: "items",
            ..Job::default()
        });
    }
    Ok(Prepared {
        jobs,
        prompt_tokens,
        softmax: request.apply_softmax.unwrap_or(false),
    })
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
