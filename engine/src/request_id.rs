//! The engine's own numbers for requests.

/// The number of a request in one engine, ascending in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestId(u64);

impl RequestId {
    pub const FIRST: Self = Self(0);

    pub fn number(self) -> u64 {
        self.0
    }

    /// The id of the request that arrives `n` requests after this one.
    pub fn after(self, n: u64) -> Self {
        Self(self.0 + n)
    }

    /// A number without any order, but the same in every run.
    pub fn shuffled(self) -> u64 {
        let mut mixed = (self.0 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 31
    }
}
