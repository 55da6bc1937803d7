//! A model that is not there, for measurements of everything around it: every token is `a`.

use std::sync::Arc;

use hearth_api::disaggregation::Disaggregation;
use hearth_api::grammars::{GrammarDefaults, Grammars};
use hearth_api::served::{ChatPrompt, Defaults, Formats, ModelInfo, Served, TextCodec};
use hearth_engine::output::Detokenize;
use hearth_engine::{Engine, EngineConfig, Pooling};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequests,
};

/// Prompts of `hearth-load` have ids below 1000. There are few more ids, so that sampling costs
/// little.
const VOCAB: usize = 1024;
const LETTER: u32 = 'a' as u32;
/// Requests of 512 clients run at once.
pub const SEQUENCES: usize = 512;
pub const CONTEXT: usize = 2048;

/// `wait` is called in each step, and takes the time that the step should take.
struct Letter<F> {
    wait: F,
}

impl<F: FnMut() + Send + 'static> Executor for Letter<F> {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            kv_slots: SEQUENCES * CONTEXT,
            max_model_len: CONTEXT,
            vocab_size: VOCAB,
        }
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        (self.wait)();
        let mut values = vec![0.0; batch.logit_rows.len() * VOCAB];
        for row in values.chunks_exact_mut(VOCAB) {
            row[LETTER as usize] = 10.0;
        }
        Ok(ForwardOutput {
            logits: values,
            ..ForwardOutput::default()
        })
    }
}

struct Letters;

impl Detokenize for Letters {
    fn decode(&self, ids: &[u32], _skip_special: bool) -> String {
        ids.iter().map(|_| 'a').collect()
    }

    fn token_bytes(&self, _id: u32) -> Vec<u8> {
        b"a".to_vec()
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0
    }
}

impl TextCodec for Letters {
    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.encode(text, add_special)
    }

    fn max_token_bytes(&self) -> usize {
        1
    }

    fn can_chat(&self) -> bool {
        false
    }

    fn render_chat(&self, _chat: &ChatPrompt<'_>) -> Result<String, String> {
        Err("there is no chat template".to_owned())
    }
}

/// An engine with this model. `wait` takes the time that a step should take.
///
/// # Errors
/// A thread cannot be started.
pub fn served(config: EngineConfig, wait: impl FnMut() + Send + 'static) -> anyhow::Result<Served> {
    let text = Arc::new(Letters);
    let grammars = Grammars::start(text.clone(), VOCAB, vec![0], GrammarDefaults::default())?;
    Ok(Served {
        id: "instant".to_owned(),
        aliases: Vec::new(),
        engine: Engine::spawn(config.clone(), move || Ok(Letter { wait }))?,
        text,
        defaults: Defaults::default(),
        formats: Formats::default(),
        grammars: Arc::new(grammars),
        info: ModelInfo::default(),
        adapters: Arc::default(),
        pooling: Pooling::Mean,
        engine_config: config,
        created: 0,
        disaggregation: Disaggregation::Null,
        kv_events: None,
        lost: Arc::default(),
    })
}
