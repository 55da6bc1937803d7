//! Names and shapes of the tensors that a config asks a checkpoint for.

use std::fmt::Display;

use super::experts::{ExpertMatrix, ExpertNames, ExpertsConfig};
use super::{Mlp, ModelConfig, NormPlacement, QkNorms};

/// How a family names its tensors. Names of layers are relative to the layer. Several names are
/// tensors that are stacked here, row below row; a checkpoint that stores them stacked has one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorNames {
    /// The beginning of the names of `embed_tokens`, `layers` and `norm`.
    pub body: &'static str,
    pub lm_head: &'static str,
    pub attention_norm: &'static str,
    pub attention_post_norm: &'static str,
    pub mlp_norm: &'static str,
    pub mlp_post_norm: &'static str,
    /// The projections of queries, keys and values.
    pub qkv: &'static [&'static str],
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub sinks: &'static str,
    /// The output projection of attention.
    pub output: &'static str,
    /// The projections of gates and of what they are multiplied with.
    pub gate_up: &'static [&'static str],
    pub down: &'static str,
    pub experts: ExpertNames,
}

impl TensorNames {
    pub const LLAMA: TensorNames = TensorNames {
        body: "model.",
        lm_head: "lm_head",
        attention_norm: "input_layernorm",
        attention_post_norm: "post_attention_layernorm",
        mlp_norm: "post_attention_layernorm",
        mlp_post_norm: "post_feedforward_layernorm",
        qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        q_norm: "self_attn.q_norm",
        k_norm: "self_attn.k_norm",
        sinks: "self_attn.sinks",
        output: "self_attn.o_proj",
        gate_up: &["mlp.gate_proj", "mlp.up_proj"],
        down: "mlp.down_proj",
        experts: ExpertNames::QWEN,
    };

    /// The name of a module or a tensor of the layer `layer`, which `name` is relative to.
    pub fn in_layer(&self, layer: impl Display, name: &str) -> String {
        format!("{}layers.{layer}.{name}", self.body)
    }
}

/// The ways in which stacked matrices may be in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Each in its own format.
    Each,
    /// All in one format, and those of an expert, which have so many rows, begin at a group of rows.
    Experts(usize),
    /// Never: the matrix is small, and its rounding would change which experts a token has.
    Never,
}

/// Matrices that are one matrix here, row below row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// The names of the matrices, `[rows, columns]` each, and their rows.
    pub parts: Vec<(String, usize)>,
    pub columns: usize,
    pub packing: Packing,
}

impl Stack {
    /// One matrix.
    pub fn of(name: &str, rows: usize, columns: usize) -> Self {
        Self {
            parts: vec![(name.to_owned(), rows)],
            columns,
            packing: Packing::Each,
        }
    }

    /// Rows of all parts.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }
}

/// A linear layer, stacked from the modules of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// For messages.
    pub what: &'static str,
    /// The names of the modules, and their rows.
    pub parts: Vec<(String, usize)>,
    pub columns: usize,
    pub bias: bool,
    pub packing: Packing,
}

impl Linear {
    fn of(
        what: &'static str,
        modules: &[String],
        rows: &[usize],
        columns: usize,
        bias: bool,
    ) -> Self {
        // A checkpoint that stores the parts stacked has one module with the rows of all.
        let rows = match modules.len() {
            1 => vec![rows.iter().sum()],
            _ => rows.to_vec(),
        };
        Self {
            what,
            parts: modules.iter().cloned().zip(rows).collect(),
            columns,
            bias,
            packing: Packing::Each,
        }
    }

    /// The matrices as they are stacked.
    pub fn stack(&self) -> Stack {
        Stack {
            parts: self.weights(),
            columns: self.columns,
            packing: self.packing,
        }
    }

    /// The names of the matrices, `[rows, columns]` each, and their rows.
    pub fn weights(&self) -> Vec<(String, usize)> {
        self.named("weight")
    }

    /// The names of the biases, `[rows]` each, and their rows; `None` without biases.
    pub fn biases(&self) -> Option<Vec<(String, usize)>> {
        self.bias.then(|| self.named("bias"))
    }

    fn named(&self, suffix: &str) -> Vec<(String, usize)> {
        let parts = self.parts.iter();
        parts
            .map(|(module, rows)| (format!("{module}.{suffix}"), *rows))
            .collect()
    }
}

/// The tensors of a layer's MLP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MlpTensors {
    Dense {
        /// The projection of the gates above that of the values.
        gate_up: Linear,
        down: Linear,
    },
    Experts {
        router: Linear,
        /// For each expert the projection of the gates above that of the values.
        gate_up: Linear,
        down: Linear,
        shared: Option<Box<SharedTensors>>,
    },
}

