//! Where the engine's [`Grammar`] trait meets the grammars of `hearth-grammar`, and their
//! vocabulary the tokenizer of the model.
//!
//! **Architecture Invariant.** No other file connects the two.

mod after_channels;
mod after_reasoning;

use std::num::NonZero;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use std::time::Duration;

use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_forward::TokenMask;
use hearth_grammar::{
    CompilePool, Compiled, Compiler, GrammarError, Matcher, PoolFull, Spec, Ticket,
    VocabularySource,
};
pub use hearth_grammar::{Stats, Strictness, Whitespace};
use tokio::sync::oneshot;

use after_channels::{AfterChannels, ChannelMarks};
use after_reasoning::{AfterReasoning, Answer, AnswerGrammar, Marks};

use crate::exchange::Exchange;
use crate::reasoning::Begin;
use crate::served::TextCodec;

/// Most threads that compile. It is also at most half of the cores: the others are left to the
/// model and the event loop.
const MAX_COMPILE_THREADS: usize = 4;
/// With two, one client's heavy grammar does not hold up the grammars of all others.
const MIN_COMPILE_THREADS: usize = 2;
/// How long a grammar may take from the request until it is compiled.
const COMPILE_DEADLINE: Duration = Duration::from_secs(5);

/// The operator's choices for requests that leave these fields out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarDefaults {
    pub jump_forward: bool,
    pub whitespace: Whitespace,
    /// The treatment of words of a schema that have no meaning. A request cannot choose it.
    pub strictness: Strictness,
}

impl Default for GrammarDefaults {
    fn default() -> Self {
        Self {
            jump_forward: true,
            whitespace: Whitespace::default(),
            strictness: Strictness::default(),
        }
    }
}

/// A request's choices beside its grammar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrammarOptions {
    pub jump_forward: Option<bool>,
    /// True if the output is steered to its end before its tokens run out.
    pub complete: Option<bool>,
}

impl GrammarOptions {
    /// Only whether the output is steered to its end.
    pub fn completing(complete: Option<bool>) -> Self {
        Self {
            complete,
            ..Self::default()
        }
    }
}

/// The grammars of one model.
#[derive(Debug)]
pub struct Grammars {
    pool: CompilePool,
    pub defaults: GrammarDefaults,
    tokens: Arc<Tokens>,
    eos: Vec<u32>,
    /// Found in the vocabulary when the first request needs them.
    marks: OnceLock<Arc<Marks>>,
    channels: OnceLock<Option<Arc<ChannelMarks>>>,
}

/// A grammar that an output can follow.
#[derive(Debug)]
pub struct CompiledGrammar {
    compiled: Arc<Compiled>,
    /// True if it was in the cache.
    pub cached: bool,
    /// The words of its schemas that have no effect.
    pub ignored: Vec<String>,
}

