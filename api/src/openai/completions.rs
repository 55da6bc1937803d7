//! `POST /v1/completions`.

use std::sync::Arc;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::output::{Detokenize, TextOptions};
use uuid::Uuid;

use crate::error::ApiError;
use crate::fields::bounds::check_logprob_entries;
use crate::fields::rid::given_rids;
use crate::fields::sampling::StreamUsage;
use crate::fields::speculation::SpeculationFields;
use crate::fields::structured::{self, Asked};
use crate::fields::wire::Prompt;
use crate::generate::{Job, PieceToken, Update, check_sequences, submit_each};
use crate::middleware::request_id::RequestId;
use crate::openai::chunk::ChunkWriter;
use crate::openai::completion_request::CompletionRequest;
use crate::openai::response::{
    CompletionChoice, CompletionLogprobs, Head, Response, SYSTEM_FINGERPRINT,
};
use crate::respond::{ChunkFormat, Whole, collected, json, streamed, written};
use crate::served::Served;
use crate::state::{AppState, unix_time};
use crate::tally::Tally;
use crate::{body, offload, prompt};

const ROUTE: &str = "/v1/completions";

/// A checked request, and how its answer will be written.
struct Prepared {
    /// One for all prompts, or one for each where they have names of their own.
    jobs: Vec<Job>,
    asked: Option<Asked>,
    stream: Option<StreamUsage>,
    writer: ChoiceWriter,
    seed: Option<i64>,
    /// The name that the request gives itself, or its first prompt.
    rid: Option<String>,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn completions(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        mut jobs,
        asked,
        stream,
        mut writer,
        seed,
        rid,
    } = prepared;
    let constraint = structured::compile(&served, asked).await?;
    for job in &mut jobs {
        job.constraint.clone_from(&constraint);
    }
    let (prompts, copies) = (writer.prompts, writer.copies);
    let model = jobs
        .first()
        .map_or_else(String::new, |job| job.model(&served));
    let updates = submit_each(&served, jobs)?;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, prompts, copies);
    let head = Head {
        id: rid.unwrap_or_else(|| format!("cmpl-{}", Uuid::now_v7().simple())),
        object: "text_completion",
        created: unix_time(),
        model,
        system_fingerprint: SYSTEM_FINGERPRINT,
        seed,
    };
    if let Some(usage) = stream {
        let waiting = (0..tally.choices()).map(|_| Some(Vec::new())).collect();
        let format = CompletionChunks {
            chunks: ChunkWriter::new(&head, usage),
            writer,
            waiting,
        };
        return Ok(streamed(updates, tally, format));
    }
    let wholes = collected(updates, &mut tally).await?;
    let usage = tally.usage();
    written(wholes, move |wholes| {
        let choices = wholes.into_iter().enumerate();
        Ok(json(&Response {
            head,
            choices: choices
                .map(|(index, whole)| writer.choice(index, whole))
                .collect(),
            usage,
        }))
    })
    .await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: CompletionRequest = body::parse(bytes)?;
    let adapter = request.choose(served)?;
    request.refuse_unsupported()?;
    let mut sampling = request.take_sampling();
    let asked = std::mem::take(&mut sampling.structured)
        .asked(served.grammars.defaults.whitespace, sampling.ignore_eos)?;
    let echo = request.echo.unwrap_or(false);
    let logprobs = request.top_logprobs()?;
    let max_tokens = request.token_limit()?;
    let params = sampling.params(&served.defaults)?;
    let (copies, stop) = (sampling.copies()?, sampling.stop_strings()?.to_vec());
    let stop_regex = sampling.stop_regexes()?;
    let namespace = sampling.namespace()?;
    sampling.label_trace();
    let priority = sampling.priority(served.engine.heeds_priority())?;
    let speculation = SpeculationFields {
        speculative: request.speculative,
        prediction: None,
    };
    let drafting = speculation.drafting(served)?;
    let stream = sampling.stream.then_some(sampling.stream_usage()?);
    let tokenizer: Arc<dyn Detokenize> = Arc::clone(&served.text) as Arc<dyn Detokenize>;
    check_sequences(served, request.prompt.0.given, copies, "prompt")?;
    let count = request.prompt.0.items.len();
    let rooms = request.take_disaggregation().rooms(count, copies)?;
    let rids = given_rids(request.rid.take(), count)?;
    let (mut prompts, mut echoes) = (Vec::new(), Vec::new());
    for given in std::mem::take(&mut request.prompt).checked("prompt")? {
        let (ids, text) = match given {
            Prompt::Text(text) => (prompt::encode(served, "prompt", &text, true)?, Some(text)),
            Prompt::Tokens(ids) => (ids, None),
        };
        prompt::output_limit(served, "prompt", ids.len(), "max_tokens", Some(max_tokens))?;
        if echo {
            let text = text.unwrap_or_else(|| tokenizer.decode(&ids, true));
            echoes.push(Echo {
                chars: text.chars().count(),
                text,
                ids: ids.clone(),
            });
        }
        prompts.push(ids);
    }
    let echoed: usize = echoes.iter().map(|echo: &Echo| echo.ids.len()).sum();
    check_logprob_entries(
        "`n` times (`max_tokens` for each prompt, and the prompts where `echo` is true) times \
         (1 + `logprobs`)",
        "max_tokens",
        max_tokens
            .saturating_mul(prompts.len())
            .saturating_add(echoed)
            .saturating_mul(copies),
        logprobs,
    )?;
    let text = TextOptions {
        skip_special: sampling.skip_special_tokens,
        stop,
        stop_regex,
        include_stop: sampling.include_stop_str_in_output,
        min_tokens: params.min_tokens,
    };
    let prompt_logprobs = logprobs.filter(|_| echo);
    let params = SamplingParams {
        max_tokens,
        logprobs,
        prompt_logprobs,
        ..params
    };
    let job = Job {
        prompts,
        copies,
        params,
        text,
        namespace,
        adapter,
        priority,
        drafting,
        rooms,
        prompt_field: "prompt",
        ..Job::default()
    };
    let writer = ChoiceWriter {
        tokenizer,
        logprobs: logprobs.is_some(),
        openings: vec![None; echoes.len()],
        echoes,
        prompts: job.prompts.len(),
        copies,
    };
    let rid = rids.as_ref().and_then(|rids| rids.first().cloned());
    Ok(Prepared {
        jobs: match rids {
            Some(rids) => named(job, rids),
            None => vec![job],
        },
        asked,
        stream,
        writer,
        seed: sampling.seed,
        rid,
    })
}

