//! A request in the engine, as its caller sees it.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::inbox::{Inbox, Withdrawal};
use crate::request::Event;
use crate::request_id::RequestId;
use crate::transfer::TransferId;

/// A request in the engine, as a stream of its events.
///
/// Dropping it cancels the request: its slots are free within one step.
///
/// Events that are not read wait in the stream, whose length has no bound of its own: there
/// are at most `max_tokens` and three of them. The event of a token takes some 50 bytes, and
/// 8 more for each alternative that was asked for.
#[derive(Debug)]
pub struct Generation {
    id: RequestId,
    events: UnboundedReceiver<Event>,
    inbox: Arc<Inbox>,
    ended: bool,
}

impl Generation {
    pub(crate) fn new(id: RequestId, events: UnboundedReceiver<Event>, inbox: Arc<Inbox>) -> Self {
        Self {
            id,
            events,
            inbox,
            ended: false,
        }
    }

    /// A number that no other request of the engine has.
    pub fn id(&self) -> u64 {
        self.id.number()
    }

    /// By which the engine finds the request's KV; see [`Transfer`](crate::Transfer).
    pub fn transfer_id(&self) -> TransferId {
        TransferId(self.id)
    }

    /// The next event; `None` after `Finished` or `Failed`. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.received(event))
    }

    /// [`next`](Self::next) for threads without a runtime; it panics on a runtime's thread.
    pub fn next_blocking(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.received(event))
    }

    /// Ends the request early because its consumer has all that it needs (a stop string
    /// matched). Unlike a drop, this is counted as finished, not as cancelled.
    pub fn stop(mut self) {
        self.withdraw(Withdrawal::Satisfied);
    }

    fn received(&mut self, event: Option<Event>) -> Event {
        // The engine ends every stream with an event, unless its thread died.
        let event = event.unwrap_or_else(|| Event::Failed("the engine stopped".to_owned()));
        self.ended = matches!(
            event,
            Event::Finished(..) | Event::Failed(_) | Event::Refused(_)
        );
        event
    }

    fn withdraw(&mut self, why: Withdrawal) {
        if !self.ended {
            self.ended = true;
            self.inbox.withdraw(self.id, why);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.withdraw(Withdrawal::Cancelled);
    }
}
