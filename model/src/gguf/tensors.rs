//! The places of the tensors in the file, and their names in Hugging Face checkpoints.

use std::collections::HashSet;
use std::ops::Range;

use super::error::GgufError;
use super::metadata::{MAX_NAME, Reader};
use crate::config::{ModelConfig, NormPlacement, RopeScaling};
use crate::dtype::Dtype;
use crate::weights::{Format, HeadOrder, StoredTensor};

const MAX_TENSORS: u64 = 1 << 17;
const MAX_DIMENSIONS: u32 = 4;

/// One tensor of the file. The shape is row-major, the other way round than in the file.
struct Tensor<'a> {
    /// Index of the file that has the tensor.
    file: usize,
    name: &'a str,
    format: Format,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

pub(super) struct Tensors<'a> {
    list: Vec<Tensor<'a>>,
    files: Vec<&'a [u8]>,
}

impl<'a> Tensors<'a> {
    /// Reads the descriptions of `count` tensors and checks that their data is in the file.
    pub fn read(reader: &mut Reader<'a>, count: u64, alignment: u64) -> Result<Self, GgufError> {
        struct Described<'a> {
            name: &'a str,
            format: Format,
            shape: Vec<usize>,
            size: usize,
            offset: u64,
        }
        // Each takes at least the length of a name, a number of dimensions, a type and an offset.
        let count = reader.count(count, MAX_TENSORS, 8 + 4 + 4 + 8)?;
        let mut described = Vec::with_capacity(count);
        let mut names = HashSet::with_capacity(count);
        for _ in 0..count {
            let name = reader.text(MAX_NAME)?;
            if !names.insert(name) {
                return Err(reader.corrupt(format!("tensor {name:.80} is there twice")));
            }
            let dimensions = reader.u32()?;
            if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
                return Err(reader.corrupt(format!(
                    "tensor {name:.80} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}"
                )));
            }
            let mut shape = (0..dimensions)
                .map(|_| reader.u64())
                .collect::<Result<Vec<_>, _>>()?;
            shape.reverse();
            let format = Format::of_gguf(reader.u32()?);
            let offset = reader.u64()?;
            let too_large = || reader.corrupt(format!("tensor {name:.80} is too large"));
            let shape: Vec<usize> = shape
                .into_iter()
                .map(usize::try_from)
                .collect::<Result<_, _>>()
                .map_err(|_| too_large())?;
            let elements = shape
                .iter()
                .try_fold(1usize, |product, side| product.checked_mul(*side))
                .ok_or_else(too_large)?;
            let columns = shape.last().copied().unwrap_or(0);
            let (per_block, block_bytes) = format.block();
            if !columns.is_multiple_of(per_block) {
                return Err(reader.corrupt(format!(
                    "tensor {name:.80} has rows of {columns} elements, \
                     not a multiple of {per_block} as {format} has"
                )));
            }
            let size = (elements / per_block)
                .checked_mul(block_bytes)
                .ok_or_else(too_large)?;
            if !offset.is_multiple_of(alignment) {
                return Err(reader.corrupt(format!(
                    "tensor {name:.80} is not aligned to {alignment} bytes"
                )));
            }
            described.push(Described {
                name,
                format,
                shape,
                size,
                offset,
            });
        }
        let data = (reader.position() as u64).next_multiple_of(alignment);
        let list = described
            .into_iter()
            .map(|tensor| {
                let start = data.checked_add(tensor.offset);
                let start = start.and_then(|start| usize::try_from(start).ok());
                let range = start.and_then(|start| Some(start..start.checked_add(tensor.size)?));
                let bytes = range
                    .filter(|range| range.end <= reader.length())
                    .ok_or_else(|| {
                        let name = tensor.name;
                        reader.corrupt(format!("tensor {name:.80} goes beyond the end of the file"))
                    })?;
                Ok(Tensor {
                    file: 0,
                    name: tensor.name,
                    format: tensor.format,
                    shape: tensor.shape,
                    bytes,
                })
            })
            .collect::<Result<_, GgufError>>()?;
        Ok(Self {
            list,
            files: vec![reader.file()],
        })
    }

    /// Adds the tensors of another file.
    ///
    /// # Errors
    /// The name of a tensor that both have.
    pub fn join(&mut self, other: Self) -> Result<(), &'a str> {
        let names: HashSet<&str> = self.list.iter().map(|tensor| tensor.name).collect();
        let twice = other.list.iter().find(|tensor| names.contains(tensor.name));
        if let Some(tensor) = twice {
            return Err(tensor.name);
        }
        let before = self.files.len();
        self.files.extend(other.files);
        self.list
            .extend(other.list.into_iter().map(|tensor| Tensor {
                file: before + tensor.file,
                ..tensor
            }));
        Ok(())
    }

    fn find(&self, name: &str) -> Option<&Tensor<'a>> {
        self.list.iter().find(|tensor| tensor.name == name)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.find(name).map(|tensor| tensor.shape.as_slice())
    }

    /// The values of a small tensor of f32.
    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.find(name)?;
        let bytes = self.files.get(tensor.file)?.get(tensor.bytes.clone())?;
        (tensor.format == Format::Float(Dtype::F32)).then(|| {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|word| f32::from_le_bytes(*word)).collect()
        })
    }

    /// The tensors under the names that they have in Hugging Face checkpoints of `config`. `paired`:
    /// the rows of queries and keys lie in pairs that are rotated together.
    ///
    /// # Errors
    /// There is an unknown tensor, which would change the results of the model, or one twice.
    pub fn renamed(
        self,
        config: &ModelConfig,
        paired: bool,
    ) -> Result<Vec<(String, StoredTensor)>, GgufError> {
        let mut names = HashSet::with_capacity(self.list.len());
        let mut renamed = Vec::with_capacity(self.list.len());
        for tensor in self.list {
            if is_rotation(tensor.name, config) {
                continue;
            }
            let gguf_name = tensor.name;
            let heads = (paired && is_rotated(gguf_name)).then(|| head_order(config));
            let mut stored = tensor.stored(heads.flatten());
            // The converter drops sides of 1.
            if gguf_name.ends_with(".ffn_gate_inp_shexp.weight") && stored.shape.len() == 1 {
                stored.shape.insert(0, 1);
            }
            // Two names of GGUF may mean the same tensor.
            match hugging_face(gguf_name, config) {
                Some(name) if names.insert(name.clone()) => renamed.push((name, stored)),
                _ => {
                    let supported = format!("those of {}", config.architecture);
                    return Err(unsupported(gguf_name, supported));
                }
            }
        }
        Ok(renamed)
    }
}

