//! The in-process back end: programs on the engine, without HTTP.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use hearth_client::lang::backend::{
    Backend, Call, Completion, Finish, Output, Prompt, Scores, Sink, TokenLogprob, Usage,
};
use hearth_client::lang::{ChoiceLogprobs, Error, Format, Sampling};
use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::output::{TextOptions, token_text};
use hearth_engine::{ParamError, SamplingParams};
use serde_json::json;

use crate::adapters::Choice;
use crate::conversation::Conversation;
use crate::error::{ApiError, out_of_bounds};
use crate::exchange::{self, Exchange};
use crate::fields::capped::Capped;
use crate::fields::sampling::SamplingFields;
use crate::fields::schema::GivenSchema;
use crate::fields::structured::{Asked, StructuredFields, compile};
use crate::fields::wire::OneOrMany;
use crate::generate::{Job, Update, submit, submit_each};
use crate::respond::Whole;
use crate::served::Served;
use crate::{offload, prompt};

/// Programs run by the engine of a loaded model. Every feature of the language is there but images.
#[derive(Clone)]
pub struct EngineBackend {
    served: Served,
    /// The exchange that requests are measured for; none outside of HTTP.
    exchange: Option<Arc<Exchange>>,
    namespace: Option<String>,
    adapter: Choice,
    priority: i32,
}

impl EngineBackend {
    pub fn new(served: Served) -> Self {
        Self {
            served,
            exchange: Exchange::current(),
            namespace: None,
            adapter: Choice::default(),
            priority: 0,
        }
    }

    /// Keeps the prefixes of these programs apart from others (`cache_salt`), and gives their
    /// requests a priority.
    #[must_use]
    pub fn apart(self, namespace: Option<String>, priority: i32) -> Self {
        Self {
            namespace,
            priority,
            ..self
        }
    }

    /// Has these programs computed with an adapter.
    #[must_use]
    pub fn adapted(self, adapter: Choice) -> Self {
        Self { adapter, ..self }
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, ApiError>>) -> Result<T, Error> {
        let done = match &self.exchange {
            Some(exchange) => exchange::within(Arc::clone(exchange), work).await,
            None => work.await,
        };
        done.map_err(|error| Error::Refused {
            status: error.status.as_u16(),
            message: error.message,
        })
    }

