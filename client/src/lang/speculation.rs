//! API-speculative execution, for APIs without a program's features.
//!
//! A call with stop strings runs on past them. The rest of its output is kept, and serves the next
//! generations as long as it agrees with the texts of the program between them. The paper is arXiv
//! 2312.07104, section 4.
//!
//! **Architecture Invariant.** A generation gets text of an earlier call only if a call of its own
//! would have given the same: the same sampling options, the stop found within the bound on tokens,
//! and no option whose effect depends on where an output begins.

use crate::lang::backend::{Backend, Call, Completion, Finish, Prompt, Sink};
use crate::lang::error::Error;
use crate::lang::sampling::Sampling;
use crate::message::Role;

/// Calls that are made for a message of a chat that does not follow the form of the program.
const ATTEMPTS: usize = 3;

/// The speculative output of one state.
#[derive(Clone, Debug, Default)]
pub struct Speculation {
    /// The tokens of a speculative call; `None`: calls never run past a stop.
    tokens: Option<u32>,
    rest: Option<Rest>,
}

/// Output of a call that no statement has taken yet.
#[derive(Clone, Debug)]
struct Rest {
    text: String,
    /// Where the tokens of `text` end, in bytes of it.
    token_ends: Option<Vec<usize>>,
    /// The tokens of the whole call.
    call_tokens: u64,
    /// True if the model ended the text; otherwise the bound on tokens did.
    ended: bool,
    sampling: Sampling,
}

impl Speculation {
    pub fn new(tokens: Option<u32>) -> Self {
        Self { tokens, rest: None }
    }

    /// The speculation of a fork. Random output is not given to several forks, because they would
    /// not be independent of each other.
    pub fn fork(&self) -> Self {
        let rest = self.rest.clone();
        Self {
            tokens: self.tokens,
            rest: rest.filter(|rest| rest.sampling.temperature == Some(0.0)),
        }
    }

    /// The program added `text`: the output goes on after it, or is dropped if it is different.
    pub fn push(&mut self, text: &str) {
        match &mut self.rest {
            Some(rest) if rest.text.starts_with(text) => rest.skip(text.len()),
            _ => self.rest = None,
        }
    }

    /// The program began or ended a message, which no output contains.
    pub fn clear(&mut self) {
        self.rest = None;
    }

    /// Generates, from the output of an earlier call if it fits. Returns also whether it did.
    ///
    /// # Errors
    /// The errors of the back end, and [`Error::FormNotFollowed`].
    pub async fn generate(
        &mut self,
        backend: &dyn Backend,
        call: Call,
        sink: Sink<'_>,
    ) -> Result<(Completion, bool), Error> {
        let begun = match &call.prompt {
            Prompt::Chat(messages) if !backend.continues_messages() => messages
                .last()
                .filter(|last| last.role == Role::Assistant)
                .map(|last| last.content.clone()),
            _ => None,
        };
        let Some(tokens) = self.tokens.filter(|_| can_run_on(&call)) else {
            self.rest = None;
            return match begun {
                Some(_) => Err(backend.lacks("text before a generation in an assistant's message")),
                None => Ok((backend.generate(&call, sink).await?, false)),
            };
        };
        if let Some(taken) = self.take(&call.sampling) {
            return Ok((taken, true));
        }
        match begun {
            Some(begun) => self.rewrite(backend, call, tokens, &begun).await,
            None if call.sampling.stop.is_empty() => {
                self.rest = None;
                Ok((backend.generate(&call, sink).await?, false))
            }
            None => self.run_on(backend, call, tokens, sink).await,
        }
    }

