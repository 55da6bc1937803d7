//! A back end of a few lines, whose output depends on the text before it alone.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hearth_client::lang::backend::{
    Backend, Call, Completion, Finish, Prompt, Scores, Sink, Usage,
};
use hearth_client::lang::{ChoiceLogprobs, Error};

#[derive(Debug, Default)]
pub struct Counts {
    pub calls: AtomicUsize,
    pub prompt_tokens: AtomicU64,
    pub running: AtomicUsize,
    pub most_running: AtomicUsize,
    pub cancelled: AtomicUsize,
    /// The prompts that were computed into the cache.
    pub cached: Mutex<Vec<String>>,
}

/// The model knows a script by heart: where the text after the last `#` is a beginning of it, the
/// output goes on with it. Everywhere else the next token is taken by a hash of the text.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    pub script: String,
    /// True if it says what the tokens of an output are.
    pub tells_tokens: bool,
    pub is_chat: bool,
    /// True if each token is one character, so that a text can be cut anywhere between tokens.
    pub single: bool,
    pub step: Duration,
    /// Calls that are answered with 503 first.
    pub refusals: Arc<AtomicUsize>,
    pub counts: Arc<Counts>,
}

pub fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Fake {
    pub fn with_script(script: &str) -> Self {
        Self {
            script: script.to_owned(),
            ..Self::default()
        }
    }

    /// The next token; `None` ends the text.
    fn next(&self, text: &str, seed: Option<i64>) -> Option<String> {
        let (_, said) = text.rsplit_once('#').unwrap_or(("", text));
        if !self.script.is_empty()
            && let Some(rest) = self.script.strip_prefix(said)
        {
            let mut end = rest.len().min(1);
            let ends_here = |end: usize| hash((said.len() + end, "boundary")).is_multiple_of(3);
            while end < rest.len() && !ends_here(end) {
                end += 1;
            }
            return (!rest.is_empty()).then(|| rest[..end].to_owned());
        }
        const TOKENS: [&str; 7] = ["x", "yy ", "\n", ": ", "zzz", "k", "q1"];
        match hash((text, seed)) % 9 {
            at @ 1.. if self.single => Some("xy\n: zk"[at as usize % 7..][..1].to_owned()),
            0 => None,
            at => Some(TOKENS[at as usize % TOKENS.len()].to_owned()),
        }
    }
}

pub fn text_of(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Chat(messages) => messages
            .iter()
            .map(|m| format!("<{}>#{}", m.role.name(), m.content))
            .collect(),
    }
}

/// Counts a call while it runs, and whether it was dropped.
struct Running<'a>(&'a Counts, bool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
        if !self.1 {
            self.0.cancelled.fetch_add(1, Relaxed);
        }
    }
}

#[async_trait]
impl Backend for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn continues_messages(&self) -> bool {
        !self.is_chat
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let running = self.counts.running.fetch_add(1, Relaxed) + 1;
        self.counts.most_running.fetch_max(running, Relaxed);
        let mut guard = Running(&self.counts, false);
        tokio::time::sleep(self.step).await;
        let left = self.refusals.load(Relaxed);
        if left > 0 {
            self.refusals.store(left - 1, Relaxed);
            guard.1 = true;
            let message = "no room".to_owned();
            return Err(Error::Refused {
                status: 503,
                message,
            });
        }
        let mut before = text_of(&call.prompt);
        if let Prompt::Chat(messages) = &call.prompt
            && messages.last().is_none_or(|m| m.role.name() != "assistant")
        {
            before.push_str("<assistant>#");
        }
        if before.ends_with("fail here") {
            guard.1 = true;
            let message = "it was told to".to_owned();
            return Err(Error::Refused {
                status: 400,
                message,
            });
        }
        // Without a temperature the output is greedy, and a seed changes nothing.
        let seed = call
            .sampling
            .seed
            .filter(|_| call.sampling.temperature != Some(0.0));
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let mut finish = Finish::Length;
        while tokens.len() < call.sampling.limit() as usize {
            let Some(token) = self.next(&format!("{before}{text}"), seed) else {
                finish = Finish::Stop;
                break;
            };
            text.push_str(&token);
            tokens.push(token.clone());
            let stops = call
                .sampling
                .stop
                .iter()
                .filter_map(|stop| text.find(stop.as_str()));
            if let Some(at) = stops.min() {
                text.truncate(at);
                finish = Finish::Stop;
                break;
            }
            if call.stream && call.sampling.stop.is_empty() {
                sink(&token);
                tokio::task::yield_now().await;
            }
        }
        let prompt_tokens = before.len() as u64 / 2;
        self.counts.calls.fetch_add(1, Relaxed);
        self.counts.prompt_tokens.fetch_add(prompt_tokens, Relaxed);
        guard.1 = true;
        Ok(Completion {
            text,
            finish,
            usage: Usage {
                prompt_tokens,
                cached_tokens: 0,
                completion_tokens: tokens.len() as u64,
            },
            tokens: (call.tokens && self.tells_tokens).then_some(tokens),
            ..Completion::default()
        })
    }

    async fn score(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, Error> {
        self.counts.calls.fetch_add(1, Relaxed);
        let before = text_of(prompt);
        let logprob = |text: &str| -((hash(text) % 1000) as f64) / 100.0;
        let each = choices.iter().map(|choice| {
            let ends = choice.char_indices().map(|(at, c)| at + c.len_utf8());
            let ends: Vec<usize> = ends.collect();
            let after = ends
                .iter()
                .map(|&end| logprob(&format!("{before}{}", &choice[..end])));
            let alone = ends.iter().map(|&end| logprob(&choice[..end]));
            ChoiceLogprobs {
                logprobs: after.collect(),
                unconditional: alone.filter(|_| unconditional).collect(),
            }
        });
        Ok(Scores {
            choices: each.collect(),
            usage: Usage::default(),
        })
    }

    async fn cache(&self, prompt: &Prompt) -> Result<(), Error> {
        self.counts.cached.lock().unwrap().push(text_of(prompt));
        Ok(())
    }
}
