//! The front-end language: programs over language models.
//!
//! A program is a function over a [`State`]. It adds text, generates and selects into variables,
//! forks and joins. Statements are submitted and run in the background; only reading a variable
//! waits. `docs/FRONTEND.md` is the manual, and every primitive is shown there.

pub mod backend;
mod batch;
mod cell;
mod choices;
mod context;
mod error;
mod executor;
mod expr;
mod frontend;
mod graph;
mod op;
mod read;
mod sampling;
mod scripted;
mod speculation;
mod state;
mod trace;

pub use backend::TokenLogprob;
pub use batch::{Batch, OnProgress};
pub use cell::{Meta, Outcome, OutputMeta, Value};
pub use choices::{ChoiceLogprobs, ChoiceMethod};
pub use error::Error;
pub use expr::{
    Expr, Generate, Select, constant, gen_int, gen_string, generate, image, select, unordered,
    varying,
};
pub use frontend::{Frontend, Retry};
pub use graph::{Graph, Warning};
pub use op::{Generation, Join, Node, Op, Piece, Selection};
pub use read::{TextStream, Var, VarStream};
pub use sampling::{DEFAULT_MAX_TOKENS, Format, Sampling};
pub use scripted::Scripted;
pub use state::{Ending, State};
pub use trace::{trace, trace_program};