/// Why a grammar was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error(transparent)]
    Refused(#[from] GrammarError),
    /// All threads compile the grammars of other requests, and too many wait already.
    #[error(transparent)]
    Busy(#[from] PoolFull),
    #[error("no thread was free to compile the grammar within {} s", COMPILE_DEADLINE.as_secs())]
    Waited,
    #[error("compiling the grammar took longer than {} s", COMPILE_DEADLINE.as_secs())]
    TooSlow,
}

impl Grammars {
    /// Starts to read the vocabulary in the background. `vocab_size` is the width of the logits.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        text: Arc<dyn TextCodec>,
        vocab_size: usize,
        eos: Vec<u32>,
        defaults: GrammarDefaults,
    ) -> std::io::Result<Self> {
        let source = Arc::new(Tokens { text, vocab_size });
        let tokens = Arc::clone(&source);
        let compiler = Compiler::new(source, eos.clone()).with_strictness(defaults.strictness);
        let compiler = Arc::new(compiler);
        let cores = available_parallelism().map_or(1, NonZero::get);
        let threads = (cores / 2).clamp(MIN_COMPILE_THREADS, MAX_COMPILE_THREADS);
        let pool = CompilePool::start(compiler, threads)?;
        Ok(Self {
            pool,
            defaults,
            tokens,
            eos,
            marks: OnceLock::new(),
            channels: OnceLock::new(),
        })
    }

    /// The grammar of `spec`. One that is not in the cache is compiled on the pool.
    ///
    /// # Errors
    /// `spec` is invalid, or it could not be compiled in time.
    pub async fn compile(&self, spec: Spec) -> Result<CompiledGrammar, CompileError> {
        if let Some(outcome) = self.pool.compiler().cached(&spec) {
            return Ok(ready(outcome?, true));
        }
        let (reply, outcome) = oneshot::channel();
        let party = Exchange::current().map_or_else(String::new, |exchange| exchange.party());
        // The request may be gone by then.
        let ticket = self
            .pool
            .submit(spec, &party, |outcome| drop(reply.send(outcome)))?;
        let asking = Asking(ticket);
        match tokio::time::timeout(COMPILE_DEADLINE, outcome).await {
            Ok(Ok(outcome)) => Ok(ready(outcome?, false)),
            _ if asking.0.has_started() => Err(CompileError::TooSlow),
            _ => Err(CompileError::Waited),
        }
    }

    /// A function that reads the counters of the grammars. It does not keep the model alive.
    pub fn stats(&self) -> impl Fn() -> Stats + Send + Sync + 'static {
        let compiler = self.pool.watch();
        move || compiler.upgrade().map(|c| c.stats()).unwrap_or_default()
    }

    /// A request's constraint by a grammar that [`Self::compile`] gave. With `begin`, it is applied
    /// only after the reasoning of an answer that begins so. `calls`: the grammar is one of calls.
    pub fn constrain(
        &self,
        grammar: CompiledGrammar,
        options: GrammarOptions,
        begin: Option<Begin>,
        calls: bool,
    ) -> Constrain {
        let grammar = Followed {
            compiled: grammar.compiled,
            complete: options.complete.unwrap_or(false),
        };
        let grammar: Arc<dyn Grammar> = match (begin, self.channels(begin)) {
            (None, _) => Arc::new(grammar),
            (Some(Begin::Channels(at)), Some(marks)) => Arc::new(AfterChannels {
                grammar,
                marks,
                at,
                calls,
            }),
            (Some(Begin::Channels(_)), None) => Arc::new(grammar),
            (Some(begin), _) => Arc::new(AfterReasoning {
                grammar,
                marks: self.marks(),
                begin,
            }),
        };
        Constrain {
            grammar,
            jump_forward: options.jump_forward.unwrap_or(self.defaults.jump_forward),
        }
    }

    /// The marks of channels, if the answer may have some.
    fn channels(&self, begin: Option<Begin>) -> Option<Arc<ChannelMarks>> {
        let Some(Begin::Channels(_)) = begin else {
            return None;
        };
        let marks = self.channels.get_or_init(|| {
            let Tokens { text, vocab_size } = &*self.tokens;
            ChannelMarks::new(&**text, *vocab_size, &self.eos).map(Arc::new)
        });
        marks.clone()
    }

    fn marks(&self) -> Arc<Marks> {
        let marks = self.marks.get_or_init(|| {
            let Tokens { text, vocab_size } = &*self.tokens;
            Arc::new(Marks::new(Arc::clone(text), *vocab_size, &self.eos))
        });
        Arc::clone(marks)
    }
}

/// A request that waits for its grammar. When it stops waiting, the compilation is cancelled and
/// its thread is free for others.
struct Asking(Arc<Ticket>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn ready(compiled: Arc<Compiled>, cached: bool) -> CompiledGrammar {
    CompiledGrammar {
        ignored: compiled.ignored().to_vec(),
        cached,
        compiled,
    }
}

/// A compiled grammar, and how outputs follow it.
#[derive(Debug)]
struct Followed {
    compiled: Arc<Compiled>,
    complete: bool,
}

impl Followed {
    fn output(&self) -> Output {
        Output(match self.complete {
            true => self.compiled.completing_matcher(),
            false => self.compiled.matcher(),
        })
    }
}

impl Grammar for Followed {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.output())
    }
}

impl AnswerGrammar for Followed {
    fn answer(&self) -> Box<dyn Answer> {
        Box::new(self.output())
    }
}

struct Output(Matcher);

impl Answer for Output {
    fn shortest(&mut self) -> Option<usize> {
        self.0.shortest()
    }
}

impl Constraint for Output {
    fn mask(&mut self) -> Result<TokenMask, String> {
        self.0.mask().map_err(|error| error.to_string())
    }

    fn mask_within(&mut self, left: usize) -> Result<TokenMask, String> {
        self.0.mask_within(left).map_err(|error| error.to_string())
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        self.0.consume(token).map_err(|error| error.to_string())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        let forced = self.0.forced_tokens(limit);
        self.0.count_forced(&forced);
        forced
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        let canceller = self.0.canceller();
        Box::new(move || canceller.cancel())
    }
}

/// A tokenizer's vocabulary, as wide as the logits.
struct Tokens {
    text: Arc<dyn TextCodec>,
    vocab_size: usize,
}

impl VocabularySource for Tokens {
    fn size(&self) -> usize {
        self.vocab_size
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        self.text.token_bytes(token)
    }

    fn is_special(&self, token: u32) -> bool {
        self.text.is_special(token)
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        self.text.encode(text, false).ok()
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}
