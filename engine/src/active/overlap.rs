//! The sample request for a request's next row, while the device still samples the token before it.

use hearth_forward::SampleRequest;

use super::request::ActiveRequest;

/// What to do after the token that the device is sampling.
#[derive(Debug)]
pub(crate) enum NextSample {
    /// Sample another token like this, unless the one being sampled ends the request.
    Request(SampleRequest),
    /// Nothing: the token being sampled is the last.
    Nothing,
    /// It depends on the token that is being sampled.
    Unknown,
}

impl ActiveRequest {
    /// What to do after the token that the device is sampling.
    pub fn next_sample(&self) -> NextSample {
        if self.outcome.is_some() || self.remaining() == 1 || self.is_sending() {
            return NextSample::Nothing;
        }
        match &self.sampler {
            Some(sampler) if self.grammar.is_none() && !sampler.depends_on_output() => {
                let params = sampler.sample_params(self.output_len() + 1, None);
                NextSample::Request(SampleRequest::Token(params))
            }
            _ => NextSample::Unknown,
        }
    }
}
