//! The JSON of a request to `/v1/programs`, and the graph that it describes.

use std::collections::{BTreeMap, BTreeSet};

use hearth_client::Role;
use hearth_client::lang::{
    ChoiceMethod, Format, Generation, Graph, Join, Node, Op, Piece, Sampling, Selection,
};
use serde::Deserialize;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::{alternatives, at_least, at_most};
use crate::fields::capped::Capped;
use crate::fields::sampling::TokenIds;
use crate::fields::schema::{GivenSchema, MAX_SCHEMA_VALUES};
use crate::fields::wire::{MAX_STOP_STRINGS, Object, OneOrMany};
use crate::programs::text::{GivenPiece, MAX_PIECES, Pieces};

/// Most nodes of a program.
pub const MAX_NODES: usize = 512;
/// Most states of a program, its own among them.
pub const MAX_STATES: usize = 64;
/// Most output tokens of all generations of a program together.
pub const MAX_TOKENS: usize = 1 << 15;
/// Most outputs of one generation.
pub const MAX_OUTPUTS: usize = 64;
/// Most choices of one selection.
pub const MAX_CHOICES: usize = 64;
/// Most choices of all selections of a program together, because each choice is a request to the
/// engine.
pub const MAX_ALL_CHOICES: usize = 512;
/// Most bytes of the name of a variable.
const MAX_NAME_BYTES: usize = 256;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgramRequest {
    pub model: Option<String>,
    pub nodes: Capped<Object<ProgramNode>, MAX_NODES>,
    pub stream: Option<bool>,
    pub cache_salt: Option<String>,
    pub priority: Option<i64>,
}

/// A statement. Which fields it may have depends on `op`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProgramNode {
    op: Option<String>,
    state: Option<usize>,
    text: Option<Pieces>,
    name: Option<String>,
    max_tokens: Option<i64>,
    min_tokens: Option<i64>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<TokenIds>,
    stop_regex: Option<OneOrMany>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    ignore_eos: Option<bool>,
    seed: Option<i64>,
    regex: Option<String>,
    json_schema: Option<GivenSchema>,
    n: Option<i64>,
    logprobs: Option<i64>,
    choices: Option<Capped<String, MAX_CHOICES>>,
    method: Option<String>,
    role: Option<String>,
    into: Option<Capped<usize, MAX_STATES>>,
    from: Option<Capped<usize, MAX_STATES>>,
    mode: Option<String>,
}

/// The fields of a generation besides `op`, `state` and `name`.
const OF_GEN: [&str; 18] = [
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "ignore_eos",
    "seed",
    "regex",
    "json_schema",
    "n",
    "logprobs",
];