impl Tensor<'_> {
    fn stored(self, heads: Option<HeadOrder>) -> StoredTensor {
        StoredTensor {
            file: self.file,
            format: self.format,
            shape: self.shape,
            bytes: self.bytes,
            heads,
        }
    }
}

fn head_order(config: &ModelConfig) -> Option<HeadOrder> {
    Some(HeadOrder {
        head_dim: config.head_dim,
        rotary_dim: config.ropes.first()?.rotary_dim,
    })
}

/// True if the tensor belongs to the projection of queries or of keys.
fn is_rotated(name: &str) -> bool {
    name.contains(".attn_q.") || name.contains(".attn_k.")
}

const CHANGES: [&str; 2] = [".lora_a", ".lora_b"];

impl Tensors<'_> {
    /// The tensors of an adapter under Hugging Face's names, with their suffixes. `paired`: the rows
    /// of queries and keys lie in pairs that are rotated together.
    ///
    /// # Errors
    /// There is an unknown tensor.
    pub fn renamed_changes(
        self,
        config: &ModelConfig,
        paired: bool,
    ) -> Result<Vec<(String, StoredTensor)>, GgufError> {
        let list = self.list.into_iter();
        list.map(|tensor| {
            let found = CHANGES.iter().find_map(|suffix| {
                let name = hugging_face(tensor.name.strip_suffix(suffix)?, config)?;
                Some((name, *suffix))
            });
            let (name, suffix) = found.ok_or_else(|| {
                let factors = "`.lora_a` and `.lora_b` of the tensors of";
                unsupported(tensor.name, format!("{factors} {}", config.architecture))
            })?;
            let in_pairs = paired && is_rotated(tensor.name) && suffix == ".lora_b";
            let heads = in_pairs.then(|| head_order(config));
            Ok((name + suffix, tensor.stored(heads.flatten())))
        })
        .collect()
    }
}

