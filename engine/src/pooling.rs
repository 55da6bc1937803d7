//! Embeddings: the hidden states of a prompt, pooled into one vector.

use std::ops::Range;

/// Which hidden states make an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The state of the last token, which has attended all others.
    #[default]
    Last,
    /// The mean of all states. Nothing of the prompt is reused from the cache, because hidden
    /// states are not cached.
    Mean,
}

/// An embedding under construction, position after position.
#[derive(Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    /// `[hidden_size]`, in f64 so that the many terms of a long prompt lose no precision.
    sum: Vec<f64>,
    /// Positions in the sum.
    added: usize,
}

impl Pool {
    pub fn new(pooling: Pooling) -> Self {
        Self {
            pooling,
            sum: Vec::new(),
            added: 0,
        }
    }

    /// How many tokens of the prompt may come from the cache.
    pub fn reusable(&self) -> usize {
        match self.pooling {
            Pooling::Last => usize::MAX,
            // States that were added before a preemption need not be computed again.
            Pooling::Mean => self.added,
        }
    }

    /// The positions within `computed` whose hidden states this embedding needs.
    pub fn wanted(&self, computed: Range<usize>, prompt_len: usize) -> Range<usize> {
        let first = match self.pooling {
            Pooling::Last => prompt_len - 1,
            Pooling::Mean => self.added,
        };
        let end = computed.end.min(prompt_len);
        first.clamp(computed.start, computed.end).min(end)..end
    }

    /// Adds the `[hidden_size]` hidden state of the next wanted position.
    pub fn add(&mut self, hidden: &[f32]) {
        self.sum.resize(hidden.len(), 0.0);
        for (sum, &value) in self.sum.iter_mut().zip(hidden) {
            *sum += f64::from(value);
        }
        self.added += 1;
    }

    /// The embedding, `[hidden_size]`.
    pub fn vector(self) -> Vec<f32> {
        let count = self.added.max(1) as f64;
        self.sum.iter().map(|sum| (sum / count) as f32).collect()
    }
}