/// The tensors of the MLP that all tokens take beside their experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedTensors {
    pub gate_up: Linear,
    pub down: Linear,
    /// The projection whose sigmoid the output is multiplied with, `[1, hidden]`.
    pub gate: Linear,
}

impl MlpTensors {
    /// The linear layers, in the order in which they are computed.
    pub fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Dense { gate_up, down } => vec![gate_up, down],
            Self::Experts {
                router,
                gate_up,
                down,
                shared,
            } => {
                let shared = shared.iter();
                let shared = shared.flat_map(|of| [&of.gate_up, &of.down, &of.gate]);
                [router, gate_up, down].into_iter().chain(shared).collect()
            }
        }
    }
}

/// The tensors of a layer: vectors by name and length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerTensors {
    /// The norm before attention.
    pub attention_norm: Option<(String, usize)>,
    /// The norm of what attention returns.
    pub attention_post_norm: Option<(String, usize)>,
    pub mlp_norm: Option<(String, usize)>,
    pub mlp_post_norm: Option<(String, usize)>,
    /// Queries above keys above values.
    pub qkv: Linear,
    pub q_norm: Option<(String, usize)>,
    pub k_norm: Option<(String, usize)>,
    pub sinks: Option<(String, usize)>,
    pub output: Linear,
    pub mlp: MlpTensors,
}

impl LayerTensors {
    /// The linear layers, in the order in which they are computed.
    pub fn linears(&self) -> Vec<&Linear> {
        let mut linears = vec![&self.qkv, &self.output];
        linears.extend(self.mlp.linears());
        linears
    }

    fn vectors(&self) -> impl Iterator<Item = &(String, usize)> {
        [
            &self.attention_norm,
            &self.attention_post_norm,
            &self.mlp_norm,
            &self.mlp_post_norm,
            &self.q_norm,
            &self.k_norm,
            &self.sinks,
        ]
        .into_iter()
        .flatten()
    }
}

impl ModelConfig {
    /// The tensors of the layer `index`.
    pub fn layer_tensors(&self, index: usize) -> LayerTensors {
        let names = &self.names;
        let full = |name: &str| names.in_layer(index, name);
        let vector = |present: bool, name: &str, size: usize| {
            present.then(|| (full(&format!("{name}.weight")), size))
        };
        let linear = |what, modules: &[&str], rows: &[usize], columns: usize, bias: bool| {
            let modules: Vec<String> = modules.iter().map(|module| full(module)).collect();
            Linear::of(what, &modules, rows, columns, bias)
        };
        let hidden = self.hidden_size;
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let bias = self.attention_bias;
        let before = self.norms != NormPlacement::After;
        let after = self.norms != NormPlacement::Before;
        let qk = |name: &str, all: usize| match self.qk_norms {
            QkNorms::None => None,
            QkNorms::Heads => vector(true, name, self.head_dim),
            QkNorms::Projections => vector(true, name, all),
        };
        let layer = &self.layers[index];
        LayerTensors {
            attention_norm: vector(before, names.attention_norm, hidden),
            attention_post_norm: vector(after, names.attention_post_norm, hidden),
            mlp_norm: vector(before, names.mlp_norm, hidden),
            mlp_post_norm: vector(after, names.mlp_post_norm, hidden),
            qkv: linear(
                "the stacked projection of queries, keys and values",
                names.qkv,
                &[query, key, key],
                hidden,
                bias.qkv,
            ),
            q_norm: qk(names.q_norm, query),
            k_norm: qk(names.k_norm, key),
            sinks: layer.sinks.then(|| (full(names.sinks), self.heads)),
            output: linear(
                "the output projection of attention",
                &[names.output],
                &[hidden],
                query,
                bias.output,
            ),
            mlp: match layer.mlp {
                Mlp::Dense { width } => MlpTensors::Dense {
                    gate_up: linear(
                        "the stacked projection of gate and up",
                        names.gate_up,
                        &[width, width],
                        hidden,
                        self.mlp_bias,
                    ),
                    down: linear(
                        "the down projection",
                        &[names.down],
                        &[hidden],
                        width,
                        self.mlp_bias,
                    ),
                },
                Mlp::Experts(experts) => self.experts_of(index, &experts),
            },
        }
    }

