//! `POST /v1/embeddings`.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::fields::sampling::{Labels, SamplingFields};
use crate::fields::wire::Prompts;
use crate::generate::Job;
use crate::respond::json;
use crate::served::Served;
use crate::state::AppState;
use crate::{body, embedding, offload};

const ROUTE: &str = "/v1/embeddings";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingRequest {
    input: Prompts,
    model: Option<String>,
    encoding_format: Option<EncodingFormat>,
    /// How many numbers of each embedding are kept.
    dimensions: Option<i64>,
    /// A label, without an effect.
    #[expect(dead_code, reason = "checked for its type, and that is all")]
    user: Option<String>,
    /// Labels, without an effect.
    #[expect(dead_code, reason = "checked for its type, and that is all")]
    metadata: Option<Labels>,
    /// vLLM's: add the tokens that begin and end a document.
    add_special_tokens: Option<bool>,
    /// vLLM cuts long inputs to this length. Here the field is refused.
    truncate_prompt_tokens: Option<i64>,
    cache_salt: Option<String>,
    priority: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    /// Little-endian `f32`s in standard base64. OpenAI's own clients ask for it.
    Base64,
}

#[derive(Debug, Serialize)]
struct Response<'a> {
    object: &'static str,
    data: Vec<Item>,
    model: &'a str,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Encoded,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Encoded {
    Floats(Vec<f32>),
    Text(String),
}

impl EncodingFormat {
    fn encode(self, vector: Vec<f32>) -> Encoded {
        match self {
            Self::Float => Encoded::Floats(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Encoded::Text(STANDARD.encode(bytes))
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

struct Prepared {
    job: Job,
    format: EncodingFormat,
    dimensions: Option<usize>,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn embeddings(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        job,
        format,
        dimensions,
    } = prepared;
    let model = job.model(&served);
    let write = move |vectors: Vec<Vec<f32>>, prompt_tokens| {
        let items = vectors.into_iter().enumerate().map(|(index, vector)| Item {
            object: "embedding",
            index,
            embedding: format.encode(vector),
        });
        json(&Response {
            object: "list",
            data: items.collect(),
            model: &model,
            usage: Usage {
                prompt_tokens,
                total_tokens: prompt_tokens,
            },
        })
    };
    embedding::answer(&served, &request, ROUTE, job, dimensions, write).await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let request: EmbeddingRequest = body::parse(bytes)?;
    let adapter = served.choose_model(request.model.as_deref())?;
    if request.truncate_prompt_tokens.is_some() {
        return Err(ApiError::unsupported("truncate_prompt_tokens"));
    }
    let dimensions = embedding::dimensions(served, request.dimensions)?;
    let shared = SamplingFields {
        cache_salt: request.cache_salt,
        priority: request.priority,
        ..SamplingFields::default()
    };
    let special = request.add_special_tokens.unwrap_or(true);
    let prompts = embedding::encode(served, request.input, special, None)?;
    Ok(Prepared {
        job: Job {
            namespace: shared.namespace()?,
            adapter,
            priority: shared.priority(served.engine.heeds_priority())?,
            ..embedding::job(served, prompts, "input")?
        },
        format: request.encoding_format.unwrap_or_default(),
        dimensions,
    })
}
