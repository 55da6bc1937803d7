//! The decode server's end of a room.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::bootstrap::BootstrapClient;
use crate::error::WireError;
use crate::handshake::Handshake;
use crate::identity::Identity;
use crate::message::{Message, Pages, PullRequest, Trust};
use crate::secret::{SharedSecret, Side};

/// Connects to prefill servers.
#[derive(Debug)]
pub struct KvClient {
    identity: Identity,
    secret: Option<SharedSecret>,
    patience: Duration,
    bootstrap: BootstrapClient,
}

impl KvClient {
    /// `patience` bounds every wait for a peer.
    ///
    /// # Errors
    /// There is no HTTP client, because TLS cannot be set up.
    pub fn new(
        identity: Identity,
        secret: Option<SharedSecret>,
        patience: Duration,
    ) -> Result<Self, WireError> {
        Ok(Self {
            identity,
            secret,
            patience,
            bootstrap: BootstrapClient::new(patience)?,
        })
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Asks the prefill server with the bootstrap server at `host:port` for a room.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses this one.
    pub async fn pull(
        &self,
        host: &str,
        port: u16,
        request: PullRequest,
    ) -> Result<Pulling, WireError> {
        let address = self.bootstrap.kv_port(host, port).await?;
        let connected = self.connect(&address).await;
        // A prefill server that was started again may have another KV port.
        let mut stream = connected.inspect_err(|_| self.bootstrap.forget(host, port))?;
        let pull = Message::Pull(request);
        pull.send(&mut stream, self.patience).await?;
        Ok(Pulling {
            stream,
            token_bytes: self.identity.token_bytes,
            next: request.from,
            tokens: request.tokens,
            patience: self.patience,
        })
    }

    async fn connect(&self, address: &str) -> Result<TcpStream, WireError> {
        let connecting = tokio::time::timeout(self.patience, TcpStream::connect(address)).await;
        let mut stream = connecting.map_err(|_| WireError::Silent(self.patience))??;
        stream.set_nodelay(true)?;
        let handshake = Handshake {
            side: Side::Decode,
            identity: &self.identity,
            secret: self.secret.as_ref(),
            patience: self.patience,
        };
        handshake.run(&mut stream).await?;
        Ok(stream)
    }
}

/// The next part of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Pages(Pages),
    /// The output, which comes last.
    Output(Vec<u8>),
}

/// A room whose prefill server sends. Dropping it tells that server to give up.
#[derive(Debug)]
pub struct Pulling {
    stream: TcpStream,
    token_bytes: usize,
    /// Position of the next token.
    next: usize,
    tokens: usize,
    patience: Duration,
}

impl Pulling {
    /// The next part. Pages come in the order of their positions.
    ///
    /// # Errors
    /// The prefill server gives up, is gone or is silent for too long, or sends something that
    /// does not fit the request.
    pub async fn next(&mut self) -> Result<Received, WireError> {
        loop {
            let message = Message::receive(&mut self.stream, Trust::Proven, self.patience).await?;
            return match message {
                Message::Alive => continue,
                Message::Pages(pages) => self.checked(pages).map(Received::Pages),
                Message::Output(output) => Ok(Received::Output(output)),
                other => Err(other.unexpected()),
            };
        }
    }

    /// Tells the prefill server that everything was taken in.
    ///
    /// # Errors
    /// The prefill server is gone, which does not matter any more.
    pub async fn done(mut self) -> Result<(), WireError> {
        Message::Done.send(&mut self.stream, self.patience).await
    }

    fn checked(&mut self, pages: Pages) -> Result<Pages, WireError> {
        let left = self.tokens - self.next;
        if pages.from != self.next || pages.tokens == 0 || pages.tokens > left {
            return Err(WireError::malformed(format!(
                "pages of {} tokens from position {}, with {} tokens missing from position {}",
                pages.tokens, pages.from, left, self.next
            )));
        }
        let (given, wanted) = (pages.bytes.len(), pages.tokens * self.token_bytes);
        if given != wanted {
            return Err(WireError::malformed(format!(
                "pages of {given} bytes, not {wanted}"
            )));
        }
        self.next += pages.tokens;
        Ok(pages)
    }
}