impl ProgramNode {
    /// The fields that are given, besides `op` and `state`.
    fn given(&self) -> Vec<&'static str> {
        let fields = [
            ("text", self.text.is_some()),
            ("name", self.name.is_some()),
            ("max_tokens", self.max_tokens.is_some()),
            ("min_tokens", self.min_tokens.is_some()),
            ("stop", self.stop.is_some()),
            ("stop_token_ids", self.stop_token_ids.is_some()),
            ("stop_regex", self.stop_regex.is_some()),
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("top_k", self.top_k.is_some()),
            ("min_p", self.min_p.is_some()),
            ("frequency_penalty", self.frequency_penalty.is_some()),
            ("presence_penalty", self.presence_penalty.is_some()),
            ("repetition_penalty", self.repetition_penalty.is_some()),
            ("ignore_eos", self.ignore_eos.is_some()),
            ("seed", self.seed.is_some()),
            ("regex", self.regex.is_some()),
            ("json_schema", self.json_schema.is_some()),
            ("n", self.n.is_some()),
            ("logprobs", self.logprobs.is_some()),
            ("choices", self.choices.is_some()),
            ("method", self.method.is_some()),
            ("role", self.role.is_some()),
            ("into", self.into.is_some()),
            ("from", self.from.is_some()),
            ("mode", self.mode.is_some()),
        ];
        let given = fields.into_iter().filter(|(_, given)| *given);
        given.map(|(name, _)| name).collect()
    }

    /// Refuses fields that the operation does not have.
    fn only(&self, op: &str, known: &[&str]) -> Result<(), ApiError> {
        match self.given().iter().find(|field| !known.contains(field)) {
            None => Ok(()),
            Some(field) => {
                let message = format!("`{field}` must be left out with the op {op:?}");
                Err(ApiError::field(*field, message))
            }
        }
    }

    /// The statement, of which only the numbers of states are not checked yet.
    fn op(self, state: usize) -> Result<Op, ApiError> {
        let name = self.op.as_deref().unwrap_or_default().to_owned();
        match name.as_str() {
            "text" => {
                self.only(&name, &["text"])?;
                let Pieces(Capped { items, given }) = required("text", self.text)?;
                at_most("text", MAX_PIECES, "parts", given)?;
                let pieces = items.into_iter().map(|piece| match piece {
                    GivenPiece::Text(text) => Piece::Text(text),
                    GivenPiece::Var(reference) => Piece::Var {
                        var: reference.var,
                        state: reference.state.unwrap_or(state),
                    },
                });
                Ok(Op::Text {
                    text: pieces.collect(),
                })
            }
            "gen" => {
                self.only(&name, &[&OF_GEN[..], &["name"]].concat())?;
                self.generation().map(Box::new).map(Op::Gen)
            }
            "select" => {
                self.only(&name, &["name", "choices", "method"])?;
                self.selection().map(Op::Select)
            }
            "begin" => {
                self.only(&name, &["role"])?;
                let role = required("role", self.role)?;
                Ok(Op::Begin {
                    role: one_of(
                        "role",
                        &role,
                        &[Role::System, Role::User, Role::Assistant].map(|r| (r.name(), r)),
                    )?,
                })
            }
            "end" => {
                self.only(&name, &[])?;
                Ok(Op::End)
            }
            "fork" => {
                self.only(&name, &["into"])?;
                let Capped { items, given } = required("into", self.into)?;
                at_most("into", MAX_STATES - 1, "states", given)?;
                Ok(Op::Fork { into: items })
            }
            "join" => {
                self.only(&name, &["from", "mode"])?;
                let Capped { items, given } = required("from", self.from)?;
                at_most("from", MAX_STATES - 1, "states", given)?;
                let modes = [("gather", Join::Gather), ("concatenate", Join::Concatenate)];
                let mode = match self.mode {
                    None => Join::Gather,
                    Some(mode) => one_of("mode", &mode, &modes)?,
                };
                Ok(Op::Join { from: items, mode })
            }
            given => {
                let bound = "one of text, gen, select, begin, end, fork, join";
                let given: String = given.chars().take(40).collect();
                Err(out_of_bounds("op", bound, format!("{given:?}")))
            }
        }
    }

    fn generation(self) -> Result<Generation, ApiError> {
        let stop = strings("stop", self.stop)?;
        let stop_regex = strings("stop_regex", self.stop_regex)?;
        let ids = self.stop_token_ids.unwrap_or_default();
        at_most("stop_token_ids", 1024, "entries", ids.given)?;
        let id = |id: i64| {
            let bound = "a list of token ids (0 or more)";
            u32::try_from(id).map_err(|_| out_of_bounds("stop_token_ids", bound, id))
        };
        let count = |field: &str, least: usize, given: Option<i64>| {
            let value = at_least(field, least, given)?;
            let bound = format!("at most {MAX_TOKENS}");
            match value {
                Some(value) if value > MAX_TOKENS => Err(out_of_bounds(field, &bound, value)),
                // It is below the bound.
                value => Ok(value.map(|value| value as u32)),
            }
        };
        let n = at_least("n", 1, self.n)?;
        if let Some(n) = n.filter(|&n| n > MAX_OUTPUTS) {
            return Err(out_of_bounds("n", &format!("at most {MAX_OUTPUTS}"), n));
        }
        let logprobs = alternatives("logprobs", self.logprobs)?;
        if let Some(schema) = &self.json_schema {
            at_most("json_schema", MAX_SCHEMA_VALUES, "values", schema.values)?;
        }
        Ok(Generation {
            name: variable(self.name)?,
            sampling: Sampling {
                max_tokens: count("max_tokens", 1, self.max_tokens)?,
                min_tokens: count("min_tokens", 0, self.min_tokens)?,
                stop,
                stop_token_ids: ids.items.into_iter().map(id).collect::<Result<_, _>>()?,
                stop_regex,
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                frequency_penalty: self.frequency_penalty,
                presence_penalty: self.presence_penalty,
                repetition_penalty: self.repetition_penalty,
                ignore_eos: self.ignore_eos,
                seed: self.seed,
            },
            format: Format {
                regex: self.regex,
                json_schema: self.json_schema.map(|given| given.schema),
            },
            // Both are below their bounds.
            n: n.map(|n| n as u32),
            logprobs: logprobs.map(|logprobs| logprobs as u32),
        })
    }

    fn selection(self) -> Result<Selection, ApiError> {
        let Capped { items, given } = required("choices", self.choices)?;
        let bound = format!("between 1 and {MAX_CHOICES} texts");
        if given == 0 || given > MAX_CHOICES {
            return Err(out_of_bounds("choices", &bound, given));
        }
        let distinct: BTreeSet<&String> = items.iter().collect();
        if distinct.len() < items.len() || distinct.contains(&String::new()) {
            let bound = "texts that are not empty and differ from each other";
            return Err(out_of_bounds("choices", bound, format!("{items:?}")));
        }
        let methods = [
            (
                "token_length_normalized",
                ChoiceMethod::TokenLengthNormalized,
            ),
            ("greedy_token_selection", ChoiceMethod::GreedyTokenSelection),
            (
                "unconditional_likelihood_normalized",
                ChoiceMethod::UnconditionalLikelihoodNormalized,
            ),
        ];
        let method = match self.method {
            None => ChoiceMethod::default(),
            Some(method) => one_of("method", &method, &methods)?,
        };
        Ok(Selection {
            name: variable(self.name)?,
            choices: items,
            method,
        })
    }
}

