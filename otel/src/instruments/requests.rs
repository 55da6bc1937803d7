//! Instruments that requests and engine steps record to.

use std::sync::Arc;

use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram, Meter};
use opentelemetry::{KeyValue, TraceId};

use super::adapters::AdapterNames;
use super::build::{counter, histogram};
use super::clients::ClientInstruments;
use super::engine::{EngineFacts, ReadDerived, ReadEngine, observe_engine};
use super::speculation;
use super::tokens::Tokens;
use super::transfers::TransferInstruments;
use crate::bounds::Bounds;
use crate::catalog::{
    ERROR, MODEL, OPERATION, PHASE, PROVIDER, PROVIDER_NAME, REASON, REJECTION, STREAM,
};
use crate::exemplars::Exemplars;
use crate::records::{Ending, KvTransfer, StepRecord};

/// Numbers of a continuation that ended. Times are in seconds, `None` if that phase was not
/// reached.
#[derive(Clone, Copy, Debug)]
pub struct RequestNumbers<'a> {
    /// `chat` or `text_completion`.
    pub operation: &'static str,
    pub stream: bool,
    /// The name of the adapter (LoRA), or a word for several.
    pub adapter: Option<&'a str>,
    pub ending: Ending,
    pub duration: f64,
    pub queue: Option<f64>,
    pub prefill: Option<f64>,
    pub decode: Option<f64>,
    pub inference: Option<f64>,
    /// Queue, prefill, decode and inference by the most recent start in place of the first one.
    pub latest: [Option<f64>; 4],
    /// The trace of the request, if it is exported.
    pub trace: Option<TraceId>,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub max_tokens: usize,
    pub preemptions: u64,
}

/// Instruments of the engine and of requests.
#[derive(Debug)]
pub struct EngineInstruments {
    /// The attributes of series that have no others: the model.
    model_only: [KeyValue; 1],
    adapters: AdapterNames,
    first_token: Histogram<f64>,
    duration: Histogram<f64>,
    per_token: Histogram<f64>,
    tokens: Arc<Tokens>,
    queue: BoundHistogram<f64>,
    prefill: BoundHistogram<f64>,
    decode: BoundHistogram<f64>,
    inference: BoundHistogram<f64>,
    tokenize: BoundHistogram<f64>,
    request_prompt: BoundHistogram<f64>,
    request_generation: BoundHistogram<f64>,
    computed: BoundHistogram<f64>,
    longest: BoundHistogram<f64>,
    max_tokens: BoundHistogram<f64>,
    copies: BoundHistogram<f64>,
    preemptions: BoundHistogram<f64>,
    forward_time: BoundHistogram<f64>,
    execute_time: BoundHistogram<f64>,
    requests: Counter<u64>,
    without_decode: BoundCounter<u64>,
    rejections: BoundCounter<u64>,
    /// Indexed by `usize::from(stream)`.
    prompt_tokens: [BoundCounter<u64>; 2],
    iteration_tokens: BoundHistogram<f64>,
    step_scheduler: BoundHistogram<f64>,
    step_forward: BoundHistogram<f64>,
    step_execute: BoundHistogram<f64>,
    step_prefills: BoundHistogram<f64>,
    step_decodes: BoundHistogram<f64>,
    transfers: TransferInstruments,
    clients: ClientInstruments,
    /// Queue, prefill, decode and inference by the most recent start.
    latest: [BoundHistogram<f64>; 4],
    exemplars: Exemplars,
}

/// A duration that can be recorded: 0 in place of a negative or non-finite one.
fn sane(seconds: f64) -> f64 {
    if seconds.is_finite() {
        seconds.max(0.0)
    } else {
        0.0
    }
}

