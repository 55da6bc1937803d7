//! Sampling on the device.

use burn::tensor::{Int, Tensor};
use hearth_forward::{ForwardError, SampleParams, SampleRequest};
use hearth_shaders::{Fetched, Kernels, sample_plan};

use super::check::{below, length};
use super::read_back::all_to_host;
use crate::transformer::{indices, primitive};

/// Sampling that was submitted: the tokens and the rows of logits that will be read back.
pub(super) struct Sampling<B: Kernels> {
    /// A token for every row, also for rows that requested none; -1 where no token may be
    /// sampled. `None` if no row requested a token.
    tokens: Option<Fetched>,
    /// The rows that requested a token.
    token_rows: Vec<usize>,
    /// The rows that requested their logits, in parts one below another.
    logits: Vec<Tensor<B, 2>>,
}

impl<B: Kernels> Default for Sampling<B> {
    fn default() -> Self {
        Self {
            tokens: None,
            token_rows: Vec::new(),
            logits: Vec::new(),
        }
    }
}

/// The tokens that a forward pass samples, kept on the device for the next forward pass:
/// `[sample_rows]`, -1 where no token may be sampled.
#[derive(Debug)]
pub(super) struct SampledTokens<B: Kernels>(Option<Tensor<B, 1, Int>>);

impl<B: Kernels> SampledTokens<B> {
    pub fn none() -> Self {
        Self(None)
    }

    /// The input ids that a batch takes from these tokens, one for each of its `carried_rows`;
    /// `None` if it takes none.
    pub fn carry(
        &self,
        carried_rows: &[u32],
        device: &B::Device,
    ) -> Result<Option<Tensor<B, 1, Int>>, ForwardError> {
        if carried_rows.is_empty() {
            return Ok(None);
        }
        let rows = self.0.as_ref().map_or(0, |tokens| tokens.dims()[0]);
        below("carried row", carried_rows, rows)?;
        let tokens = self.0.clone().map(|tokens| {
            let in_place = (0..rows as u32).eq(carried_rows.iter().copied());
            let ids = match in_place {
                true => tokens,
                false => tokens.select(0, indices(carried_rows, device)),
            };
            // Where no token was sampled, any id will do, because the request has failed.
            ids.clamp_min(0)
        });
        Ok(tokens)
    }
}

impl<B: Kernels> Sampling<B> {
    /// Submits what `requests` ask for: one request for each row of `parts`, which are
    /// `[rows, vocab]` one below another. Also returns the tokens that the next forward pass may
    /// carry.
    pub fn enqueue(
        parts: Vec<Tensor<B, 2>>,
        requests: Vec<SampleRequest>,
        device: &B::Device,
    ) -> Result<(Self, SampledTokens<B>), ForwardError> {
        let rows = parts.iter().map(|part| part.dims()[0]).sum();
        length("sample requests", requests.len(), rows)?;
        let (mut token_rows, mut logit_rows, mut params) = (Vec::new(), Vec::new(), Vec::new());
        for (row, request) in requests.into_iter().enumerate() {
            // Sampling a row that needs no token costs less than leaving it out.
            let mut of_row = SampleParams::GREEDY;
            match request {
                SampleRequest::Token(given) => {
                    token_rows.push(row);
                    of_row = given;
                }
                SampleRequest::Logits => logit_rows.push(row),
                SampleRequest::Nothing => {}
            }
            params.push(of_row);
        }
        let (mut tokens, mut logits, mut first) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let [rows, vocab] = part.dims();
            let within = first..first + rows;
            if !token_rows.is_empty() {
                let plan = sample_plan::<B>(&params[within.clone()], vocab, device);
                let sampled = B::sample(primitive(part.clone()), plan);
                tokens.push(Tensor::<B, 1, Int>::from_primitive(sampled));
            }
            let of_part = logit_rows.iter().filter(|row| within.contains(row));
            let of_part: Vec<u32> = of_part.map(|row| (row - first) as u32).collect();
            if !of_part.is_empty() {
                logits.push(part.select(0, indices(&of_part, device)));
            }
            first = within.end;
        }
        let tokens = match tokens.len() {
            0 | 1 => tokens.pop(),
            _ => Some(Tensor::cat(tokens, 0)),
        };
        let fetched = tokens.clone().map(|ids| B::fetch(ids.into_primitive()));
        let sampling = Self {
            tokens: fetched,
            token_rows,
            logits,
        };
        Ok((sampling, SampledTokens(tokens)))
    }

    /// Waits for the requested tokens and rows of logits.
    pub fn read(self) -> Result<(Vec<Option<u32>>, Vec<f32>), ForwardError> {
        let logits = all_to_host(self.logits)?;
        let Some(tokens) = self.tokens else {
            return Ok((Vec::new(), logits));
        };
        let tokens = tokens().map_err(ForwardError::Device)?;
        // A negative id stands for no token.
        let token = |row: &usize| u32::try_from(tokens[*row]).ok();
        Ok((self.token_rows.iter().map(token).collect(), logits))
    }
}