fn required<T>(field: &str, given: Option<T>) -> Result<T, ApiError> {
    let missing = || {
        let message = format!("`{field}` must be given with this op");
        ApiError::field(field, message).code("missing_required_parameter")
    };
    given.ok_or_else(missing)
}

fn one_of<T: Copy>(field: &str, given: &str, known: &[(&str, T)]) -> Result<T, ApiError> {
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == given) {
        return Ok(*value);
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let given: String = given.chars().take(40).collect();
    let bound = format!("one of {}", names.join(", "));
    Err(out_of_bounds(field, &bound, format!("{given:?}")))
}

fn strings(field: &str, given: Option<OneOrMany>) -> Result<Vec<String>, ApiError> {
    let OneOrMany(Capped { items, given }) = given.unwrap_or_default();
    at_most(field, MAX_STOP_STRINGS, "strings", given)?;
    Ok(items)
}

/// The name of a variable.
fn variable(name: Option<String>) -> Result<String, ApiError> {
    let name = required("name", name)?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let bound = format!("between 1 and {MAX_NAME_BYTES} bytes long");
        return Err(out_of_bounds(
            "name",
            &bound,
            format!("{} bytes", name.len()),
        ));
    }
    Ok(name)
}

/// The checked graph of `nodes`.
///
/// # Errors
/// 400 that names the node and its field.
pub(crate) fn graph(nodes: Capped<Object<ProgramNode>, MAX_NODES>) -> Result<Graph, ApiError> {
    let bound = format!("between 1 and {MAX_NODES} nodes");
    if nodes.given == 0 || nodes.given > MAX_NODES {
        return Err(out_of_bounds("nodes", &bound, nodes.given));
    }
    let mut states = States::default();
    states.running.insert(0, BTreeSet::new());
    let mut graph = Graph::default();
    let (mut tokens, mut choices) = (0usize, 0usize);
    for (index, Object(node)) in nodes.items.into_iter().enumerate() {
        let within = |error: ApiError| error.within(&format!("nodes[{index}]"));
        let state = node.state.unwrap_or(0);
        let op = node.op(state).map_err(within)?;
        states.take(state, &op).map_err(within)?;
        match &op {
            Op::Gen(generation) => {
                let outputs = generation.n.unwrap_or(1) as usize;
                let own = outputs * generation.sampling.limit() as usize;
                tokens = tokens.saturating_add(own);
                let bound = format!("at most {MAX_TOKENS} in all generations together");
                if tokens > MAX_TOKENS {
                    return Err(within(out_of_bounds("max_tokens", &bound, tokens)));
                }
            }
            Op::Select(selection) => {
                choices = choices.saturating_add(selection.choices.len());
                let bound = format!("at most {MAX_ALL_CHOICES} in all selections together");
                if choices > MAX_ALL_CHOICES {
                    return Err(within(out_of_bounds("choices", &bound, choices)));
                }
            }
            _ => {}
        }
        graph.nodes.push(Node { state, op });
    }
    Ok(graph)
}

/// The states of a program while its nodes are read.
#[derive(Default)]
struct States {
    /// The variables of each state that can take statements.
    running: BTreeMap<usize, BTreeSet<String>>,
    /// The variables of joined states.
    joined: BTreeMap<usize, BTreeSet<String>>,
}

impl States {
    fn take(&mut self, state: usize, op: &Op) -> Result<(), ApiError> {
        let Some(own) = self.running.get(&state) else {
            let bound = "0 or a state that an earlier fork made and no join has ended";
            return Err(out_of_bounds("state", bound, state));
        };
        match op {
            Op::Text { text } => {
                for piece in text {
                    let Piece::Var { var, state } = piece else {
                        continue;
                    };
                    let known = self.running.get(state).or_else(|| self.joined.get(state));
                    if !known.is_some_and(|known| known.contains(var)) {
                        let bound = format!(
                            "texts and variables that an earlier node of state {state} defines"
                        );
                        let given: String = var.chars().take(40).collect();
                        return Err(out_of_bounds("text", &bound, format!("{given:?}")));
                    }
                }
            }
            Op::Fork { into } => {
                let copy = own.clone();
                for &fork in into {
                    let taken = self.running.contains_key(&fork) || self.joined.contains_key(&fork);
                    if taken || fork >= MAX_STATES {
                        let bound = format!("numbers below {MAX_STATES} that no state has had yet");
                        return Err(out_of_bounds("into", &bound, fork));
                    }
                    self.running.insert(fork, copy.clone());
                }
            }
            Op::Join { from, .. } => {
                let mut lists = BTreeSet::new();
                for &fork in from {
                    let variables = self.running.remove(&fork).filter(|_| fork != state);
                    let Some(variables) = variables else {
                        let bound = "other states that no join has ended";
                        return Err(out_of_bounds("from", bound, fork));
                    };
                    lists.extend(variables.iter().cloned());
                    self.joined.insert(fork, variables);
                }
                self.running.entry(state).or_default().extend(lists);
            }
            op => {
                if let Some(name) = op.defines() {
                    let name = name.to_owned();
                    self.running.entry(state).or_default().insert(name);
                }
            }
        }
        Ok(())
    }
}