    /// Calls without the stop strings, and takes the text before the first one.
    async fn run_on(
        &mut self,
        backend: &dyn Backend,
        call: Call,
        tokens: u32,
        sink: Sink<'_>,
    ) -> Result<(Completion, bool), Error> {
        let limit = call.sampling.limit();
        let long = running_on(&call, tokens);
        let whole = backend.generate(&long, &mut |_| {}).await?;
        let usage = whole.usage;
        // With the same bound, the output without any stop is the one that a call of its own has.
        let is_bound = whole.finish == Finish::Length && limit >= tokens;
        if is_bound && first_stop(&whole.text, &call.sampling.stop).is_none() {
            self.rest = None;
            return Ok((whole, false));
        }
        self.rest = Some(Rest::new(whole, &call.sampling));
        if let Some(taken) = self.take(&call.sampling) {
            return Ok((Completion { usage, ..taken }, false));
        }
        self.rest = None;
        let mut own = backend.generate(&call, sink).await?;
        own.usage += usage;
        Ok((own, false))
    }

    /// Has a chat API write the whole message again, which must begin as the program has begun it.
    async fn rewrite(
        &mut self,
        backend: &dyn Backend,
        mut call: Call,
        tokens: u32,
        begun: &str,
    ) -> Result<(Completion, bool), Error> {
        if let Prompt::Chat(messages) = &mut call.prompt {
            messages.pop();
        }
        let long = running_on(&call, tokens);
        let mut usage = Default::default();
        for _ in 0..ATTEMPTS {
            let whole = backend.generate(&long, &mut |_| {}).await?;
            usage += whole.usage;
            self.rest = Some(Rest::new(whole, &call.sampling));
            self.push(begun);
            if let Some(taken) = self.take(&call.sampling) {
                return Ok((Completion { usage, ..taken }, false));
            }
        }
        self.rest = None;
        Err(Error::FormNotFollowed { attempts: ATTEMPTS })
    }

    /// The output of a generation out of the rest, if a call would give the same.
    fn take(&mut self, sampling: &Sampling) -> Option<Completion> {
        let rest = self.rest.as_mut()?;
        if !same_distribution(&rest.sampling, sampling) {
            return None;
        }
        let (end, stop_end) = match first_stop(&rest.text, &sampling.stop) {
            Some(found) => found,
            None if rest.ended => (rest.text.len(), rest.text.len()),
            None => return None,
        };
        // A call of its own is cut off before its stop is complete if that is beyond the bound.
        if rest.most_tokens(stop_end) > u64::from(sampling.limit()) {
            return None;
        }
        let text = rest.text[..end].to_owned();
        rest.skip(end);
        Some(Completion {
            text,
            ..Completion::default()
        })
    }
}

impl Rest {
    fn new(whole: Completion, sampling: &Sampling) -> Self {
        let mut end = 0;
        let ends = |tokens: Vec<String>| {
            let ends = tokens.iter().map(|token| {
                end += token.len();
                end
            });
            ends.collect::<Vec<usize>>()
        };
        let length = whole.text.len();
        let token_ends = whole.tokens.map(ends);
        Self {
            text: whole.text,
            token_ends: token_ends.filter(|ends| ends.last().copied().unwrap_or(0) == length),
            call_tokens: whole.usage.completion_tokens,
            ended: whole.finish == Finish::Stop,
            sampling: sampling.clone(),
        }
    }

    /// Takes `bytes` off the beginning.
    fn skip(&mut self, bytes: usize) {
        self.text.drain(..bytes);
        if let Some(ends) = &mut self.token_ends {
            ends.retain(|&end| end > bytes);
            ends.iter_mut().for_each(|end| *end -= bytes);
        }
    }

    /// An upper bound on the tokens of the first `bytes` bytes. It is exact where the tokens are
    /// known. Otherwise no token is shorter than a byte, and there are no more than the call has.
    fn most_tokens(&self, bytes: usize) -> u64 {
        if let Some(ends) = &self.token_ends {
            let before = ends.iter().filter(|&&end| end < bytes).count();
            return before as u64 + u64::from(bytes > 0);
        }
        match self.call_tokens {
            0 => bytes as u64,
            tokens => tokens.min(bytes as u64),
        }
    }
}

