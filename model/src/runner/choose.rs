//! Tokens that are chosen on the device.

use burn::tensor::{Int, Tensor};
use hearth_shaders::{Choice, Kernels};

use super::check::length;
use super::{ForwardError, Wish, to_host};
use crate::transformer::{indices, primitive};

/// What is computed of the rows to choose at.
pub struct Chosen<B: Kernels> {
    /// Of all rows, those that want no token too; -1 where there is none.
    tokens: Option<Tensor<B, 1, Int>>,
    /// Which of them are wanted.
    wanted: Vec<usize>,
    undecided: Option<Tensor<B, 2>>,
}

impl<B: Kernels> Default for Chosen<B> {
    fn default() -> Self {
        Self {
            tokens: None,
            wanted: Vec::new(),
            undecided: None,
        }
    }
}

impl<B: Kernels> Chosen<B> {
    /// Has the device do as `wishes` say about the rows of `logits` `[rows, vocab]`.
    pub fn enqueue(
        logits: Tensor<B, 2>,
        wishes: Vec<Wish>,
        device: &B::Device,
    ) -> Result<Self, ForwardError> {
        let [rows, vocab] = logits.dims();
        length("wishes", wishes.len(), rows)?;
        let (mut wanted, mut undecided, mut choices) = (Vec::new(), Vec::new(), Vec::new());
        for (row, wish) in wishes.into_iter().enumerate() {
            // A row costs less than to leave it out.
            let mut choice = Choice::LIKELIEST;
            match wish {
                Wish::Token(given) => {
                    wanted.push(row);
                    choice = given;
                }
                Wish::Logits => undecided.push(row as u32),
                Wish::Nothing => {}
            }
            choices.push(choice);
        }
        let tokens = (!wanted.is_empty()).then(|| {
            let plan = hearth_shaders::plan::<B>(&choices, vocab, device);
            Tensor::from_primitive(B::choose(primitive(logits.clone()), plan))
        });
        let undecided =
            (!undecided.is_empty()).then(|| logits.select(0, indices(&undecided, device)));
        Ok(Self {
            tokens,
            wanted,
            undecided,
        })
    }

    /// The tokens, and the rows of logits that were wished for.
    pub fn read(self) -> Result<(Vec<Option<u32>>, Vec<f32>), ForwardError> {
        let undecided = self.undecided.map_or_else(|| Ok(Vec::new()), to_host)?;
        let Some(tokens) = self.tokens else {
            return Ok((Vec::new(), undecided));
        };
        let data = tokens
            .try_into_data()
            .map_err(|error| ForwardError::Device(error.to_string()))?;
        let tokens: Vec<i32> = data
            .convert::<i32>()
            .into_vec()
            .map_err(|error| ForwardError::Device(format!("{error:?}")))?;
        // There is none where it is negative.
        let token = |row: &usize| u32::try_from(tokens[*row]).ok();
        Ok((self.wanted.iter().map(token).collect(), undecided))
    }
}