impl EngineInstruments {
    pub fn new(
        meter: &Meter,
        model: &str,
        facts: &EngineFacts,
        bounds: &Bounds,
        read: &ReadEngine,
        derived: &ReadDerived,
    ) -> Self {
        // Shared, because a text would be copied for each record.
        let model_attribute = [KeyValue::new(MODEL, Arc::<str>::from(model))];
        let bound = |name| histogram(meter, name, bounds).bind(&model_attribute);
        let bound_with = |name, key: &'static str, value: &'static str| {
            let [model] = &model_attribute;
            histogram(meter, name, bounds).bind(&[model.clone(), KeyValue::new(key, value)])
        };
        let requests = counter(meter, "llm.requests");
        // All of vLLM's reasons exist from the start, so that rates have a first value.
        for reason in Ending::ALL
            .map(Ending::as_str)
            .into_iter()
            .chain(["repetition"])
        {
            for stream in [false, true] {
                let attributes = request_attributes(&model_attribute, reason, stream, None);
                requests.add(0, &attributes);
            }
        }
        let prompt_tokens = [false, true].map(|stream| {
            let [model] = &model_attribute;
            let attributes = [model.clone(), KeyValue::new(STREAM, stream)];
            let prompt_tokens = counter(meter, "llm.prompt_tokens").bind(&attributes);
            prompt_tokens.add(0);
            prompt_tokens
        });
        let [model_only] = &model_attribute;
        let rejections = counter(meter, "llm.admission_rejections").bind(&[
            model_only.clone(),
            KeyValue::new(REJECTION, "max_num_queued_reqs"),
        ]);
        rejections.add(0);
        let without_decode = counter(meter, "llm.requests_without_decode").bind(&model_attribute);
        without_decode.add(0);
        observe_engine(meter, model, facts, read, derived);
        if facts.draft_positions > 0 {
            let [model] = &model_attribute;
            speculation::observe(meter, model, facts.draft_positions, read);
        }
        if facts.draft_model {
            let [model] = &model_attribute;
            speculation::observe_draft_model(meter, model, read);
        }
        Self {
            adapters: AdapterNames::default(),
            first_token: histogram(meter, "gen_ai.server.time_to_first_token", bounds),
            duration: histogram(meter, "gen_ai.server.request.duration", bounds),
            per_token: histogram(meter, "gen_ai.server.time_per_output_token", bounds),
            tokens: Tokens::new(meter, model_only, bound("llm.inter_token_latency")),
            queue: bound("llm.request.queue_time"),
            prefill: bound("llm.request.prefill_time"),
            decode: bound("llm.request.decode_time"),
            inference: bound("llm.request.inference_time"),
            tokenize: bound("llm.request.tokenize_time"),
            request_prompt: bound("llm.request.prompt_tokens"),
            request_generation: bound("llm.request.generation_tokens"),
            computed: bound("llm.request.prefill_kv_computed_tokens"),
            longest: bound("llm.request.max_num_generation_tokens"),
            max_tokens: bound("llm.request.params_max_tokens"),
            copies: bound("llm.request.params_n"),
            preemptions: bound("llm.request.num_preemptions"),
            forward_time: bound("llm.request.model_forward_time"),
            execute_time: bound("llm.request.model_execute_time"),
            requests,
            without_decode,
            rejections,
            prompt_tokens,
            iteration_tokens: bound("llm.iteration_tokens"),
            step_scheduler: bound("llm.engine.step.scheduler_time"),
            step_forward: bound("llm.engine.step.forward_time"),
            step_execute: bound("llm.engine.step.execute_time"),
            step_prefills: bound_with("llm.engine.step.rows", PHASE, "prefill"),
            step_decodes: bound_with("llm.engine.step.rows", PHASE, "decode"),
            transfers: TransferInstruments::new(meter, &model_attribute, bounds),
            clients: ClientInstruments::new(meter, model),
            latest: [
                bound("llm.request.latest_queue_time"),
                bound("llm.request.latest_prefill_time"),
                bound("llm.request.latest_decode_time"),
                bound("llm.request.latest_inference_time"),
            ],
            exemplars: Exemplars::new(bounds),
            model_only: model_attribute,
        }
    }

