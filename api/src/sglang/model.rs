//! Routes about the model, for SGLang's clients and its router.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Data;
use futures_util::StreamExt;
use hearth_engine::SamplingParams;
use serde_json::json;

use crate::error::ApiError;
use crate::generate::{Job, Update, submit};
use crate::served::model_type;
use crate::state::AppState;
use crate::{reasoning, tools};

/// A server that does not make one token in this time is not healthy (SGLang's bound).
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Probes have a namespace of the prefix cache to themselves, which no request uses.
const PROBE_NAMESPACE: &str = "hearth-health";

/// # Errors
/// 503 without a model.
pub async fn model_info(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let info = &served.info;
    Ok(HttpResponse::Ok().json(json!({
        "model_path": info.model_path,
        "tokenizer_path": info.model_path,
        "served_model_name": served.id,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": model_type(&info.architecture),
        "architectures": [info.architecture],
        "max_model_len": served.context(),
        "load_format": info.load_format,
        "reasoning_parser": served.formats.reasoning.map(reasoning::Format::name),
        "tool_call_parser": served.formats.tools.map(tools::Format::name),
        "disaggregation_mode": served.disaggregation.mode(),
    })))
}

/// `/health_generate`: computes one token, which shows that the engine works and not only that it
/// exists.
///
/// # Errors
/// 503 without a model, when the queue is full, and when no token comes in time.
pub async fn health_generate(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let job = Job {
        prompts: vec![vec![0]],
        copies: 1,
        params: SamplingParams {
            max_tokens: 1,
            temperature: 0.0,
            ..SamplingParams::default()
        },
        namespace: Some(PROBE_NAMESPACE.to_owned()),
        prompt_field: "text",
        ..Job::default()
    };
    let mut updates = submit(served, job)?;
    let end = async {
        while let Some((_, update)) = updates.next().await {
            match update {
                Update::Failed(error) => return Err(error),
                Update::Finished(_) => return Ok(()),
                _ => {}
            }
        }
        Err(ApiError::internal("the probe's stream broke off"))
    };
    tokio::time::timeout(PROBE_TIMEOUT, end)
        .await
        .unwrap_or_else(|_| {
            let message = format!("no token came within {} s", PROBE_TIMEOUT.as_secs());
            Err(ApiError::unavailable("no_token", message))
        })?;
    Ok(HttpResponse::Ok().json(json!({"status": "ok"})))
}