/// The call that runs past its stops.
fn running_on(call: &Call, tokens: u32) -> Call {
    let mut long = call.clone();
    long.sampling.max_tokens = Some(call.sampling.limit().max(tokens));
    long.sampling.stop.clear();
    long.stream = false;
    long.tokens = true;
    long
}

/// True if the output of `call` can be a part of a longer output, and the other way round.
fn can_run_on(call: &Call) -> bool {
    let plain = Sampling {
        max_tokens: call.sampling.max_tokens,
        stop: call.sampling.stop.clone(),
        temperature: call.sampling.temperature,
        top_p: call.sampling.top_p,
        top_k: call.sampling.top_k,
        min_p: call.sampling.min_p,
        // A seed has an effect on random output alone, where it depends on the output's beginning.
        seed: call
            .sampling
            .seed
            .filter(|_| call.sampling.temperature == Some(0.0)),
        ..Sampling::default()
    };
    let one = call.n == 1 && call.logprobs.is_none();
    one && call.format == Default::default() && plain == call.sampling
}

fn same_distribution(one: &Sampling, other: &Sampling) -> bool {
    let facts = |s: &Sampling| (s.temperature, s.top_p, s.top_k, s.min_p);
    facts(one) == facts(other)
}

/// Where the first stop begins, and where it ends. A model's output ends as soon as a stop is
/// complete, so that is the one that ends first.
fn first_stop(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    let found = stops.iter().filter_map(|stop| {
        let at = text.find(stop.as_str())?;
        Some((at, at + stop.len()))
    });
    found.min_by_key(|&(at, end)| (end, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::backend::Usage;

    fn rest(text: &str, tokens: Option<&[&str]>, call_tokens: u64) -> Rest {
        let tokens = tokens.map(|tokens| tokens.iter().map(|&t| t.to_owned()).collect());
        let usage = Usage {
            completion_tokens: call_tokens,
            ..Usage::default()
        };
        let whole = Completion {
            text: text.to_owned(),
            finish: Finish::Length,
            usage,
            tokens,
            ..Completion::default()
        };
        Rest::new(whole, &Sampling::default())
    }

    #[test]
    fn tokens_are_counted_and_not_characters() {
        let mut known = rest(
            "Harry Potter\nage",
            Some(&["Harry", " Potter", "\n", "age"]),
            4,
        );
        assert_eq!(known.most_tokens("Harry Potter\n".len()), 3);
        known.skip("Harry Po".len());
        // The rest of the token that was cut counts as one.
        assert_eq!(known.most_tokens("tter\n".len()), 2);
        assert_eq!(rest("Harry Potter\nage", None, 4).most_tokens(13), 4);
        assert_eq!(rest("Harry Potter\nage", None, 40).most_tokens(3), 3);
        assert_eq!(rest("Harry Potter\nage", None, 0).most_tokens(13), 13);
    }

    #[test]
    fn the_stop_that_is_complete_first_ends_the_text() {
        let stops = ["bcd".to_owned(), "c".to_owned()];
        assert_eq!(first_stop("abcd", &stops), Some((2, 3)));
        assert_eq!(first_stop("xyz", &stops), None);
    }

    #[test]
    fn text_that_differs_drops_the_rest() {
        let mut speculation = Speculation::new(Some(8));
        speculation.rest = Some(rest("a\nb\n", None, 4));
        speculation.push("a\n");
        assert_eq!(
            speculation.rest.as_ref().map(|r| r.text.as_str()),
            Some("b\n")
        );
        speculation.push("c");
        assert!(speculation.rest.is_none());
    }

    #[test]
    fn forks_share_only_output_that_is_not_random() {
        let mut speculation = Speculation::new(Some(8));
        speculation.rest = Some(rest("a", None, 1));
        assert!(speculation.fork().rest.is_none());
        speculation.rest.as_mut().unwrap().sampling.temperature = Some(0.0);
        assert!(speculation.fork().rest.is_some());
    }
}
