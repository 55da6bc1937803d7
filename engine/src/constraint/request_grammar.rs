//! The grammar of one request, as the engine thread sees it.

use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use hearth_forward::TokenMask;

use super::answers::{Answers, Progress, State};
use super::grammar::Constrain;
use super::wait_budget::WaitBudget;
use super::workers::{Job, TIME_LIMIT, Urgency, submit};

/// Which tokens may come next.
#[derive(Debug)]
pub(crate) enum NextTokens {
    /// One of these tokens.
    Mask(TokenMask),
    /// No token is to be sampled: text is forced, the output is complete, or it cannot
    /// continue.
    NoChoice,
}

/// The grammar of one request. It is evaluated on another thread: after [`Self::begin`] and
/// after each [`Self::advance`] there is one answer to [`Self::poll_progress`], and then one
/// to [`Self::poll_mask`].
pub(crate) struct RequestGrammar {
    jump_forward: bool,
    answers: Arc<Answers>,
    /// Whether the progress after the latest token has been returned.
    progress_is_known: bool,
    /// Answers that were peeked at, and have not been returned yet.
    peeked: Peeked,
    job: Arc<Job>,
    /// Whether the engine thread has waited for this job in vain.
    waited_in_vain: bool,
}

#[derive(Default)]
struct Peeked {
    progress: Option<Result<Progress, String>>,
    mask: Option<Result<TokenMask, String>>,
}

impl fmt::Debug for RequestGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestGrammar").finish_non_exhaustive()
    }
}

impl RequestGrammar {
    /// Begins an output of at most `limit` tokens. Its state is created on a worker, too.
    pub fn begin(constrain: &Constrain, limit: usize) -> Self {
        let answers = Arc::<Answers>::default();
        let grammar = Arc::clone(&constrain.grammar);
        let jump_forward = constrain.jump_forward;
        let job = submit(Urgency::Begin, {
            let answers = Arc::clone(&answers);
            move || answers.work(|| Ok(answers.start(&*grammar)), None, jump_forward, limit)
        });
        Self {
            jump_forward,
            answers,
            progress_is_known: false,
            peeked: Peeked::default(),
            job,
            waited_in_vain: false,
        }
    }

    /// Advances by `token`, which was sampled under the mask, and by the tokens that this
    /// forces. The output may have `left` more tokens after `token`. A token that another engine
    /// sampled may come before this engine has the mask, which is then not needed any more.
    pub fn advance(&mut self, token: u32, left: usize) {
        let jump_forward = self.jump_forward;
        self.progress_is_known = false;
        self.peeked = Peeked::default();
        self.waited_in_vain = false;
        let mut state = self.answers.state();
        let constraint = state.constraint.take();
        state.mask = None;
        let urgency = state.urgency();
        drop(state);
        let answers = Arc::clone(&self.answers);
        self.job = submit(urgency, move || {
            let make = || match constraint {
                Some(constraint) => Ok(constraint),
                None => answers.constraint_after_mask(TIME_LIMIT),
            };
            answers.work(make, Some(token), jump_forward, left);
        });
    }

    /// Whether [`poll_progress`](Self::poll_progress) has returned the progress after the
    /// latest token.
    pub fn progress_is_known(&self) -> bool {
        self.progress_is_known
    }

    /// What follows from the latest token, returned once after [`Self::begin`] and each
    /// [`Self::advance`]. An error says why the output cannot continue.
    pub fn poll_progress(&mut self, budget: &mut WaitBudget) -> Poll<Result<Progress, String>> {
        let answer = match self.peeked.progress.take() {
            Some(peeked) => Poll::Ready(peeked),
            None => self.poll(|state| state.progress.take(), budget),
        };
        self.progress_is_known |= answer.is_ready();
        answer
    }

    /// The tokens that may come next, returned once. An error says why there are none.
    pub fn poll_mask(&mut self, budget: &mut WaitBudget) -> Poll<Result<TokenMask, String>> {
        match self.peeked.mask.take() {
            Some(peeked) => Poll::Ready(peeked),
            None => self.poll(|state| state.mask.take(), budget),
        }
    }

    /// What may come next. Both answers can still be polled afterwards.
    pub fn peek_next(&mut self, budget: &mut WaitBudget) -> Poll<NextTokens> {
        if !self.progress_is_known && self.peeked.progress.is_none() {
            match self.poll(|state| state.progress.take(), budget) {
                Poll::Ready(progress) => self.peeked.progress = Some(progress),
                Poll::Pending => return Poll::Pending,
            }
        }
        let continues = |progress: &Progress| progress.forced.is_empty() && !progress.complete;
        if let Some(progress) = &self.peeked.progress
            && !progress.as_ref().is_ok_and(continues)
        {
            return Poll::Ready(NextTokens::NoChoice);
        }
        if self.peeked.mask.is_none() {
            match self.poll(|state| state.mask.take(), budget) {
                Poll::Ready(mask) => self.peeked.mask = Some(mask),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(match &self.peeked.mask {
            Some(Ok(mask)) => NextTokens::Mask(Arc::clone(mask)),
            _ => NextTokens::NoChoice,
        })
    }

    /// A token was sampled under the peeked mask, which is not needed any more.
    pub fn drop_mask(&mut self) {
        self.peeked.mask = None;
    }

    fn poll<T>(
        &mut self,
        take: impl Fn(&mut State) -> Option<Result<T, String>>,
        budget: &mut WaitBudget,
    ) -> Poll<Result<T, String>> {
        let mut answer = take(&mut self.answers.state());
        let left = budget.left(self.waited_in_vain);
        if answer.is_none() && !left.is_zero() {
            let start = Instant::now();
            answer = self.answers.wait(take, left);
            budget.spend(start.elapsed());
            self.waited_in_vain |= answer.is_none();
        }
        if let Some(answer) = answer {
            return Poll::Ready(answer);
        }
        if self.job.abandon_if_overdue() {
            self.answers.give_up();
            let limit = TIME_LIMIT.as_millis();
            return Poll::Ready(Err(format!(
                "the grammar took longer than {limit} ms to say what may come next"
            )));
        }
        Poll::Pending
    }
}

impl Drop for RequestGrammar {
    /// The worker's remaining answers are not needed.
    fn drop(&mut self) {
        self.answers.give_up();
    }
}
