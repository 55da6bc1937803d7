//! The places of the tensors in the file, and their names in Hugging Face checkpoints.

use std::collections::HashSet;
use std::ops::Range;

use super::error::GgufError;
use super::metadata::{MAX_NAME, Reader};
use crate::config::ModelConfig;
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

    /// The tensors under Hugging Face's names. `rotated` is given if the rows of queries and keys
    /// lie in pairs that are rotated together.
    ///
    /// # Errors
    /// There is an unknown tensor, which would change the results of the model.
    pub fn renamed(
        self,
        rotated: Option<&ModelConfig>,
    ) -> Result<Vec<(String, StoredTensor)>, GgufError> {
        self.list
            .into_iter()
            .filter(|tensor| !is_rotation(tensor.name))
            .map(|tensor| {
                let name = hugging_face(tensor.name).ok_or_else(|| GgufError::Unsupported {
                    key: "tensor".to_owned(),
                    given: tensor.name.chars().take(80).collect(),
                    supported: "those of Llama, Qwen2 and Qwen3".to_owned(),
                })?;
                let heads = rotated.and_then(|config| {
                    (name.contains(".q_proj.") || name.contains(".k_proj.")).then_some(HeadOrder {
                        head_dim: config.head_dim,
                        rotary_dim: config.rope.rotary_dim,
                    })
                });
                let stored = StoredTensor {
                    file: tensor.file,
                    format: tensor.format,
                    shape: tensor.shape,
                    bytes: tensor.bytes,
                    heads,
                };
                Ok((name, stored))
            })
            .collect()
    }
}

const CHANGES: [&str; 2] = [".lora_a", ".lora_b"];

impl Tensors<'_> {
    /// The tensors of an adapter under Hugging Face's names, with their suffixes. `rotated` is given
    /// if the rows of queries and keys lie in pairs that are rotated together.
    ///
    /// # Errors
    /// There is an unknown tensor.
    pub fn renamed_changes(
        self,
        rotated: Option<&ModelConfig>,
    ) -> Result<Vec<(String, StoredTensor)>, GgufError> {
        let list = self.list.into_iter();
        list.map(|tensor| {
            let found = CHANGES.iter().find_map(|suffix| {
                let name = hugging_face(tensor.name.strip_suffix(suffix)?)?;
                Some((name, *suffix))
            });
            let (name, suffix) = found.ok_or_else(|| GgufError::Unsupported {
                key: "tensor".to_owned(),
                given: tensor.name.chars().take(80).collect(),
                supported: "`.lora_a` and `.lora_b` of the tensors of Llama, Qwen2 and Qwen3"
                    .to_owned(),
            })?;
            let in_pairs = name.contains(".q_proj.") || name.contains(".k_proj.");
            let heads = rotated.filter(|_| in_pairs && suffix == ".lora_b");
            let stored = StoredTensor {
                file: tensor.file,
                format: tensor.format,
                shape: tensor.shape,
                bytes: tensor.bytes,
                heads: heads.map(|config| HeadOrder {
                    head_dim: config.head_dim,
                    rotary_dim: config.rope.rotary_dim,
                }),
            };
            Ok((name + suffix, stored))
        })
        .collect()
    }
}

/// Whether the tensor has rotary frequencies, which are part of the config.
fn is_rotation(name: &str) -> bool {
    name == "rope_freqs.weight" || name.ends_with(".attn_rot_embd.weight")
}

/// `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`.
fn hugging_face(name: &str) -> Option<String> {
    const WHOLE: [(&str, &str); 3] = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    const PARTS: [(&str, &str); 11] = [
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    if let Some((_, name)) = WHOLE.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*name).to_owned());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, suffix) = rest.split_once('.')?;
    let (_, part) = PARTS.iter().find(|(gguf, _)| *gguf == part)?;
    Some(format!("model.layers.{layer}.{part}.{suffix}"))
}
