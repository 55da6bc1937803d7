//! `POST` and `PUT /generate`.

use std::sync::Arc;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::SamplingParams;
use hearth_engine::output::Detokenize;

use crate::adapters::Choice;
use crate::dialect::Dialect;
use crate::error::{ApiError, out_of_bounds};
use crate::fields::adapters::choose;
use crate::fields::bounds::check_logprob_entries;
use crate::fields::each::Each;
use crate::fields::rid::rids;
use crate::fields::speculation::SpeculationFields;
use crate::fields::structured::{Asked, compile};
use crate::fields::wire::Object;
use crate::generate::{Job, Update, check_sequences, submit_each};
use crate::middleware::request_id::RequestId;
use crate::respond::{ChunkFormat, Whole, collected, json, streamed, written};
use crate::served::Served;
use crate::sglang::meta::{PromptMeta, Writer};
use crate::sglang::prompts;
use crate::sglang::request::{GenerateRequest, LogprobsAsked};
use crate::sglang::sampling::{Checked, Sampling};
use crate::state::AppState;
use crate::tally::Tally;
use crate::{body, offload, prompt, sse};

const ROUTE: &str = "/generate";

/// A checked request, and how its answer will be written.
struct Prepared {
    jobs: Vec<Job>,
    /// One grammar for all jobs, or one for each.
    asked: Vec<Option<Asked>>,
    writer: Writer,
    stream: bool,
    /// True if the answer is a list.
    listed: bool,
}

