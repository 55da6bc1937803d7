//! Where a request on the prefill server and the decode server that pulls it meet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::error::WireError;
use crate::message::PullRequest;

/// A decode server that waits for a room.
#[derive(Debug)]
pub struct Puller {
    pub(crate) stream: TcpStream,
    pub(crate) pull: PullRequest,
}

/// A room in which one side is present. A side that leaves before the other one comes takes its
/// entry along, so rooms do not pile up.
#[derive(Debug)]
enum Waiting {
    /// The request is here and waits for its peer. The number tells it from later requests.
    Offered(u64, oneshot::Sender<Puller>),
    /// The decode server is here. Its connection learns that a request has taken it when the
    /// sender is dropped.
    Asked {
        puller: Puller,
        _until_taken: oneshot::Sender<()>,
    },
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, Waiting>,
    offers: u64,
}

/// All rooms of a prefill server.
#[derive(Clone, Debug, Default)]
pub struct Rooms(Arc<Mutex<State>>);

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section is one change of the map, so it is whole after a panic, too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rooms in which one side waits for the other.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// The request with the number `room` is here. The receiver gets its peer.
    ///
    /// # Errors
    /// Another request has this room.
    pub(crate) fn offer(&self, room: u64) -> Result<Offered, WireError> {
        let (sender, peer) = oneshot::channel();
        let mut state = self.lock();
        state.offers += 1;
        let number = state.offers;
        match state.waiting.remove(&room) {
            Some(Waiting::Asked { puller, .. }) => {
                // The receiver is in this function.
                let _ = sender.send(puller);
            }
            Some(other) => {
                state.waiting.insert(room, other);
                return Err(WireError::RoomTaken(room));
            }
            None => {
                state.waiting.insert(room, Waiting::Offered(number, sender));
            }
        }
        drop(state);
        Ok(Offered {
            rooms: self.clone(),
            room,
            number,
            peer,
        })
    }

    /// A decode server asks for a room. The receiver, where there is one, is closed when a request
    /// has taken it; until then the caller may let it [leave](Self::leave).
    ///
    /// # Errors
    /// Another decode server asked for this room.
    pub(crate) fn ask(
        &self,
        puller: Puller,
    ) -> Result<Option<oneshot::Receiver<()>>, Box<(Puller, WireError)>> {
        let room = puller.pull.room;
        let mut state = self.lock();
        match state.waiting.remove(&room) {
            Some(Waiting::Offered(_, sender)) => {
                // A request that gave up meanwhile drops the stream, which closes it.
                let _ = sender.send(puller);
                Ok(None)
            }
            Some(other) => {
                state.waiting.insert(room, other);
                Err(Box::new((puller, WireError::RoomTaken(room))))
            }
            None => {
                let (sender, taken) = oneshot::channel();
                let asked = Waiting::Asked {
                    puller,
                    _until_taken: sender,
                };
                state.waiting.insert(room, asked);
                Ok(Some(taken))
            }
        }
    }

    /// Takes back the decode server that asked for `room`, if no request has taken it.
    pub(crate) fn leave(&self, room: u64) -> Option<Puller> {
        let mut state = self.lock();
        match state.waiting.remove(&room)? {
            Waiting::Asked { puller, .. } => Some(puller),
            other => {
                state.waiting.insert(room, other);
                None
            }
        }
    }
}

/// A request that waits for its peer.
#[derive(Debug)]
pub(crate) struct Offered {
    rooms: Rooms,
    room: u64,
    number: u64,
    pub peer: oneshot::Receiver<Puller>,
}

impl Drop for Offered {
    fn drop(&mut self) {
        let mut state = self.rooms.lock();
        let is_own = |waiting: &Waiting| matches!(waiting, Waiting::Offered(number, _) if *number == self.number);
        if state.waiting.get(&self.room).is_some_and(is_own) {
            state.waiting.remove(&self.room);
        }
    }
}