    /// The tokens of `prompt`.
    async fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
        let (served, prompt) = (self.served.clone(), prompt.clone());
        let size = match &prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Chat(messages) => messages.iter().map(|m| m.content.len()).sum(),
        };
        offload::when_large(size, move || encode(&served, &prompt)).await?
    }

    async fn generated(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, ApiError> {
        let served = &self.served;
        let ids = self.encode(&call.prompt).await?;
        let (mut params, text, asked) = checked(served, &call.sampling, &call.format)?;
        // Without a limit of the program the default is cut to what fits.
        let given = call.sampling.max_tokens.map(|tokens| tokens as usize);
        let room = prompt::output_limit(served, "text", ids.len(), "max_tokens", given)?;
        params.max_tokens = room.min(call.sampling.limit() as usize);
        params.min_tokens = params.min_tokens.min(params.max_tokens);
        params.logprobs = call.logprobs.map(|top| top as usize);
        let job = Job {
            constraint: compile(served, asked).await?,
            text,
            copies: call.n as usize,
            ..self.job(ids, params)
        };
        let mut updates = submit(served, job)?;
        let mut outputs = vec![Output::default(); call.n as usize];
        let mut usage = Usage::default();
        while let Some((index, update)) = updates.next().await {
            let done = &mut outputs[index];
            match update {
                Update::Started {
                    prompt_tokens,
                    cached_tokens,
                } => {
                    // All outputs have one prompt; the first one to start may compute it.
                    usage.prompt_tokens = prompt_tokens as u64;
                    if index == 0 {
                        usage.cached_tokens = cached_tokens as u64;
                    }
                }
                Update::Text(piece) => {
                    if call.stream && !piece.text.is_empty() {
                        sink(&piece.text);
                    }
                    done.text.push_str(&piece.text);
                    let tokens = piece.tokens.iter();
                    let tokens = tokens.map(|token| self.logprob(&token.logprobs));
                    done.logprobs.extend(tokens);
                }
                Update::Finished(finish) => {
                    if finish.reason == "abort" {
                        let message = "the request was aborted";
                        return Err(ApiError::unavailable("aborted", message));
                    }
                    usage.completion_tokens += finish.completion_tokens as u64;
                    done.finish = match finish.reason {
                        "length" => Finish::Length,
                        _ => Finish::Stop,
                    };
                }
                Update::Failed(error) => return Err(error),
                Update::PromptLogprobs(_) | Update::Embedding(_) => {}
            }
        }
        Ok(Completion::of(outputs, usage))
    }

    fn logprob(&self, logprobs: &TokenLogprobs) -> TokenLogprob {
        let text = |id| token_text(&*self.served.text, id).0;
        let top = logprobs.top.iter();
        TokenLogprob {
            token: text(logprobs.token),
            logprob: f64::from(logprobs.logprob),
            top: top
                .map(|&(id, logprob)| (text(id), f64::from(logprob)))
                .collect(),
        }
    }

    fn job(&self, ids: Vec<u32>, params: SamplingParams) -> Job {
        Job {
            prompts: vec![ids],
            copies: 1,
            params,
            namespace: self.namespace.clone(),
            adapter: self.adapter.clone(),
            priority: self.priority,
            prompt_field: "text",
            ..Job::default()
        }
    }

    /// A job that generates nothing, but computes the log-probabilities of the tokens after the
    /// first `from`.
    fn scoring(&self, ids: Vec<u32>, from: Option<usize>) -> Job {
        let params = SamplingParams {
            max_tokens: 0,
            temperature: 0.0,
            logprobs: from.map(|_| 0),
            prompt_logprobs: from.map(|_| 0),
            prompt_logprobs_from: from.unwrap_or(0),
            ..SamplingParams::default()
        };
        self.job(ids, params)
    }

    async fn scored(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, ApiError> {
        let mut lists = Vec::with_capacity(choices.len());
        let prefix = self.encode(prompt).await?;
        for choice in choices {
            lists.push(self.encode(&followed(prompt, choice)).await?);
        }
        let same = |list: &Vec<u32>| {
            let pairs = list.iter().zip(&prefix);
            pairs.take_while(|(one, other)| one == other).count()
        };
        let common = lists.iter().map(same).min().unwrap_or(0);
        if common == 0 {
            let bound = "begin with at least one token before its choices";
            return Err(out_of_bounds("text", bound, "none"));
        }
        let alone = lists.iter().filter(|_| unconditional);
        let alone = alone.map(|list| self.scoring(list[common..].to_vec(), Some(0)));
        let jobs = lists
            .iter()
            .map(|list| self.scoring(list.clone(), Some(common - 1)));
        let jobs: Vec<Job> = jobs.chain(alone).collect();
        let mut wholes: Vec<Whole> = jobs.iter().map(|_| Whole::default()).collect();
        let mut updates = submit_each(&self.served, jobs)?;
        let mut usage = Usage::default();
        while let Some((index, update)) = updates.next().await {
            if let Update::Started {
                prompt_tokens,
                cached_tokens,
            } = &update
            {
                usage.prompt_tokens += *prompt_tokens as u64;
                usage.cached_tokens += *cached_tokens as u64;
            }
            wholes[index].take(update)?;
        }
        let logprobs = |whole: &Whole, from: usize| -> Vec<f64> {
            let logprobs = whole.prompt_logprobs.iter().skip(from);
            let logprob = logprobs.map(|l| l.as_ref().map_or(0.0, |l| f64::from(l.logprob)));
            logprob.collect()
        };
        let each = (0..lists.len()).map(|index| ChoiceLogprobs {
            logprobs: logprobs(&wholes[index], common),
            unconditional: wholes
                .get(lists.len() + index)
                .map(|whole| logprobs(whole, 0))
                .unwrap_or_default(),
        });
        Ok(Scores {
            choices: each.collect(),
            usage,
        })
    }
}

fn encode(served: &Served, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Prompt::Text(text) => prompt::encode(served, "text", text, true),
        Prompt::Chat(messages) => {
            let messages = messages.iter().map(|message| json!(message)).collect();
            Ok(Conversation::of(messages).encode(served)?.prompt)
        }
    }
}

