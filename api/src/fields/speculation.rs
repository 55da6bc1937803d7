//! The request fields of speculative decoding. They have no influence on an output, only on how
//! fast it is generated.

use serde::Deserialize;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::messages::Content;
use crate::prompt;
use crate::served::Served;

/// OpenAI's `prediction`: a text that the output may be like.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    r#type: String,
    content: Content,
}

/// The fields as the request has them.
#[derive(Debug, Default)]
pub struct SpeculationFields {
    pub speculative: Option<bool>,
    pub prediction: Option<Prediction>,
}

/// The fields as the engine takes them.
#[derive(Clone, Debug, Default)]
pub struct Drafting {
    /// Nothing is drafted for the request.
    pub off: bool,
    /// Token ids that the output may be like.
    pub prediction: Vec<u32>,
}

impl SpeculationFields {
    /// # Errors
    /// 400 for `speculative: true` where the server does not speculate, and for a prediction of
    /// another type than text, or too long for the context.
    pub fn drafting(&self, served: &Served) -> Result<Drafting, ApiError> {
        let speculates = served.engine.speculation().is_some();
        if self.speculative == Some(true) && !speculates {
            let bound = "false or left out: this server runs without speculative decoding \
                         (--speculative-config)";
            return Err(out_of_bounds("speculative", bound, true));
        }
        let off = self.speculative == Some(false) || !speculates;
        let prediction = match &self.prediction {
            None => Vec::new(),
            Some(prediction) if prediction.r#type != "content" => {
                let given = format!("{:?}", prediction.r#type);
                return Err(out_of_bounds("prediction.type", "\"content\"", given));
            }
            Some(_) if off => Vec::new(),
            Some(prediction) => {
                let Content(text) = &prediction.content;
                prompt::encode(served, "prediction.content", text, false)?
            }
        };
        Ok(Drafting { off, prediction })
    }
}
