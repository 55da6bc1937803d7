//! Embeddings: a prompt's hidden states made into one vector.

use std::ops::Range;

/// Which hidden states make an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token, which has read all others.
    #[default]
    Last,
    /// The mean of all. Nothing of the prompt is reused from the cache, as hidden states
    /// are not kept there.
    Mean,
}

/// An embedding as it comes together, position after position.
#[derive(Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    /// Wide, so that a long prompt's many terms lose nothing.
    sum: Vec<f64>,
    /// Positions in it.
    taken: usize,
}

impl Pool {
    pub fn new(pooling: Pooling) -> Self {
        Self {
            pooling,
            sum: Vec::new(),
            taken: 0,
        }
    }

    /// How much of the prompt may come from the cache.
    pub fn reusable(&self) -> usize {
        match self.pooling {
            Pooling::Last => usize::MAX,
            // After a preemption, what was taken before it need not be computed again.
            Pooling::Mean => self.taken,
        }
    }

    /// The positions of `computed` that it needs.
    pub fn wanted(&self, computed: Range<usize>, prompt_len: usize) -> Range<usize> {
        let first = match self.pooling {
            Pooling::Last => prompt_len - 1,
            Pooling::Mean => self.taken,
        };
        let end = computed.end.min(prompt_len);
        first.clamp(computed.start, computed.end).min(end)..end
    }

    pub fn take(&mut self, hidden: &[f32]) {
        self.sum.resize(hidden.len(), 0.0);
        for (sum, &value) in self.sum.iter_mut().zip(hidden) {
            *sum += f64::from(value);
        }
        self.taken += 1;
    }

    /// `[hidden_size]`
    pub fn vector(self) -> Vec<f32> {
        let count = self.taken.max(1) as f64;
        self.sum.iter().map(|sum| (sum / count) as f32).collect()
    }
}
