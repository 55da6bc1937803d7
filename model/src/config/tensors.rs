//! Names and shapes of the tensors that a config asks a checkpoint for.

use super::ModelConfig;

impl ModelConfig {
    /// Every tensor of the model under its Hugging Face name, with its shape; matrices are
    /// `[output, input]`.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden_size;
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let bias = self.attention_bias;
        let projections = [
            ("self_attn.q_proj", query, hidden, bias.qkv),
            ("self_attn.k_proj", key, hidden, bias.qkv),
            ("self_attn.v_proj", key, hidden, bias.qkv),
            ("self_attn.o_proj", hidden, query, bias.output),
            (
                "mlp.gate_proj",
                self.intermediate_size,
                hidden,
                self.mlp_bias,
            ),
            ("mlp.up_proj", self.intermediate_size, hidden, self.mlp_bias),
            (
                "mlp.down_proj",
                hidden,
                self.intermediate_size,
                self.mlp_bias,
            ),
        ];
        let mut tensors = vec![(
            "model.embed_tokens.weight".to_owned(),
            vec![self.vocab_size, hidden],
        )];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: Vec<usize>| {
                tensors.push((format!("model.layers.{layer}.{name}"), shape));
            };
            add("input_layernorm.weight", vec![hidden]);
            add("post_attention_layernorm.weight", vec![hidden]);
            for (name, output, input, bias) in projections {
                add(&format!("{name}.weight"), vec![output, input]);
                if bias {
                    add(&format!("{name}.bias"), vec![output]);
                }
            }
            if self.qk_norm {
                add("self_attn.q_norm.weight", vec![self.head_dim]);
                add("self_attn.k_norm.weight", vec![self.head_dim]);
            }
        }
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tie_word_embeddings {
            tensors.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        tensors
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