/// `prompt` with `choice` after it.
fn followed(prompt: &Prompt, choice: &str) -> Prompt {
    use hearth_client::{Message, Role};
    match prompt {
        Prompt::Text(text) => Prompt::Text(format!("{text}{choice}")),
        Prompt::Chat(messages) => {
            let mut messages = messages.clone();
            match messages.last_mut() {
                Some(last) if last.role == Role::Assistant => last.content.push_str(choice),
                _ => messages.push(Message {
                    role: Role::Assistant,
                    content: choice.to_owned(),
                }),
            }
            Prompt::Chat(messages)
        }
    }
}

/// The engine's form of the options, checked against their bounds, and the grammar of the output.
///
/// # Errors
/// 400 with field, bound and value.
pub fn checked(
    served: &Served,
    sampling: &Sampling,
    format: &Format,
) -> Result<(SamplingParams, TextOptions, Option<Asked>), ApiError> {
    let ignore_eos = sampling.ignore_eos.unwrap_or(false);
    let min_tokens = sampling.min_tokens.unwrap_or(0);
    let structured = StructuredFields {
        regex: format.regex.clone(),
        json_schema: format.json_schema.clone().map(|schema| GivenSchema {
            schema,
            // It was counted where it was read.
            values: 0,
        }),
        ..StructuredFields::default()
    };
    let asked = structured.asked(served.grammars.defaults.whitespace, ignore_eos)?;
    let capped = |texts: &Vec<String>| {
        OneOrMany(Capped {
            items: texts.clone(),
            given: texts.len(),
        })
    };
    let ids = sampling.stop_token_ids.iter().map(|&id| i64::from(id));
    let fields = SamplingFields {
        min_tokens: Some(i64::from(min_tokens)),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        seed: sampling.seed,
        stop: capped(&sampling.stop),
        stop_regex: capped(&sampling.stop_regex),
        stop_token_ids: Capped {
            items: ids.collect(),
            given: sampling.stop_token_ids.len(),
        },
        ignore_eos,
        ..SamplingFields::default()
    };
    let params = SamplingParams {
        max_tokens: sampling.limit() as usize,
        ..fields.params(&served.defaults)?
    };
    let wrong = |error: ParamError| ApiError::field(error.field, error.to_string());
    params
        .validate(served.engine.limits().vocab_size)
        .map_err(wrong)?;
    let text = TextOptions {
        skip_special: true,
        stop: fields.stop_strings()?.to_vec(),
        stop_regex: fields.stop_regexes()?,
        include_stop: false,
        min_tokens: min_tokens as usize,
    };
    Ok((params, text, asked))
}

#[async_trait]
impl Backend for EngineBackend {
    fn name(&self) -> &str {
        "engine"
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        self.within(self.generated(call, sink)).await
    }

    async fn score(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, Error> {
        self.within(self.scored(prompt, choices, unconditional))
            .await
    }

    async fn cache(&self, prompt: &Prompt) -> Result<(), Error> {
        let cached = async {
            let ids = self.encode(prompt).await?;
            let mut updates = submit(&self.served, self.scoring(ids, None))?;
            while let Some((_, update)) = updates.next().await {
                Whole::default().take(update)?;
            }
            Ok(())
        };
        self.within(cached).await
    }
}
