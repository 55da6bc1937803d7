//! `POST /api/embed`.

use std::time::Instant;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::fields::wire::{Object, Prompts};
use crate::generate::Job;
use crate::ollama::options::Options;
use crate::ollama::request::{KeepAlive, choose};
use crate::respond::json;
use crate::served::Served;
use crate::state::AppState;
use crate::{body, embedding, offload};

const ROUTE: &str = "/api/embed";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbedRequest {
    model: String,
    input: Prompts,
    /// True, which is the default, cuts off the end of an input that is too long.
    truncate: Option<bool>,
    /// How many numbers of each embedding are kept.
    dimensions: Option<i64>,
    /// Sampling has no part in embeddings.
    #[expect(dead_code, reason = "checked for its type, and that is all")]
    options: Option<Object<Options>>,
    keep_alive: Option<KeepAlive>,
}

#[derive(Debug, Serialize)]
struct Response {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// In nanoseconds, as all times of Ollama.
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

struct Prepared {
    model: String,
    job: Job,
    dimensions: Option<usize>,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn embed(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let begin = Instant::now();
    let served = state.served()?.clone();
    let bytes = body::read_any_type(&request, payload, state.config.max_body_bytes).await?;
    let (served, prepared) = offload::prepare_read(served, bytes, prepare).await?;
    let Prepared {
        model,
        job,
        dimensions,
    } = prepared;
    let write = move |embeddings, prompt_eval_count| {
        json(&Response {
            model,
            embeddings,
            total_duration: u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX),
            load_duration: 0,
            prompt_eval_count,
        })
    };
    embedding::answer(&served, &request, ROUTE, job, dimensions, write).await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let request: EmbedRequest = body::parse(bytes)?;
    let adapter = choose(served, &request.model)?;
    if let Some(keep_alive) = &request.keep_alive {
        keep_alive.refuse_unloading()?;
    }
    let dimensions = embedding::dimensions(served, request.dimensions)?;
    let cut = request.truncate != Some(false);
    let most = cut.then(|| served.context() - 1);
    let prompts = embedding::encode(served, request.input, true, most)?;
    Ok(Prepared {
        model: request.model,
        job: Job {
            adapter,
            ..embedding::job(served, prompts, "input")?
        },
        dimensions,
    })
}
