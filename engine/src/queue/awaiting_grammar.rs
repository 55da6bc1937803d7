//! Requests whose grammars have not answered yet what their outputs begin with.

use super::WaitingQueue;
use crate::active::{ActiveRequest, Outcome};
use crate::constraint::WaitBudget;

impl WaitingQueue {
    pub fn awaits_grammars(&self) -> bool {
        !self.awaiting_grammar.is_empty()
    }

    /// Lets requests join the others if their grammars have answered. Returns the requests
    /// that ended by the answer.
    pub fn poll_grammars(&mut self, budget: &mut WaitBudget) -> Vec<(ActiveRequest, Outcome)> {
        let mut ended = Vec::new();
        let answered = self.awaiting_grammar.extract_if(.., |_, request| {
            request.poll_grammar(budget);
            !request.is_late()
        });
        for (id, mut request) in answered.collect::<Vec<_>>() {
            match request.outcome.take() {
                Some(outcome) => {
                    self.forget_name(&request, id);
                    ended.push((request, outcome));
                }
                None => self.join(request),
            }
        }
        ended
    }
}
