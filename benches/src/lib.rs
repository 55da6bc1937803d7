//! Three kinds of measurements: a closed-loop load generator for any server with OpenAI's
//! `/v1/completions`, so that other servers are measured with the same tool; and measurements
//! without a model ([`sim`]) of the scheduler and the prefix cache alone, and of clusters; and coverage
//! of structured output ([`schemas`]); and programs of the front-end language ([`programs`]).
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the flags of `hearth-load` |
//! | [`programs`] | programs on several back ends: hit rate beside the best possible, and time (`hearth-programs`) |
//! | [`prompts`] | prompts from a seed |
//! | [`load`] | sends the requests and measures times |
//! | [`report`] | rates and percentiles of a run |
//! | [`schemas`] | which JSON Schemas compile, and at which cost (`hearth-schemas`) |
//! | [`sim`] | the engine over an executor that computes nothing, and clusters in simulated time (`hearth-sim`) |

pub mod cli;
pub mod load;
pub mod programs;
pub mod prompts;
pub mod report;
pub mod schemas;
pub mod sim;