fn unsupported(tensor: &str, supported: String) -> GgufError {
    GgufError::Unsupported {
        key: "tensor".to_owned(),
        given: tensor.chars().take(80).collect(),
        supported,
    }
}

/// True if the tensor has rotary frequencies or factors of them, which are part of `config`.
fn is_rotation(name: &str, config: &ModelConfig) -> bool {
    match name {
        "rope_freqs.weight" => true,
        "rope_factors_long.weight" | "rope_factors_short.weight" => config
            .ropes
            .iter()
            .any(|rope| matches!(rope.scaling, RopeScaling::LongRope { .. })),
        // Frequencies without factors, which old converters wrote.
        _ => name.ends_with(".attn_rot_embd.weight"),
    }
}

/// `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight` in Llama.
fn hugging_face(name: &str, config: &ModelConfig) -> Option<String> {
    match name {
        "token_embd.weight" => return Some(config.embedding_name()),
        "output_norm.weight" => return Some(config.norm_name()),
        "output.weight" => return Some(format!("{}.weight", config.names.lm_head)),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, suffix) = rest.split_once('.')?;
    let names = &config.names;
    // A parameter of the layer, and no module with a weight.
    if part == "attn_sinks" {
        return Some(names.in_layer(layer, names.sinks));
    }
    let module = module(part, config)?;
    Some(names.in_layer(layer, &format!("{module}.{suffix}")))
}

/// The name of a layer's module, as in Hugging Face checkpoints.
fn module(part: &str, config: &ModelConfig) -> Option<String> {
    let names = &config.names;
    let experts = &names.experts;
    let [gate, up, down] = experts.shared;
    let before = config.norms != NormPlacement::After;
    let after = config.norms != NormPlacement::Before;
    // All experts of a layer are one tensor.
    let merged = |matrix: &str| Some(format!("{}.{matrix}", experts.merged));
    // Projections that a checkpoint stores stacked are stacked in GGUF files.
    let module = match (part, names.qkv, names.gate_up) {
        ("attn_norm", ..) if before => names.attention_norm,
        ("ffn_norm", ..) if before => names.mlp_norm,
        ("post_attention_norm", ..) if after => names.attention_post_norm,
        // GPT-OSS has this name for the norm before the MLP.
        ("post_attention_norm", ..) => names.mlp_norm,
        ("post_ffw_norm", ..) if after => names.mlp_post_norm,
        ("attn_q", [q, _, _], _) => q,
        ("attn_k", [_, k, _], _) => k,
        ("attn_v", [_, _, v], _) => v,
        ("attn_qkv", [qkv], _) => qkv,
        ("attn_q_norm", ..) => names.q_norm,
        ("attn_k_norm", ..) => names.k_norm,
        ("attn_output", ..) => names.output,
        ("ffn_gate", _, [gate, _]) => gate,
        ("ffn_up", _, [_, up] | [up]) => up,
        ("ffn_down", ..) => names.down,
        ("ffn_gate_inp", ..) => experts.router,
        ("ffn_gate_exps", ..) => return merged("gate_proj"),
        ("ffn_up_exps", ..) => return merged("up_proj"),
        ("ffn_gate_up_exps", ..) => return merged("gate_up_proj"),
        ("ffn_down_exps", ..) => return merged("down_proj"),
        ("ffn_gate_inp_shexp", ..) => experts.shared_gate,
        ("ffn_gate_shexp", ..) => gate,
        ("ffn_up_shexp", ..) => up,
        ("ffn_down_shexp", ..) => down,
        _ => return None,
    };
    Some(module.to_owned())
}
