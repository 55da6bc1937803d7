//! Embeddings for every dialect: pooled as the operator chose, and of unit length.

use actix_web::{HttpRequest, HttpResponse};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::wire::{Prompt, Prompts};
use crate::generate::{Job, check_sequences, submit};
use crate::middleware::request_id::RequestId;
use crate::prompt;
use crate::respond::{Whole, collected, written};
use crate::served::Served;
use crate::tally::Tally;

/// The token ids of each of the prompts in the field `input`. Texts get the tokens that begin and end a
/// document if `special` is true. With `most`, longer prompts lose their ends.
///
/// # Errors
/// 400 for too many prompts, an empty one, and a text that is too long for the context.
pub fn encode(
    served: &Served,
    input: Prompts,
    special: bool,
    most: Option<usize>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    check_sequences(served, input.0.given, 1, "input")?;
    let prompts = input.checked("input")?.into_iter().map(|given| {
        let mut ids = match given {
            Prompt::Text(text) => {
                // A longer text has more tokens than the context, so that its end is cut off anyway.
                let end = match most {
                    Some(_) => text.floor_char_boundary(served.max_prompt_bytes()),
                    None => text.len(),
                };
                prompt::encode(served, "input", &text[..end], special)?
            }
            Prompt::Tokens(ids) => ids,
        };
        ids.truncate(most.unwrap_or(usize::MAX));
        Ok(ids)
    });
    prompts.collect()
}

/// The job that computes the embeddings of `prompts`, which the dialect calls `field`.
///
/// # Errors
/// 400 for a prompt that does not fit the context.
pub fn job(served: &Served, prompts: Vec<Vec<u32>>, field: &'static str) -> Result<Job, ApiError> {
    let most = served.context() - 1;
    if let Some(prompt) = prompts.iter().find(|prompt| prompt.len() > most) {
        let message = format!(
            "`{field}` may have at most {most} tokens, got {}",
            prompt.len()
        );
        return Err(ApiError::context_length(field, message));
    }
    Ok(Job {
        prompts,
        copies: 1,
        pooling: Some(served.pooling),
        prompt_field: field,
        ..Job::default()
    })
}

/// The checked number of dimensions that a request asks for.
///
/// # Errors
/// 400 outside 1 to the width of the hidden states.
pub fn dimensions(served: &Served, given: Option<i64>) -> Result<Option<usize>, ApiError> {
    let Some(given) = given else { return Ok(None) };
    let most = served.info.hidden_size;
    match usize::try_from(given) {
        Ok(count) if (1..=most).contains(&count) => Ok(Some(count)),
        _ => Err(out_of_bounds(
            "dimensions",
            &format!("between 1 and {most}"),
            given,
        )),
    }
}

/// Computes the embeddings of `job`, each of `dimensions` numbers if that is given. The answer is the JSON
/// that `write` makes of them and of the number of prompt tokens.
///
/// # Errors
/// 503 when the server cannot take the request now, 500 for an embedding that is no number.
pub async fn answer(
    served: &Served,
    request: &HttpRequest,
    route: &'static str,
    job: Job,
    dimensions: Option<usize>,
    write: impl FnOnce(Vec<Vec<f32>>, usize) -> Vec<u8> + Send + 'static,
) -> Result<HttpResponse, ApiError> {
    let prompts = job.prompts.len();
    let updates = submit(served, job)?;
    let mut tally = Tally::new(RequestId::of(request), route, prompts, 1);
    let wholes = collected(updates, &mut tally).await?;
    let tokens = tally.usage().prompt_tokens;
    written(wholes, move |mut wholes| {
        let vectors = wholes.iter_mut().map(|whole| take(whole, dimensions));
        let vectors = vectors.collect::<Result<_, ApiError>>()?;
        Ok(write(vectors, tokens))
    })
    .await
}

/// The embedding of a finished request, cut to `dimensions` and then brought to unit length,
/// so that a dot product compares two of them.
///
/// # Errors
/// 500 when the model gave values that are no numbers (NaN or infinity).
pub fn take(whole: &mut Whole, dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
    let mut vector = std::mem::take(&mut whole.embedding);
    if let Some(dimensions) = dimensions {
        vector.truncate(dimensions);
    }
    let squares = vector.iter().map(|&x| f64::from(x) * f64::from(x));
    let length = squares.sum::<f64>().sqrt();
    if vector.is_empty() || !length.is_finite() {
        return Err(ApiError::internal("the model gave no finite embedding"));
    }
    if length > 0.0 {
        for value in &mut vector {
            *value = (f64::from(*value) / length) as f32;
        }
    }
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(embedding: &[f32], dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
        let mut whole = Whole {
            embedding: embedding.to_vec(),
            ..Whole::default()
        };
        take(&mut whole, dimensions)
    }

    #[test]
    fn an_embedding_is_cut_first_and_then_of_unit_length() {
        assert_eq!(taken(&[3.0, 4.0], None).unwrap(), [0.6, 0.8]);
        assert_eq!(taken(&[3.0, 4.0, 12.0], Some(2)).unwrap(), [0.6, 0.8]);
        assert_eq!(taken(&[0.0, 0.0], None).unwrap(), [0.0, 0.0]);
        // The square of this number is beyond f32.
        assert_eq!(taken(&[-1e30], None).unwrap(), [-1.0]);
    }

    #[test]
    fn what_is_no_number_is_the_models_failure() {
        for embedding in [&[f32::NAN, 1.0][..], &[f32::INFINITY], &[]] {
            assert_eq!(taken(embedding, None).unwrap_err().status, 500);
        }
    }
}
