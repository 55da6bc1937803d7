//! `POST /completion`, which llama-server also has as `/completions`.

use std::sync::Arc;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::output::Detokenize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::adapters::choose;
use crate::fields::bounds::check_logprob_entries;
use crate::fields::structured::{Asked, compile};
use crate::generate::{Job, check_sequences, submit_each};
use crate::llama_server::answer::{Answers, Pieces};
use crate::llama_server::request::{Checked, CompletionRequest};
use crate::middleware::request_id::RequestId;
use crate::respond::{self, collected, streamed, written};
use crate::served::Served;
use crate::state::AppState;
use crate::tally::Tally;
use crate::{body, offload, prompt};

const ROUTE: &str = "/completion";

/// A checked request, and how its answer will be written.
struct Prepared {
    /// One for each prompt, because the room for their outputs differs.
    jobs: Vec<Job>,
    asked: Option<Asked>,
    answers: Answers,
    stream: bool,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn completion(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        mut jobs,
        asked,
        answers,
        stream,
    } = prepared;
    let constraint = compile(&served, asked).await?;
    for job in &mut jobs {
        job.constraint.clone_from(&constraint);
    }
    let updates = submit_each(&served, jobs).map_err(in_own_words)?;
    let (prompts, copies) = (answers.prompts.len(), answers.copies);
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, prompts, copies);
    if stream {
        return Ok(streamed(updates, tally, Pieces::new(answers)));
    }
    let wholes = collected(updates, &mut tally).await?;
    written(wholes, move |wholes| {
        let each = wholes.iter().enumerate().map(|(index, whole)| {
            let Some(finish) = &whole.finish else {
                return Err(ApiError::internal("the answer did not end"));
            };
            Ok(answers.whole(index, whole, finish, &tally))
        });
        let each: Vec<Value> = each.collect::<Result<_, _>>()?;
        Ok(match each.as_slice() {
            [only] => respond::json(only),
            several => respond::json(&several),
        })
    })
    .await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: CompletionRequest = body::parse(bytes)?;
    let adapter = choose(
        served,
        request.model.as_deref(),
        None,
        request.lora.as_ref(),
    )?;
    let checked = request.check(served)?;
    check_sequences(served, request.prompt.given(), checked.copies, "prompt")
        .map_err(|error| error.renamed("n", "n_cmpl"))?;
    let context = served.context();
    let (mut jobs, mut texts, mut settings) = (Vec::new(), Vec::new(), Vec::new());
    let mut outputs = 0usize;
    for prompt in std::mem::take(&mut request.prompt).encode(served)? {
        let room = prompt::output_room(served, "prompt", prompt.len())?;
        let max_tokens = checked.limit.within(served, room);
        outputs = outputs.saturating_add(max_tokens);
        texts.push(served.text.decode(&prompt, false));
        settings.push(settings_of(&checked, max_tokens, context, request.stream));
        jobs.push(Job {
            prompts: vec![prompt],
            copies: checked.copies,
            params: SamplingParams {
                max_tokens,
                ..checked.params.clone()
            },
            text: checked.text.clone(),
            namespace: checked.namespace.clone(),
            adapter: adapter.clone(),
            prompt_field: "prompt",
            ..Job::default()
        });
    }
    check_logprob_entries(
        "`n_cmpl` times the output tokens of each prompt times (1 + `n_probs`)",
        "n_probs",
        outputs.saturating_mul(checked.copies),
        checked.params.logprobs,
    )?;
    let model = jobs
        .first()
        .map_or_else(String::new, |job| job.model(served));
    Ok(Prepared {
        jobs,
        asked: checked.asked,
        answers: Answers {
            tokenizer: Arc::clone(&served.text) as Arc<dyn Detokenize>,
            model,
            prompts: texts,
            copies: checked.copies,
            settings,
            probabilities: checked.params.logprobs.is_some(),
            return_tokens: request.return_tokens.unwrap_or(false),
            timings_per_token: request.timings_per_token.unwrap_or(false),
            response_fields: checked.response_fields,
        },
        stream: request.stream.unwrap_or(false),
    })
}

/// The parameters that the output of a prompt was made with.
fn settings_of(checked: &Checked, most: usize, context: usize, stream: Option<bool>) -> Value {
    let params = &checked.params;
    let biases = params.logit_bias.iter();
    let biases = biases.map(|(token, bias)| json!({"token": token, "bias": bias}));
    json!({
        "n_ctx": context,
        "n_predict": most,
        "max_tokens": most,
        // The engine reads a seed as 64 bits without a sign.
        "seed": params.seed.map_or(-1, u64::cast_signed),
        "temperature": params.temperature,
        "top_k": params.top_k.unwrap_or(0),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_last_n": -1,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": checked.text.stop,
        "ignore_eos": params.ignore_eos,
        "logit_bias": biases.collect::<Value>(),
        "n_probs": params.logprobs.unwrap_or(0),
        "stream": stream.unwrap_or(false),
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
    })
}

/// An error of the engine about a parameter, which has another name in this API.
fn in_own_words(error: ApiError) -> ApiError {
    error
        .renamed("repetition_penalty", "repeat_penalty")
        .renamed("n", "n_cmpl")
}
