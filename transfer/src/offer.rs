//! The prefill server's end of a room.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::error::WireError;
use crate::message::{Message, Pages, PullRequest, Trust};
use crate::rooms::{Offered, Puller};

/// A request whose peer has not come yet. Dropping it empties the room.
#[derive(Debug)]
pub struct Offer {
    offered: Offered,
    patience: Duration,
}

impl Offer {
    pub(crate) fn new(offered: Offered, patience: Duration) -> Self {
        Self { offered, patience }
    }

    /// Waits for the decode server. Cancel-safe. It may wait without a bound: the caller has one.
    ///
    /// # Errors
    /// Never, in a process that is not shutting down.
    pub async fn peer(&mut self) -> Result<Sending, WireError> {
        let Puller { stream, pull } = (&mut self.offered.peer)
            .await
            .map_err(|_| WireError::malformed("the room was closed"))?;
        Ok(Sending {
            stream,
            pull,
            patience: self.patience,
        })
    }
}

/// A connection on which a decode server waits for keys and values. Dropping it closes the
/// connection, which the decode server takes for a failure.
#[derive(Debug)]
pub struct Sending {
    stream: TcpStream,
    pull: PullRequest,
    patience: Duration,
}

impl Sending {
    pub fn request(&self) -> PullRequest {
        self.pull
    }

    /// Sends keys and values. It takes as long as the peer needs to read them.
    ///
    /// # Errors
    /// The peer is gone, or takes nothing for too long.
    pub async fn pages(&mut self, pages: Pages) -> Result<(), WireError> {
        self.send(&Message::Pages(pages)).await
    }

    /// Lets the peer know that there is nothing to send yet.
    ///
    /// # Errors
    /// The peer is gone.
    pub async fn alive(&mut self) -> Result<(), WireError> {
        self.send(&Message::Alive).await
    }

    /// Sends the output, and waits until the peer has taken in everything.
    ///
    /// # Errors
    /// The peer is gone or gives up, or does not answer in time.
    pub async fn output(mut self, output: Vec<u8>) -> Result<(), WireError> {
        self.send(&Message::Output(output)).await?;
        match self.receive().await? {
            Message::Done => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// Tells the peer that nothing more comes.
    pub async fn fail(mut self, reason: String) {
        // The peer may be gone.
        let _ = self.send(&Message::Fail(reason)).await;
    }

    /// Resolves when the peer gives up or is gone, with the reason. Before the output a peer sends
    /// nothing else. Cancel-safe, because it reads at most one byte, which ends the room.
    pub async fn gone(&self) -> WireError {
        let mut byte = [0; 1];
        loop {
            if let Err(error) = self.stream.readable().await {
                return error.into();
            }
            match self.stream.try_read(&mut byte) {
                Ok(0) => {
                    let closed = std::io::ErrorKind::ConnectionAborted;
                    return std::io::Error::from(closed).into();
                }
                Ok(_) => return WireError::Refused("it gave up".to_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return error.into(),
            }
        }
    }

    async fn send(&mut self, message: &Message) -> Result<(), WireError> {
        message.send(&mut self.stream, self.patience).await
    }

    async fn receive(&mut self) -> Result<Message, WireError> {
        Message::receive(&mut self.stream, Trust::Proven, self.patience).await
    }
}
