//! How many of the drafts of one request are accepted.

/// The weight of one drafted token in the tracked share.
const WEIGHT: f32 = 0.15;

/// After its share has fallen so low that drafts do not pay, a request tries one token again
/// after this many output tokens, and then after twice as many, up to `LAST_PAUSE`.
const FIRST_PAUSE: usize = 32;
const LAST_PAUSE: usize = 512;

/// The share of drafted tokens that a request accepts, and the number of tokens that are worth
/// drafting.
#[derive(Clone, Debug)]
pub(crate) struct Acceptance {
    /// The expected probability that the next drafted token is accepted if those before it were.
    rate: f32,
    /// How many tokens to draft: half as many after a refusal, and twice as many after a draft
    /// that was accepted as a whole.
    depth: usize,
    most: usize,
    /// The output length at which a token is drafted again, however low the share is.
    retry_at: usize,
    pause: usize,
}

impl Acceptance {
    /// Begins with the share `rate`, for drafts of at most `most` tokens.
    pub fn new(rate: f32, most: usize) -> Self {
        Self {
            rate,
            depth: most,
            most,
            retry_at: 0,
            pause: FIRST_PAUSE,
        }
    }

    pub fn rate(&self) -> f32 {
        self.rate
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Records that the first `accepted` of `drafted` tokens were accepted.
    pub fn record(&mut self, drafted: usize, accepted: usize) {
        for _ in 0..accepted {
            self.rate += WEIGHT * (1.0 - self.rate);
        }
        if accepted < drafted {
            self.rate -= WEIGHT * self.rate;
            self.depth = (self.depth / 2).max(1);
        } else {
            self.depth = (self.depth * 2).min(self.most);
            self.pause = FIRST_PAUSE;
        }
    }

    /// The draft is not expected to pay after `output_len` tokens. Returns whether one token is
    /// drafted nevertheless, to see whether the text has become predictable.
    pub fn retries(&mut self, output_len: usize) -> bool {
        if self.retry_at == 0 {
            self.retry_at = output_len + self.pause;
        }
        let retries = output_len >= self.retry_at;
        if retries {
            self.pause = (self.pause * 2).min(LAST_PAUSE);
            self.retry_at = output_len + self.pause;
        }
        retries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_the_drafts_and_the_depth_halves_and_doubles() {
        let mut acceptance = Acceptance::new(0.5, 8);
        acceptance.record(8, 0);
        assert!(acceptance.rate() < 0.5 && acceptance.depth() == 4);
        acceptance.record(4, 2);
        assert_eq!(acceptance.depth(), 2);
        acceptance.record(2, 2);
        assert_eq!(acceptance.depth(), 4);
        for _ in 0..20 {
            acceptance.record(4, 4);
        }
        assert!(acceptance.rate() > 0.95 && acceptance.depth() == 8);
        for _ in 0..40 {
            acceptance.record(1, 0);
        }
        assert!(acceptance.rate() < 0.05 && acceptance.depth() == 1);
    }

    #[test]
    fn a_request_that_cannot_be_predicted_retries_ever_more_rarely() {
        let mut acceptance = Acceptance::new(0.1, 4);
        let retries: Vec<usize> = (0..4000).filter(|&len| acceptance.retries(len)).collect();
        assert_eq!(retries[..3], [32, 96, 224]);
        assert!(retries.len() < 15, "{retries:?}");
        acceptance.record(1, 1);
        let next = (4000..).find(|&len| acceptance.retries(len)).unwrap();
        assert!(next <= 4000 + LAST_PAUSE);
    }
}
