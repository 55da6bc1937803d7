//! Prepares JSON Schemas for llguidance: checks their bounds, gives them the meaning of their
//! draft, and rewrites what llguidance does not know. What cannot be enforced is refused with its
//! place.
//!
//! ```text
//! a schema of any draft ─▶ bounds ─▶ modern (2020-12, local references) ─▶ exact (positive words)
//! ```

mod bounds;
mod controls;
mod cost;
mod draft;
mod exact;
mod formats;
mod keywords;
mod locate;
mod modern;
mod parts;
mod preparing;
mod refusal;
mod resources;
mod shortest;

pub(crate) use self::locate::located;
pub(crate) use self::preparing::Preparing;

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod rewriting_tests;
#[cfg(test)]
mod tests;
