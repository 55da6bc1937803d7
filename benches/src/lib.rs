//! Measurements over HTTP: a closed-loop load generator for any server with
//! OpenAI's `/v1/completions`, so that peers are measured with the same tool. And
//! measurements without a model ([`sim`]): the scheduler and the prefix cache alone.

pub mod cli;
pub mod load;
pub mod prompts;
pub mod report;
pub mod sim;
