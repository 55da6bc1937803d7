//! From a row of logits to a token, on the engine thread.
//!
//! An executor that samples on the device does the same; [`sampler`] says how
//! ([`SampleParams`](hearth_forward::SampleParams)) and samples only where log-probabilities
//! are wanted or a grammar's mask was late.

pub mod logprobs;
mod mask;
pub mod params;
mod penalties;
mod rng;
pub mod sampler;
mod softmax;
mod top_k;
mod top_p;
