//! `uniqueItems`, beside the grammar: a token that would complete an item which is in the array
//! already is taken out of the mask, and so is one after which only such items could follow.
//!
//! The rules say which arrays of an output must have different items, the tracker follows the
//! output's JSON along them, and the matcher asks it about the tokens of each mask.

mod filter;
mod rules;
mod tracker;

pub(crate) use self::filter::filtered;
pub(crate) use self::rules::Rules;
pub(crate) use self::tracker::Tracker;
