//! The parts of a pattern.

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// One character of these ranges of code points. `text` is a spelling of it in the dialect of
    /// Rust's `regex` crate.
    Class {
        text: String,
        ranges: Ranges,
    },
    Concat(Vec<Part>),
    Either(Vec<Part>),
    Repeat {
        part: Box<Part>,
        min: u32,
        max: Option<u32>,
    },
    /// The beginning and the end of the text.
    Start,
    End,
    /// Look-ahead, or look-behind: the text after or before here matches, or does not match.
    Look {
        ahead: bool,
        negative: bool,
        part: Box<Part>,
    },
}

/// Ascending ranges of code points, which include both ends and do not touch.
pub(crate) type Ranges = Vec<(u32, u32)>;
