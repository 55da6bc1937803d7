//! Speculative decoding: tokens that are likely to come next are computed together with the
//! latest one, and kept as far as the sampler then draws the very same tokens.
//!
//! **Architecture Invariant.** A draft changes no output. Every position is drawn from its own
//! row of logits as without speculation, with the same random number, penalties and grammar. A
//! draft only decides whether the row after it can be used. Keys and values of refused drafts
//! are never cached: their slots are written again, or freed.

mod acceptance;
mod config;
mod costs;
mod draft_kv;
mod draft_model;
mod drafter;
mod model_drafter;
mod model_time;
mod ngram;
mod plan;
mod prediction;
mod prefix_cache;
mod request;

pub use config::{DraftMethod, MAX_DRAFT, Speculation, SpeculationError};
pub(crate) use costs::StepCosts;
pub use draft_model::DraftModel;
pub(crate) use drafter::{CachedText, DraftContext};
pub(crate) use model_drafter::{ModelDrafter, Wish};
pub(crate) use plan::{ByModel, Offer, StepTime, plan};
pub(crate) use request::{FirstRates, RequestSpeculation};
