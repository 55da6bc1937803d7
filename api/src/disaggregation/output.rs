//! The output of a prefill server as bytes. Log-probabilities travel as the bits of their floats,
//! so that both servers give the same ones.

use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::{RemoteOutput, RemoteToken};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Output {
    cached_tokens: usize,
    prompt_logprobs: Vec<Option<Logprobs>>,
    forced: Vec<Logprobs>,
    sampled: Option<Sampled>,
}

#[derive(Serialize, Deserialize)]
struct Sampled {
    id: u32,
    logprob: Option<Logprobs>,
}

/// Tokens with the bits of their log-probabilities.
#[derive(Serialize, Deserialize)]
struct Logprobs {
    of: (u32, u32),
    top: Vec<(u32, u32)>,
    asked: Vec<(u32, u32)>,
}

impl From<&TokenLogprobs> for Logprobs {
    fn from(logprobs: &TokenLogprobs) -> Self {
        let bits = |&(token, logprob): &(u32, f32)| (token, logprob.to_bits());
        Self {
            of: (logprobs.token, logprobs.logprob.to_bits()),
            top: logprobs.top.iter().map(bits).collect(),
            asked: logprobs.asked.iter().map(bits).collect(),
        }
    }
}

impl From<Logprobs> for TokenLogprobs {
    fn from(logprobs: Logprobs) -> Self {
        let float = |(token, bits)| (token, f32::from_bits(bits));
        Self {
            token: logprobs.of.0,
            logprob: f32::from_bits(logprobs.of.1),
            top: logprobs.top.into_iter().map(float).collect(),
            asked: logprobs.asked.into_iter().map(float).collect(),
        }
    }
}

pub(super) fn encode(output: &RemoteOutput) -> Vec<u8> {
    let prompt = output.prompt_logprobs.iter();
    let output = Output {
        cached_tokens: output.cached_tokens,
        prompt_logprobs: prompt
            .map(|entry| entry.as_ref().map(Logprobs::from))
            .collect(),
        forced: output.forced.iter().map(Logprobs::from).collect(),
        sampled: output.sampled.as_ref().map(|token| Sampled {
            id: token.id,
            logprob: token.logprob.as_ref().map(Logprobs::from),
        }),
    };
    serde_json::to_vec(&output).expect("numbers and lists of numbers can be written")
}

/// # Errors
/// The bytes are not what [`encode`] writes.
pub(super) fn decode(bytes: &[u8]) -> Result<RemoteOutput, serde_json::Error> {
    let output: Output = serde_json::from_slice(bytes)?;
    let prompt = output.prompt_logprobs.into_iter();
    Ok(RemoteOutput {
        cached_tokens: output.cached_tokens,
        prompt_logprobs: prompt.map(|entry| entry.map(TokenLogprobs::from)).collect(),
        forced: output.forced.into_iter().map(TokenLogprobs::from).collect(),
        sampled: output.sampled.map(|token| RemoteToken {
            id: token.id,
            logprob: token.logprob.map(TokenLogprobs::from),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_the_same_afterwards_to_the_last_bit() {
        let logprobs = |token| TokenLogprobs {
            token,
            logprob: -0.1,
            top: vec![(token, f32::MIN_POSITIVE), (7, f32::NEG_INFINITY)],
            asked: vec![(3, -1e-30)],
        };
        let output = RemoteOutput {
            cached_tokens: 5,
            prompt_logprobs: vec![None, Some(logprobs(1))],
            forced: vec![logprobs(2)],
            sampled: Some(RemoteToken {
                id: 9,
                logprob: Some(logprobs(9)),
            }),
        };
        assert_eq!(decode(&encode(&output)).unwrap(), output);
        let empty = RemoteOutput::default();
        assert_eq!(decode(&encode(&empty)).unwrap(), empty);
        assert!(decode(b"{}").is_err());
    }
}
