//! Requests whose grammars have not told yet what their outputs begin with.

use super::WaitingQueue;
use crate::active::{ActiveRequest, Outcome};
use crate::constraint::Grace;

impl WaitingQueue {
    pub fn has_beginners(&self) -> bool {
        !self.beginners.is_empty()
    }

    /// Lets those join whose grammars have answered by now; returns those that ended by
    /// the answer.
    pub fn begin_ready(&mut self, grace: &mut Grace) -> Vec<(ActiveRequest, Outcome)> {
        let mut ended = Vec::new();
        let heard = self.beginners.extract_if(.., |_, request| {
            request.hear(grace);
            !request.is_late()
        });
        for (id, mut request) in heard.collect::<Vec<_>>() {
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
