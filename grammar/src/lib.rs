//! Constrained decoding: token masks and forced text.
