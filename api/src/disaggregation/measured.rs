//! The measurements of a transfer.

use std::time::Instant;

use hearth_otel::KvTransfer;

/// A transfer that runs, or that has ended and is not reported yet.
#[derive(Debug)]
pub(super) struct Measured {
    transfer: KvTransfer,
    token_bytes: usize,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Running,
    Ended,
    Reported,
}

impl Measured {
    /// A transfer that could begin now.
    pub fn new(sends: bool, token_bytes: usize) -> Self {
        let now = Instant::now();
        Self {
            transfer: KvTransfer {
                sends,
                asked: now,
                met: None,
                began: None,
                ended: now,
                tokens: 0,
                bytes: 0,
                error: None,
            },
            token_bytes,
            state: State::Running,
        }
    }

    /// The other server is there.
    pub fn met(&mut self) {
        self.transfer.met = Some(Instant::now());
    }

    /// Keys and values begin to move, if they did not before.
    pub fn began(&mut self) {
        self.transfer.began.get_or_insert_with(Instant::now);
    }

    /// The keys and values of `tokens` more tokens are there.
    pub fn moved(&mut self, tokens: usize) {
        self.transfer.tokens += tokens;
        self.transfer.bytes += (tokens * self.token_bytes) as u64;
    }

    /// The first end counts.
    pub fn ended(&mut self, error: Option<String>) {
        if self.state == State::Running {
            self.transfer.ended = Instant::now();
            self.transfer.error = error;
            self.state = State::Ended;
        }
    }

    /// The transfer, once, after it has ended.
    pub fn report(&mut self) -> Option<KvTransfer> {
        (self.state == State::Ended).then(|| {
            self.state = State::Reported;
            self.transfer.clone()
        })
    }
}
