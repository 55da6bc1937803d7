//! `POST` and `PUT /encode`: embeddings.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::fields::each::Each;
use crate::fields::rid::rids;
use crate::generate::{Job, check_sequences, submit_each};
use crate::middleware::request_id::RequestId;
use crate::respond::{collected, json, written};
use crate::served::Served;
use crate::sglang::input::Ids;
use crate::sglang::prompts;
use crate::state::AppState;
use crate::tally::Tally;
use crate::{body, embedding, offload};

const ROUTE: &str = "/encode";

/// SGLang's `EmbeddingReqInput`, without its fields for images and audio.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EncodeRequest {
    model: Option<String>,
    text: Option<Each<String>>,
    input_ids: Option<Ids>,
    rid: Option<Each<String>>,
    dimensions: Option<i64>,
    priority: Option<i64>,
    cache_salt: Option<String>,
    extra_key: Option<String>,
}

struct Prepared {
    jobs: Vec<Job>,
    rids: Vec<String>,
    dimensions: Option<usize>,
    listed: bool,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    embedding: Vec<f32>,
    meta_info: MetaInfo<'a>,
}

#[derive(Debug, Serialize)]
struct MetaInfo<'a> {
    id: &'a str,
    prompt_tokens: usize,
    cached_tokens: usize,
    /// Seconds.
    e2e_latency: f64,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn encode(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        jobs,
        rids,
        dimensions,
        listed,
    } = prepared;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, jobs.len(), 1);
    let updates = submit_each(&served, jobs)?;
    let wholes = collected(updates, &mut tally).await?;
    written(wholes, move |mut wholes| {
        let each = wholes.iter_mut().zip(&rids).enumerate();
        let answers = each.map(|(index, (whole, rid))| {
            let counts = tally.counts(index);
            Ok(Answer {
                embedding: embedding::take(whole, dimensions)?,
                meta_info: MetaInfo {
                    id: rid,
                    prompt_tokens: counts.prompt,
                    cached_tokens: counts.cached,
                    e2e_latency: tally.elapsed().as_secs_f64(),
                },
            })
        });
        let answers = answers.collect::<Result<Vec<_>, ApiError>>()?;
        Ok(match answers.as_slice() {
            [answer] if !listed => json(answer),
            answers => json(&answers),
        })
    })
    .await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let request: EncodeRequest = body::parse(bytes)?;
    let adapter = served.choose_model(request.model.as_deref())?;
    let (input, listed) = prompts::input(request.text, request.input_ids)?;
    let (field, count) = (input.field(), input.len());
    check_sequences(served, count, 1, field)?;
    let dimensions = embedding::dimensions(served, request.dimensions)?;
    let rids = rids(request.rid, count)?;
    let namespace =
        prompts::namespace(request.cache_salt.as_deref(), request.extra_key.as_deref())?;
    let priority = prompts::priority(served, request.priority)?;
    let each = input.encode(served)?.into_iter().zip(&rids);
    let jobs = each.map(|(prompt, rid)| {
        Ok(Job {
            namespace: namespace.clone(),
            adapter: adapter.clone(),
            priority,
            id: Some(rid.clone()),
            ..embedding::job(served, vec![prompt], field)?
        })
    });
    Ok(Prepared {
        jobs: jobs.collect::<Result<_, ApiError>>()?,
        rids,
        dimensions,
        listed,
    })
}