/// A job for each prompt of `job`, under the names of `rids`.
fn named(mut job: Job, rids: Vec<String>) -> Vec<Job> {
    let prompts = std::mem::take(&mut job.prompts);
    let mut rooms = std::mem::take(&mut job.rooms).into_iter();
    let each = prompts.into_iter().zip(rids);
    each.map(|(prompt, rid)| Job {
        prompts: vec![prompt],
        rooms: rooms.by_ref().take(job.copies).collect(),
        id: Some(rid),
        ..job.clone()
    })
    .collect()
}

/// A prompt with which the texts of its choices begin.
struct Echo {
    text: String,
    chars: usize,
    ids: Vec<u32>,
}

/// Writes the choices of one request.
struct ChoiceWriter {
    tokenizer: Arc<dyn Detokenize>,
    logprobs: bool,
    /// One for each prompt; empty without `echo`.
    echoes: Vec<Echo>,
    prompts: usize,
    copies: usize,
    /// One for each prompt, once the first of its choices has begun.
    openings: Vec<Option<CompletionLogprobs>>,
}

impl ChoiceWriter {
    fn echo(&self, index: usize) -> Option<&Echo> {
        self.echoes.get(index / self.copies)
    }

    /// The echoed prompt at the beginning of choice `index`.
    fn opening(
        &mut self,
        index: usize,
        prompt_logprobs: &[Option<TokenLogprobs>],
    ) -> CompletionChoice {
        let mut choice = CompletionChoice {
            index,
            text: String::new(),
            logprobs: self.logprobs.then(CompletionLogprobs::default),
            finish_reason: None,
            matched_stop: None,
        };
        let prompt = index / self.copies;
        let Some(echo) = self.echoes.get(prompt) else {
            return choice;
        };
        choice.text.push_str(&echo.text);
        if self.logprobs {
            let opening = self.openings[prompt].take().unwrap_or_else(|| {
                let mut opening = CompletionLogprobs::default();
                opening.push_prompt(&self.tokenizer, &echo.ids, prompt_logprobs);
                opening
            });
            if self.copies > 1 {
                self.openings[prompt] = Some(opening.clone());
            }
            choice.logprobs = Some(opening);
        }
        choice
    }

    fn append(&self, choice: &mut CompletionChoice, text: &str, tokens: &[PieceToken]) {
        let before = self.echo(choice.index).map_or(0, |echo| echo.chars);
        choice.text.push_str(text);
        if let Some(logprobs) = &mut choice.logprobs {
            logprobs.push_output(&*self.tokenizer, tokens, before);
        }
    }

    fn choice(&mut self, index: usize, whole: Whole) -> CompletionChoice {
        let mut choice = self.opening(index, &whole.prompt_logprobs);
        self.append(&mut choice, &whole.text, &whole.tokens);
        if let Some(finish) = whole.finish {
            (choice.finish_reason, choice.matched_stop) = (Some(finish.reason), finish.matched);
        }
        choice
    }
}

struct CompletionChunks {
    chunks: ChunkWriter,
    writer: ChoiceWriter,
    /// The prompt's log-probabilities for choices of which nothing was sent yet.
    waiting: Vec<Option<Vec<Option<TokenLogprobs>>>>,
}

impl CompletionChunks {
    /// A new chunk of choice `index`. The first one begins with the echoed prompt.
    fn begin(&mut self, index: usize) -> CompletionChoice {
        match self.waiting[index].take() {
            Some(prompt_logprobs) => self.writer.opening(index, &prompt_logprobs),
            None => CompletionChoice {
                index,
                text: String::new(),
                logprobs: self.writer.logprobs.then(CompletionLogprobs::default),
                finish_reason: None,
                matched_stop: None,
            },
        }
    }
}

impl ChunkFormat for CompletionChunks {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        let choice = match update {
            Update::PromptLogprobs(logprobs) => {
                self.waiting[index] = Some(logprobs);
                return;
            }
            Update::Text(piece) => {
                let mut choice = self.begin(index);
                self.writer.append(&mut choice, &piece.text, &piece.tokens);
                choice
            }
            Update::Finished(finish) => {
                let mut choice = self.begin(index);
                choice.logprobs = choice
                    .logprobs
                    .filter(|logprobs| !logprobs.tokens.is_empty());
                (choice.finish_reason, choice.matched_stop) = (Some(finish.reason), finish.matched);
                choice
            }
            _ => return,
        };
        self.chunks.push(&choice, tally, out);
    }

    fn close(&mut self, tally: &Tally, out: &mut Vec<u8>) {
        self.chunks.push_usage(tally, out);
    }
}
