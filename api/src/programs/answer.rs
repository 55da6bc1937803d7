//! The answer of `/v1/programs`: the states of a program at their end, or a stream of their
//! variables.

use actix_web::web::Bytes;
use futures_util::Stream;
use futures_util::stream::{self, StreamExt};
use hearth_client::lang::backend::Usage as ProgramUsage;
use hearth_client::lang::{Ending, Error, Meta, Outcome, Value, Var};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::error::ApiError;
use crate::sse;
use crate::tally::Usage;

/// A program that runs.
pub struct Running {
    pub id: String,
    pub created: u64,
    pub model: String,
    /// The states in the order of their numbers.
    pub states: Vec<Ending>,
}

#[derive(Debug, Serialize)]
pub struct Answer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    states: Vec<StateAnswer>,
    /// Summed over all calls of the program.
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct StateAnswer {
    state: usize,
    /// Null where the state failed.
    text: Option<String>,
    /// The variables that the state defined itself. One whose statement failed is null.
    variables: Map<String, Json>,
    meta: Map<String, Json>,
    error: Option<Json>,
}

/// An error of a program in OpenAI's shape, without the object around it.
fn error(error: &Error) -> Json {
    let (kind, code) = match error {
        Error::Refused { status, .. } if *status < 500 => ("invalid_request_error", None),
        Error::Refused { status: 503, .. } => ("service_unavailable", Some("queue_full")),
        Error::Misuse(_) | Error::WrongType { .. } | Error::Unsupported { .. } => {
            ("invalid_request_error", None)
        }
        _ => ("internal_error", None),
    };
    json!({"message": error.to_string(), "type": kind, "param": null, "code": code})
}

impl Running {
    /// Waits for the end of all states.
    pub async fn ended(self) -> Answer {
        let mut usage = ProgramUsage::default();
        let mut states = Vec::new();
        for (state, mut ending) in self.states.into_iter().enumerate() {
            let text = ending.text().await;
            let mut answer = StateAnswer {
                state,
                error: text.as_ref().err().map(error),
                text: text.ok(),
                variables: Map::new(),
                meta: Map::new(),
            };
            for var in &ending.variables {
                let name = var.name().to_owned();
                match var.outcome().await {
                    Ok(Outcome { value, meta }) => {
                        usage += meta.usage;
                        answer.variables.insert(name.clone(), value.to_json());
                        // The list of a join is the values of other states, which have their facts.
                        if matches!(value, Value::Text(_)) || meta.finish.is_some() {
                            answer.meta.insert(name, facts(&meta));
                        }
                    }
                    Err(_) => {
                        answer.variables.insert(name, Json::Null);
                    }
                }
            }
            states.push(answer);
        }
        let count = |tokens: u64| usize::try_from(tokens).unwrap_or(usize::MAX);
        Answer {
            id: self.id,
            object: "program",
            created: self.created,
            model: self.model,
            states,
            usage: Usage::new(
                count(usage.prompt_tokens),
                count(usage.cached_tokens),
                count(usage.completion_tokens),
            ),
        }
    }

    /// The text of each variable while it is generated, its value at its end, and the whole answer
    /// at the end of the program, as server-sent events.
    pub fn events(self) -> impl Stream<Item = Result<Bytes, ApiError>> + 'static {
        let states = self.states.iter().enumerate();
        let variables = states.flat_map(|(state, ending)| {
            let each = ending.variables.iter().cloned();
            each.map(move |var| variable(state, var).boxed())
        });
        let variables = stream::select_all(variables.collect::<Vec<_>>());
        let end = stream::once(async move {
            let mut out = Vec::new();
            sse::push(
                &mut out,
                &json!({"type": "done", "program": self.ended().await}),
            );
            out.extend_from_slice(sse::DONE);
            Bytes::from(out)
        });
        variables.chain(end).map(Ok)
    }
}

fn facts(meta: &Meta) -> Json {
    let mut facts = json!({
        "usage": Usage::new(
            meta.usage.prompt_tokens as usize,
            meta.usage.cached_tokens as usize,
            meta.usage.completion_tokens as usize,
        ),
        "finish_reason": meta.finish,
    });
    if !meta.scores.is_empty() {
        facts["scores"] = json!(meta.scores);
    }
    if !meta.outputs.is_empty() {
        let outputs = meta.outputs.iter().map(|output| {
            let mut facts = json!({"finish_reason": output.finish});
            if !output.logprobs.is_empty() {
                facts["logprobs"] = json!(output.logprobs);
            }
            facts
        });
        facts["outputs"] = outputs.collect();
    }
    facts
}

/// The events of one variable.
fn variable(state: usize, var: Var) -> impl Stream<Item = Bytes> + Send + 'static {
    let pieces = stream::unfold(var.stream(), |mut pieces| async move {
        // An error follows as the value.
        let piece = pieces.next().await?.ok()?;
        Some((piece, pieces))
    });
    let name = var.name().to_owned();
    let texts = pieces.map(move |piece| {
        event(&json!({"type": "text", "state": state, "name": name, "delta": piece}))
    });
    let value = stream::once(async move {
        let name = var.name();
        event(&match var.outcome().await {
            Ok(outcome) => {
                let value = outcome.value.to_json();
                json!({"type": "value", "state": state, "name": name, "value": value})
            }
            Err(failed) => {
                let failed = error(&failed);
                json!({"type": "failed", "state": state, "name": name, "error": failed})
            }
        })
    });
    texts.chain(value)
}

fn event(payload: &Json) -> Bytes {
    let mut out = Vec::new();
    sse::push(&mut out, payload);
    out.into()
}