    fn gen_ai(
        &self,
        operation: &'static str,
        stream: bool,
        adapter: Option<&str>,
    ) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new(OPERATION, operation),
            KeyValue::new(PROVIDER, PROVIDER_NAME),
            self.model_only[0].clone(),
            KeyValue::new(STREAM, stream),
        ];
        attributes.extend(self.adapters.attribute(adapter));
        attributes
    }

    /// The exemplars of the buckets of latencies.
    pub fn exemplars(&self) -> &Exemplars {
        &self.exemplars
    }

    /// Counts the prompt tokens of a request that started.
    pub fn started(&self, stream: bool, prompt_tokens: usize) {
        self.prompt_tokens[usize::from(stream)].add(prompt_tokens as u64);
    }

    /// Records the time from arrival to first token, of a request with this trace, and with the name
    /// of its adapter if it has one.
    pub fn first_token(
        &self,
        operation: &'static str,
        stream: bool,
        adapter: Option<&str>,
        seconds: f64,
        trace: Option<TraceId>,
    ) {
        let attributes = self.gen_ai(operation, stream, adapter);
        self.first_token.record(sane(seconds), &attributes);
        if let Some(trace) = trace {
            let name = "gen_ai.server.time_to_first_token";
            self.exemplars.keep(name, &attributes, sane(seconds), trace);
        }
    }

    /// Records a token and the seconds since the one before it.
    pub fn token(&self, stream: bool, since_last: Option<f64>) {
        self.tokens.add(stream, 1, since_last.map(sane));
    }

    /// Keeps the trace of a request with the longest time between two of its tokens.
    pub fn longest_gap(&self, seconds: f64, trace: TraceId) {
        let name = "llm.inter_token_latency";
        self.exemplars
            .keep(name, &self.model_only, sane(seconds), trace);
    }

    /// Counts tokens that were generated but not sent, such as the end-of-text token.
    pub fn unseen_tokens(&self, stream: bool, tokens: usize) {
        self.tokens.add(stream, tokens as u64, None);
    }

    /// Records the time that tokenizing a request took.
    pub fn tokenized(&self, seconds: f64) {
        self.tokenize.record(sane(seconds));
    }

    /// Counts a request that was refused because the queue was full.
    pub fn rejected(&self) {
        self.rejections.add(1);
    }

    /// Records the number of continuations that an accepted request asks for.
    pub fn accepted(&self, copies: usize) {
        self.copies.record(copies as f64);
    }

    /// Records the length of a request's longest continuation, once all have ended.
    pub fn longest(&self, tokens: usize) {
        self.longest.record(tokens as f64);
    }

    /// Records a continuation that ended.
    pub fn ended(&self, numbers: &RequestNumbers<'_>) {
        let reason = numbers.ending.as_str();
        let adapter = self.adapters.attribute(numbers.adapter);
        let attributes = request_attributes(&self.model_only, reason, numbers.stream, adapter);
        self.requests.add(1, &attributes);
        let mut attributes = self.gen_ai(numbers.operation, numbers.stream, numbers.adapter);
        if numbers.completion_tokens > 1
            && let Some(decode) = numbers.decode
        {
            let per_token = decode / (numbers.completion_tokens - 1) as f64;
            self.per_token.record(sane(per_token), &attributes);
            if let Some(trace) = numbers.trace {
                let name = "gen_ai.server.time_per_output_token";
                self.exemplars
                    .keep(name, &attributes, sane(per_token), trace);
            }
        } else {
            self.without_decode.add(1);
        }
        match numbers.ending {
            Ending::Stop | Ending::Length => {}
            Ending::Abort => attributes.push(KeyValue::new(ERROR, "client_disconnect")),
            Ending::Error => attributes.push(KeyValue::new(ERROR, "internal_error")),
        }
        self.duration.record(sane(numbers.duration), &attributes);
        if let Some(trace) = numbers.trace {
            let name = "gen_ai.server.request.duration";
            self.exemplars
                .keep(name, &attributes, sane(numbers.duration), trace);
        }
        for (name, histogram, seconds) in [
            ("llm.request.queue_time", &self.queue, numbers.queue),
            ("llm.request.prefill_time", &self.prefill, numbers.prefill),
            ("llm.request.decode_time", &self.decode, numbers.decode),
            (
                "llm.request.inference_time",
                &self.inference,
                numbers.inference,
            ),
        ] {
            let Some(seconds) = seconds else {
                continue;
            };
            histogram.record(sane(seconds));
            if let Some(trace) = numbers.trace {
                self.exemplars
                    .keep(name, &self.model_only, sane(seconds), trace);
            }
        }
        for (histogram, seconds) in self.latest.iter().zip(numbers.latest) {
            if let Some(seconds) = seconds {
                histogram.record(sane(seconds));
            }
        }
        let computed = numbers.prompt_tokens.saturating_sub(numbers.cached_tokens);
        self.request_prompt.record(numbers.prompt_tokens as f64);
        self.request_generation
            .record(numbers.completion_tokens as f64);
        self.computed.record(computed as f64);
        self.max_tokens.record(numbers.max_tokens as f64);
        self.preemptions.record(numbers.preemptions as f64);
    }

    /// Counts a continuation of the API key with this name.
    pub fn client_ended(&self, name: &str, prompt_tokens: usize, generation_tokens: usize) {
        self.clients.ended(name, prompt_tokens, generation_tokens);
    }

    /// Counts a request that a limit of its API key refused.
    pub fn client_refused(&self, name: &str) {
        self.clients.refused(name);
    }

    /// Records a transfer that ended.
    pub fn transferred(&self, transfer: &KvTransfer) {
        self.transfers.record(transfer);
    }

    /// Records sums over the steps of a request, in seconds.
    pub fn model_times(&self, forward: f64, execute: f64) {
        self.forward_time.record(sane(forward));
        self.execute_time.record(sane(execute));
    }

    /// Records a step of the engine.
    pub fn step(&self, step: &StepRecord) {
        self.iteration_tokens.record(step.tokens as f64);
        self.step_scheduler.record(step.scheduler().as_secs_f64());
        self.step_forward.record(step.forward().as_secs_f64());
        self.step_execute.record(step.execute().as_secs_f64());
        self.step_prefills.record(step.prefill_rows as f64);
        self.step_decodes.record(step.decode_rows as f64);
    }
}

fn request_attributes(
    [model]: &[KeyValue; 1],
    reason: &'static str,
    stream: bool,
    adapter: Option<KeyValue>,
) -> Vec<KeyValue> {
    let attributes = [
        model.clone(),
        KeyValue::new(REASON, reason),
        KeyValue::new(STREAM, stream),
    ];
    attributes.into_iter().chain(adapter).collect()
}