    /// The tensors of the experts of the layer `index`.
    fn experts_of(&self, index: usize, experts: &ExpertsConfig) -> MlpTensors {
        let (names, hidden, width) = (&self.names.experts, self.hidden_size, experts.width);
        let full = |name: &str| self.names.in_layer(index, name);
        let linear = |what, parts: Vec<(String, usize)>, columns, bias, packing| Linear {
            what,
            parts,
            columns,
            bias,
            packing,
        };
        let one = |what, name: &str, rows: usize| {
            let parts = vec![(full(name), rows)];
            linear(what, parts, hidden, false, Packing::Never)
        };
        let all = self.expert_tensors(index);
        let modules = |matrices: &[ExpertMatrix], rows: usize| -> Vec<(String, usize)> {
            let of_expert = |expert: usize| {
                let names = all.iter().flat_map(move |all| {
                    matrices.iter().map(move |matrix| all.name(expert, *matrix))
                });
                names.map(move |name| (name, rows))
            };
            (0..experts.experts).flat_map(of_expert).collect()
        };
        let [gate, up, down] = names.shared;
        MlpTensors::Experts {
            router: Linear {
                bias: experts.bias,
                ..one("the router", names.router, experts.experts)
            },
            gate_up: linear(
                "the stacked projections of all experts' gates and values",
                modules(&[ExpertMatrix::Gate, ExpertMatrix::Up], width),
                hidden,
                experts.bias,
                Packing::Experts(2 * width),
            ),
            down: linear(
                "the stacked down projections of all experts",
                modules(&[ExpertMatrix::Down], hidden),
                width,
                experts.bias,
                Packing::Experts(hidden),
            ),
            shared: experts.shared.map(|width| {
                Box::new(SharedTensors {
                    gate_up: linear(
                        "the shared expert's stacked projection of gate and up",
                        vec![(full(gate), width), (full(up), width)],
                        hidden,
                        false,
                        Packing::Each,
                    ),
                    down: linear(
                        "the shared expert's down projection",
                        vec![(full(down), hidden)],
                        width,
                        false,
                        Packing::Each,
                    ),
                    gate: one("the gate of the shared expert", names.shared_gate, 1),
                })
            }),
        }
    }

    /// The token embedding, `[vocab, hidden]`.
    pub fn embedding_name(&self) -> String {
        format!("{}embed_tokens.weight", self.names.body)
    }

    /// The last norm, `[hidden]`.
    pub fn norm_name(&self) -> String {
        format!("{}norm.weight", self.names.body)
    }

    /// The output projection, `[vocab, hidden]`; `None` if it is the embedding.
    pub fn lm_head_name(&self) -> Option<String> {
        (!self.tie_word_embeddings).then(|| format!("{}.weight", self.names.lm_head))
    }

    /// The matrices as they are stacked. Embedding and output projection have one part.
    pub fn stacks(&self) -> Vec<Stack> {
        let table = |name: String| Stack::of(&name, self.vocab_size, self.hidden_size);
        let mut stacks = vec![table(self.embedding_name())];
        for layer in 0..self.layers.len() {
            let tensors = self.layer_tensors(layer);
            let linears = tensors.linears().into_iter();
            stacks.extend(linears.map(Linear::stack));
        }
        stacks.extend(self.lm_head_name().map(table));
        stacks
    }

    /// Every vector of the model under its name in the checkpoint, with its length.
    fn vectors(&self) -> Vec<(String, usize)> {
        let mut vectors = Vec::new();
        for layer in 0..self.layers.len() {
            let tensors = self.layer_tensors(layer);
            vectors.extend(tensors.vectors().cloned());
            let biases = tensors.linears().into_iter().filter_map(Linear::biases);
            vectors.extend(biases.flatten());
        }
        vectors.push((self.norm_name(), self.hidden_size));
        vectors
    }

    /// Every tensor of the model under its name in the checkpoint, with its shape; matrices are
    /// `[output, input]`.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let matrices = self.stacks().into_iter().flat_map(|stack| {
            let parts = stack.parts.into_iter();
            parts.map(move |(name, rows)| (name, vec![rows, stack.columns]))
        });
        let vectors = self.vectors().into_iter();
        matrices
            .chain(vectors.map(|(name, size)| (name, vec![size])))
            .collect()
    }

    /// Elements of all vectors.
    pub fn vector_elements(&self) -> usize {
        self.vectors().iter().map(|(_, size)| size).sum()
    }

    /// Rows of the stacked query, key and value projection.
    pub fn qkv_rows(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Number of parameters, tied embeddings counted once.
    pub fn parameters(&self) -> u64 {
        self.tensors()
            .iter()
            .map(|(_, shape)| shape.iter().map(|side| *side as u64).product::<u64>())
            .sum()
    }
}
