//! Prefill/decode disaggregation (PD) beside mixed nodes, in simulated time: when do nodes of two
//! kinds give clients a shorter TTFT or ITL than as many nodes that do both?
//!
//! A step has all decode rows, and prompt tokens up to a limit that prompts share in the order of
//! their arrival; its time comes from [`crate::sim::cost`]. A prefill node sends the KV of each
//! chunk of a prompt when the chunk is computed, and decoding starts when the last chunk has
//! arrived.
//!
//! | module | what it holds |
//! |---|---|
//! | [`workload`] | requests: arrivals, lengths of prompts and outputs |
//! | [`node`] | one node: the scheduler's rule in small |
//! | [`link`] | the network links |
//! | [`cluster`] | events: requests, steps and transfers over all nodes |
//! | [`measure`] | TTFT, ITL and throughput of a run |
//! | [`split`] | the sustainable load, and the number of prefill nodes |
//! | [`report`] | the table |
//!
//! The model leaves out: limits of KV memory, cached prefixes, the latency of a message, failures,
//! and the time of the scheduler itself.

pub mod cluster;
pub mod link;
pub mod measure;
pub mod node;
pub mod report;
pub mod split;
pub mod workload;