/// # Errors
/// 4xx for a faulty request, 503 when the server cannot take it now.
pub async fn generate(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    let Prepared {
        mut jobs,
        asked,
        writer,
        stream,
        listed,
    } = prepared;
    let shared = asked.len() == 1;
    for (index, asked) in asked.into_iter().enumerate() {
        let constraint = compile(&served, asked)
            .await
            .map_err(|error| error.within("sampling_params"))?;
        let of = if shared {
            0..jobs.len()
        } else {
            index..index + 1
        };
        for job in &mut jobs[of] {
            job.constraint.clone_from(&constraint);
        }
    }
    let (prompts, copies) = (jobs.len(), writer.n);
    let updates = submit_each(&served, jobs)?;
    let mut tally = Tally::new(RequestId::of(&request), ROUTE, prompts, copies);
    if stream {
        let choices = (0..tally.choices()).map(|_| Growing::default()).collect();
        let format = GrowingTexts {
            writer,
            listed,
            choices,
        };
        return Ok(streamed(updates, tally, format));
    }
    let wholes = collected(updates, &mut tally).await?;
    written(wholes, move |mut wholes| {
        for (index, whole) in wholes.iter_mut().enumerate() {
            writer.end(index, whole);
        }
        let answers = wholes.iter().enumerate();
        let answers: Vec<_> = answers
            .map(|(index, whole)| writer.answer(index, whole, &tally, false))
            .collect();
        Ok(match answers.as_slice() {
            [answer] if !listed => json(answer),
            answers => json(&answers),
        })
    })
    .await
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request: GenerateRequest = body::parse(bytes)?;
    AppState::check_model(served, request.model.as_deref())?;
    request.refuse_unsupported()?;
    let (input, mut listed) = prompts::input(request.text.take(), request.input_ids.take())?;
    let (field, count) = (input.field(), input.len());
    // The number is checked before each prompt gets its own parameters, which can be large.
    check_sequences(served, count, 1, field)?;
    let (sampling, asked) = sampling(served, &mut request, count)?;
    let n = copies(&sampling)?;
    listed |= n > 1;
    check_sequences(served, count, n, field)?;
    let adapters = adapters(served, &mut request, count)?;
    let rids = rids(request.rid.take(), count)?;
    let mut rooms = request.take_disaggregation().rooms(count, n)?.into_iter();
    let namespace =
        prompts::namespace(request.cache_salt.as_deref(), request.extra_key.as_deref())?;
    let priority = prompts::priority(served, request.priority)?;
    let speculation = SpeculationFields {
        speculative: request.speculative,
        prediction: None,
    };
    let drafting = speculation.drafting(served)?;
    let prompts = input.encode(served)?;
    let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
    let logprobs = request.logprobs(&lengths, served.engine.limits().vocab_size)?;
    let (mut jobs, mut metas) = (Vec::new(), Vec::new());
    let streamed = request.stream == Some(true);
    let mut entries = 0usize;
    let each = prompts.into_iter().zip(sampling).zip(rids).zip(logprobs);
    for ((((prompt, checked), rid), asked), adapter) in each.zip(adapters) {
        let (length, given) = (prompt.len(), checked.max_new_tokens);
        let left = prompt::output_limit(served, field, length, "max_new_tokens", given).map_err(
            |error| match error.param.as_deref() {
                Some("max_new_tokens") => error.within("sampling_params"),
                _ => error,
            },
        )?;
        let max_new_tokens = checked.tokens(left);
        if let Some(asked) = &asked {
            // Every event of a stream repeats the log-probabilities of the prompt.
            let events = if streamed { max_new_tokens.max(1) } else { 1 };
            let of_prompt = asked.from.map_or(0, |from| length - from);
            let scored = of_prompt
                .saturating_mul(events)
                .saturating_add(max_new_tokens);
            // It repeats those of the output so far too, which only lists of ids make long.
            let repeated = match streamed {
                true => max_new_tokens.saturating_mul(max_new_tokens + 1) / 2,
                false => max_new_tokens,
            };
            let told = of_prompt.saturating_mul(events).saturating_add(repeated);
            entries = entries
                .saturating_add(scored.saturating_mul(1 + asked.top))
                .saturating_add(told.saturating_mul(asked.ids.len()));
        }
        metas.push(PromptMeta {
            rid: rid.clone(),
            max_new_tokens,
            skip_special: checked.text.skip_special,
            keep_stop: checked.text.include_stop,
            first_scored: first_scored(&prompt, asked.as_ref()),
            logprobs: asked.clone(),
        });
        let job = job(prompt, checked, rid, max_new_tokens, asked);
        jobs.push(Job {
            copies: n,
            namespace: namespace.clone(),
            adapter,
            priority,
            drafting: drafting.clone(),
            rooms: rooms.by_ref().take(n).collect(),
            prompt_field: field,
            ..job
        });
    }
    check_logprob_entries(
        "`n` times the tokens to be scored times (1 + `top_logprobs_num` + the \
         number of `token_ids_logprob`, again for each event of a stream)",
        "return_logprob",
        entries.saturating_mul(n),
        (entries > 0).then_some(0),
    )?;
    let has_rooms = jobs.iter().any(|job| !job.rooms.is_empty());
    let writer = Writer {
        scored_by_prefill: has_rooms && served.disaggregation.receives(),
        tokenizer: Arc::clone(&served.text) as Arc<dyn Detokenize>,
        prompts: metas,
        n,
        speculates: served.engine.speculation().is_some(),
        texts: request.return_text_in_logprobs.unwrap_or(false),
    };
    Ok(Prepared {
        jobs,
        asked,
        writer,
        stream: request.stream.unwrap_or(false),
        listed,
    })
}

fn job(
    prompt: Vec<u32>,
    checked: Checked,
    rid: String,
    max_tokens: usize,
    asked: Option<LogprobsAsked>,
) -> Job {
    let top = asked.as_ref().map(|asked| asked.top);
    let from = asked.as_ref().and_then(|asked| asked.from);
    Job {
        prompts: vec![prompt],
        params: SamplingParams {
            max_tokens,
            min_tokens: checked.params.min_tokens.min(max_tokens),
            logprobs: top,
            prompt_logprobs: top.filter(|_| from.is_some()),
            logprob_ids: asked.map_or(Vec::new(), |asked| asked.ids),
            prompt_logprobs_from: from.unwrap_or(0),
            ..checked.params
        },
        text: checked.text,
        id: Some(rid),
        ..Job::default()
    }
}

