//! The KV port of a prefill server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::error::WireError;
use crate::handshake::Handshake;
use crate::identity::Identity;
use crate::message::{Message, Trust};
use crate::offer::Offer;
use crate::rooms::{Puller, Rooms};
use crate::secret::{SharedSecret, Side};

/// Connections that have not asked for a room yet. More are closed at once, so that strangers
/// cannot take all file descriptors.
const MOST_GREETING: usize = 256;
/// The pause after an `accept` that failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The KV port was not opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "without a secret (--disaggregation-secret) the KV port listens on loopback addresses only, not on {0}: keys and values are prompts"
    )]
    SecretWanted(SocketAddr),
    // The reason is the next error in the chain.
    #[error("cannot listen on {address} for KV transfers")]
    Io {
        address: SocketAddr,
        source: io::Error,
    },
}

/// A KV port that listens, and the rooms behind it.
#[derive(Clone, Debug)]
pub struct KvListener {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    rooms: Rooms,
    identity: Identity,
    secret: Option<SharedSecret>,
    patience: Duration,
    address: SocketAddr,
}

impl KvListener {
    /// Opens the port. Connections are served by a task of the current runtime, for as long as it
    /// runs. `patience` bounds every wait for a peer.
    ///
    /// # Errors
    /// The address is in use, or is not on loopback although there is no secret.
    pub async fn bind(
        address: SocketAddr,
        identity: Identity,
        secret: Option<SharedSecret>,
        patience: Duration,
    ) -> Result<Self, ListenError> {
        if secret.is_none() && !address.ip().is_loopback() {
            return Err(ListenError::SecretWanted(address));
        }
        let failed = |source| ListenError::Io { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            rooms: Rooms::default(),
            identity,
            secret,
            patience,
            address,
        });
        tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    pub fn rooms(&self) -> &Rooms {
        &self.shared.rooms
    }

    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    pub fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// A request with this room is here.
    ///
    /// # Errors
    /// Another request has the same room.
    pub fn offer(&self, room: u64) -> Result<Offer, WireError> {
        let offered = self.shared.rooms.offer(room)?;
        Ok(Offer::new(offered, self.shared.patience))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let greeting = Arc::new(Semaphore::new(MOST_GREETING));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no KV connection was accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&greeting).try_acquire_owned() else {
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Err(error) = greet(stream, &shared).await {
                tracing::warn!(%peer, %error, "refused a KV connection");
            }
            drop(permit);
        });
    }
}

/// Greets a peer, and brings it to the room that it asks for.
async fn greet(mut stream: TcpStream, shared: &Shared) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    let handshake = Handshake {
        side: Side::Prefill,
        identity: &shared.identity,
        secret: shared.secret.as_ref(),
        patience: shared.patience,
    };
    handshake.run(&mut stream).await?;
    let pull = match Message::receive(&mut stream, Trust::Proven, shared.patience).await? {
        Message::Pull(pull) => pull,
        other => return Err(other.unexpected()),
    };
    let room = pull.room;
    let (puller, error) = match shared.rooms.ask(Puller { stream, pull }) {
        Ok(None) => return Ok(()),
        Ok(Some(taken)) => match tokio::time::timeout(shared.patience, taken).await {
            Ok(_) => return Ok(()),
            Err(_) => match shared.rooms.leave(room) {
                None => return Ok(()),
                Some(puller) => (puller, WireError::Silent(shared.patience)),
            },
        },
        Err(refused) => *refused,
    };
    let mut stream = puller.stream;
    let reason = match error {
        WireError::Silent(patience) => format!(
            "no request with room {room} came within {} s",
            patience.as_secs_f32()
        ),
        error => error.to_string(),
    };
    Message::Fail(reason)
        .send(&mut stream, shared.patience)
        .await
}
