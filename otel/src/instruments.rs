//! The instruments of [`crate::catalog`], built in a meter, and the methods that record to
//! them.
//!
//! - `requests`: histograms and counters of requests and engine steps, recorded as they end.
//! - `tokens`: generated tokens and the times between them, gathered by each thread.
//! - `transfers`: histograms and counters of transfers of keys and values.
//! - `clients`: counters of each API key.
//! - `http`: histograms and counters of HTTP exchanges.
//! - `engine`, `speculation`, `grammar`, `adapters`, `process`: values that are read at each collection.
//! - `build`: makes an instrument from its entry in the catalog.

mod adapters;
mod build;
mod clients;
mod engine;
mod grammar;
mod http;
mod process;
mod requests;
mod speculation;
mod tokens;
mod transfers;

pub use adapters::observe_adapters;
pub use engine::{Derived, EngineFacts, EngineSnapshot, ReadDerived, ReadEngine};
pub use grammar::{GrammarSnapshot, observe_grammars};
pub use http::HttpInstruments;
pub use process::server_instruments;
pub use requests::{EngineInstruments, RequestNumbers};