/// The adapter of each of `count` prompts.
fn adapters(
    served: &Served,
    request: &mut GenerateRequest,
    count: usize,
) -> Result<Vec<Choice>, ApiError> {
    let (model, lora) = (request.model.as_deref(), request.lora.as_ref());
    let of = |path: Option<&str>| choose(served, model, path, lora);
    match request.lora_path.take() {
        Some(Each::One(paths)) => {
            let paths = Each::One(paths).spread("lora_path", count)?;
            paths.iter().map(|path| of(Some(path))).collect()
        }
        Some(Each::All(path)) => Ok(vec![of(Some(&path))?; count]),
        None => Ok(vec![of(None)?; count]),
    }
}

/// The sampling parameters of each of `count` prompts, and one grammar for all or one for each.
fn sampling(
    served: &Served,
    request: &mut GenerateRequest,
    count: usize,
) -> Result<(Vec<Checked>, Vec<Option<Asked>>), ApiError> {
    let whitespace = served.grammars.defaults.whitespace;
    let check = |sampling: Sampling| sampling.check(&served.defaults, whitespace);
    let one = match request.sampling_params.take() {
        None => Sampling::default(),
        Some(Each::All(Object(sampling))) => sampling,
        Some(Each::One(list)) if list.given == count => {
            let each = list.items.into_iter();
            return each.map(|Object(sampling)| check(sampling)).collect();
        }
        Some(Each::One(list)) => {
            let bound = format!("an object, or a list of one for each of {count} prompts");
            let given = format!("a list of {}", list.given);
            return Err(out_of_bounds("sampling_params", &bound, given));
        }
    };
    let (checked, asked) = check(one)?;
    Ok((vec![checked; count], vec![asked]))
}

/// `n`, which must be the same for all prompts.
fn copies(sampling: &[Checked]) -> Result<usize, ApiError> {
    let first = sampling.first().map_or(1, |checked| checked.n);
    match sampling.iter().find(|checked| checked.n != first) {
        None => Ok(first),
        Some(other) => {
            let bound = format!("the same for all prompts ({first})");
            Err(out_of_bounds("n", &bound, other.n).within("sampling_params"))
        }
    }
}

fn first_scored(prompt: &[u32], asked: Option<&LogprobsAsked>) -> u32 {
    let from = asked.and_then(|asked| asked.from).unwrap_or(0);
    prompt.get(from).copied().unwrap_or_default()
}

/// A choice so far, and whether it has changed since the last write.
#[derive(Default)]
struct Growing {
    whole: Whole,
    news: bool,
}

/// SGLang's stream: every event has the whole text so far.
struct GrowingTexts {
    writer: Writer,
    listed: bool,
    choices: Vec<Growing>,
}

impl ChunkFormat for GrowingTexts {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        let news = matches!(update, Update::Text(_) | Update::Finished(_));
        let ended = matches!(update, Update::Finished(_));
        let choice = &mut self.choices[index];
        choice.news |= news;
        // Failures do not come here.
        let _ = choice.whole.take(update);
        if ended {
            self.writer.end(index, &mut choice.whole);
            self.write(index, tally, out);
            // The choice is complete, and its memory can be freed before the others end.
            self.choices[index] = Growing::default();
        }
    }

    fn flush(&mut self, tally: &Tally, out: &mut Vec<u8>) {
        for index in 0..self.choices.len() {
            if self.choices[index].news {
                self.write(index, tally, out);
            }
        }
    }

    fn close(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse::push(out, &Dialect::Sglang.body(error));
    }
}

impl GrowingTexts {
    fn write(&mut self, index: usize, tally: &Tally, out: &mut Vec<u8>) {
        self.choices[index].news = false;
        let whole = &self.choices[index].whole;
        sse::push(out, &self.writer.answer(index, whole, tally, self.listed));
    }
}
