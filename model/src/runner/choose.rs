//! Tokens that are chosen on the device.

use burn::tensor::{Int, Tensor};
use hearth_forward::SampleParams as Choice;
use hearth_shaders::{Fetched, Kernels};

use super::check::{below, length};
use super::{ForwardError, Wish, all_to_host};
use crate::transformer::{indices, primitive};

/// What is computed of the rows to choose at.
pub struct Chosen<B: Kernels> {
    /// Of all rows, those that want no token too; -1 where there is none.
    tokens: Option<Fetched>,
    /// Which of them are wanted.
    wanted: Vec<usize>,
    /// In parts, one below another.
    undecided: Vec<Tensor<B, 2>>,
}

impl<B: Kernels> Default for Chosen<B> {
    fn default() -> Self {
        Self {
            tokens: None,
            wanted: Vec::new(),
            undecided: Vec::new(),
        }
    }
}

/// The tokens that a forward chose, on the device, for the forward after it: `[rows]`, -1 where
/// there is none.
#[derive(Debug)]
pub struct Latest<B: Kernels>(Option<Tensor<B, 1, Int>>);

impl<B: Kernels> Latest<B> {
    pub fn none() -> Self {
        Self(None)
    }

    /// The input ids that are at its rows `carried`; `None` if nothing is carried.
    pub fn carry(
        &self,
        carried: &[u32],
        device: &B::Device,
    ) -> Result<Option<Tensor<B, 1, Int>>, ForwardError> {
        if carried.is_empty() {
            return Ok(None);
        }
        let rows = self.0.as_ref().map_or(0, |tokens| tokens.dims()[0]);
        below("carried row", carried, rows)?;
        let tokens = self.0.clone().map(|tokens| {
            let in_place = (0..rows as u32).eq(carried.iter().copied());
            let ids = match in_place {
                true => tokens,
                false => tokens.select(0, indices(carried, device)),
            };
            // Where there is none, any will do: its request has failed.
            ids.clamp_min(0)
        });
        Ok(tokens)
    }
}

impl<B: Kernels> Chosen<B> {
    /// Has the device do as `wishes` say about the rows of `parts`, `[rows, vocab]` one below
    /// another. Also returns what can be carried to the next forward.
    pub fn enqueue(
        parts: Vec<Tensor<B, 2>>,
        wishes: Vec<Wish>,
        device: &B::Device,
    ) -> Result<(Self, Latest<B>), ForwardError> {
        let rows = parts.iter().map(|part| part.dims()[0]).sum();
        length("wishes", wishes.len(), rows)?;
        let (mut wanted, mut wished, mut choices) = (Vec::new(), Vec::new(), Vec::new());
        for (row, wish) in wishes.into_iter().enumerate() {
            // A row costs less than to leave it out.
            let mut choice = Choice::GREEDY;
            match wish {
                Wish::Token(given) => {
                    wanted.push(row);
                    choice = given;
                }
                Wish::Logits => wished.push(row),
                Wish::Nothing => {}
            }
            choices.push(choice);
        }
        let (mut tokens, mut undecided, mut first) = (Vec::new(), Vec::new(), 0);
        for logits in parts {
            let [rows, vocab] = logits.dims();
            let part = first..first + rows;
            if !wanted.is_empty() {
                let plan = hearth_shaders::sample_plan::<B>(&choices[part.clone()], vocab, device);
                let chosen = B::sample(primitive(logits.clone()), plan);
                tokens.push(Tensor::<B, 1, Int>::from_primitive(chosen));
            }
            let of_part = wished.iter().filter(|row| part.contains(row));
            let of_part: Vec<u32> = of_part.map(|row| (row - first) as u32).collect();
            if !of_part.is_empty() {
                undecided.push(logits.select(0, indices(&of_part, device)));
            }
            first = part.end;
        }
        let tokens = match tokens.len() {
            0 | 1 => tokens.pop(),
            _ => Some(Tensor::cat(tokens, 0)),
        };
        let fetched = tokens.clone().map(|ids| B::fetch(ids.into_primitive()));
        let chosen = Self {
            tokens: fetched,
            wanted,
            undecided,
        };
        Ok((chosen, Latest(tokens)))
    }

    /// The tokens, and the rows of logits that were wished for.
    pub fn read(self) -> Result<(Vec<Option<u32>>, Vec<f32>), ForwardError> {
        let undecided = all_to_host(self.undecided)?;
        let Some(tokens) = self.tokens else {
            return Ok((Vec::new(), undecided));
        };
        let tokens = tokens().map_err(ForwardError::Device)?;
        // There is none where it is negative.
        let token = |row: &usize| u32::try_from(tokens[*row]).ok();
        Ok((self.wanted.iter().map(token).collect(), undecided))
    }
}
