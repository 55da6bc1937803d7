//! OpenAI's completions, of any server that has them.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::backends::wire::{
    choices, common_length, field, finish, openai_sampling, refuse, text, usage,
};
use crate::http::Client;
use crate::lang::backend::{Backend, Call, Completion, Output, Prompt, Scores, Sink, TokenLogprob};
use crate::lang::{ChoiceLogprobs, Error};

const PATH: &str = "/v1/completions";

/// An API with OpenAI's `/v1/completions`: texts without roles, and nothing that OpenAI's API lacks.
/// `select` needs a server that echoes the log-probabilities of the prompt.
#[derive(Clone, Debug)]
pub struct CompletionsApi {
    client: Client,
    model: String,
}

impl CompletionsApi {
    pub fn new(client: Client, model: &str) -> Self {
        let model = model.to_owned();
        Self { client, model }
    }

    fn text_of<'a>(&self, prompt: &'a Prompt) -> Result<&'a str, Error> {
        match prompt {
            Prompt::Text(text) => Ok(text),
            Prompt::Chat(_) => Err(self.lacks("roles")),
        }
    }
}

#[async_trait]
impl Backend for CompletionsApi {
    fn name(&self) -> &str {
        "completions API"
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let prompt = self.text_of(&call.prompt)?;
        let lacking = [
            (call.format.regex.is_some(), "a regular expression"),
            (call.format.json_schema.is_some(), "a JSON Schema"),
        ];
        refuse(self, &lacking)?;
        let mut body = Value::Object(openai_sampling(self, call)?);
        body["model"] = json!(self.model);
        body["prompt"] = json!(prompt);
        body["max_tokens"] = json!(call.sampling.limit());
        if call.n > 1 {
            body["n"] = json!(call.n);
        }
        if let Some(top) = call.logprobs.or(call.tokens.then_some(1)) {
            body["logprobs"] = json!(top);
        }
        if !call.stream {
            let answer = self.client.post(PATH, &body).await?;
            let tokens = answer.pointer("/choices/0/logprobs/tokens");
            let tokens = tokens.and_then(|tokens| serde_json::from_value(tokens.clone()).ok());
            let outputs = choices(&answer)?.into_iter().map(output);
            let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
            return Ok(Completion {
                tokens,
                ..Completion::of(outputs, usage(&answer["usage"]))
            });
        }
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let mut events = self.client.stream(PATH, &body).await?;
        let mut whole = Completion::default();
        while let Some(event) = events.next().await? {
            let choice = &event["choices"][0];
            let news = choice["text"].as_str().unwrap_or_default();
            if !news.is_empty() {
                sink(news);
                whole.text.push_str(news);
            }
            if choice["finish_reason"].is_string() {
                whole.finish = finish(&choice["finish_reason"]);
            }
            if event["usage"].is_object() {
                whole.usage = usage(&event["usage"]);
            }
        }
        Ok(whole)
    }

    async fn score(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, Error> {
        let prompt = self.text_of(prompt)?;
        let after = choices.iter().map(|choice| format!("{prompt}{choice}"));
        let alone = choices.iter().filter(|_| unconditional).cloned();
        let texts: Vec<String> = after.chain(alone).collect();
        let body = json!({
            "model": self.model, "prompt": texts, "max_tokens": 0, "echo": true,
            "logprobs": 1, "temperature": 0.0,
        });
        let answer = self.client.post(PATH, &body).await?;
        let mut scored = vec![Vec::new(); texts.len()];
        for choice in answer["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or(0) as usize;
            let tokens = choice["logprobs"]["tokens"].as_array();
            let logprobs = choice["logprobs"]["token_logprobs"].as_array();
            let (Some(tokens), Some(logprobs)) = (tokens, logprobs) else {
                return Err(self.lacks("the log-probabilities of a prompt, which `select` needs"));
            };
            let pairs = tokens.iter().zip(logprobs);
            let pairs = pairs.map(|(token, logprob)| {
                (
                    token.as_str().unwrap_or_default().to_owned(),
                    logprob.as_f64(),
                )
            });
            if let Some(scored) = scored.get_mut(index) {
                *scored = pairs.collect();
            }
        }
        let common = common_tokens(&scored[..choices.len()], choices);
        let values = |scored: &[(String, Option<f64>)]| -> Vec<f64> {
            let logprobs = scored.iter();
            logprobs
                .map(|(_, logprob)| logprob.unwrap_or(0.0))
                .collect()
        };
        let each = (0..choices.len()).map(|index| ChoiceLogprobs {
            logprobs: values(&scored[index][common..]),
            unconditional: scored
                .get(choices.len() + index)
                .map(|alone| values(alone))
                .unwrap_or_default(),
        });
        Ok(Scores {
            choices: each.collect(),
            usage: usage(&answer["usage"]),
        })
    }
}

fn output(choice: &Value) -> Result<Output, Error> {
    let list = |name: &str| choice["logprobs"][name].as_array().into_iter().flatten();
    let (mut logprobs, mut tops) = (list("token_logprobs"), list("top_logprobs"));
    let tokens = list("tokens").map(|token| {
        let logprob = logprobs.next().and_then(Value::as_f64);
        let top = tops.next().and_then(Value::as_object).into_iter().flatten();
        let mut top: Vec<(String, f64)> = top
            .map(|(token, logprob)| (token.clone(), logprob.as_f64().unwrap_or_default()))
            .collect();
        top.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        TokenLogprob {
            token: token.as_str().unwrap_or_default().to_owned(),
            logprob: logprob.unwrap_or_default(),
            top,
        }
    });
    Ok(Output {
        text: text(choice, "/text")?.to_owned(),
        finish: finish(field(choice, "/finish_reason")?),
        logprobs: tokens.collect(),
    })
}

/// The tokens that all texts begin with and that end before the choices. It is counted from the
/// end, because some servers show the token that begins a text and others do not.
fn common_tokens(scored: &[Vec<(String, Option<f64>)>], choices: &[String]) -> usize {
    let pairs = scored.iter().zip(choices);
    let tokens = pairs.map(|(scored, choice)| {
        let all: usize = scored.iter().map(|(token, _)| token.len()).sum();
        let before = all.saturating_sub(choice.len());
        let mut bytes = 0;
        let within = scored.iter().take_while(|(token, _)| {
            bytes += token.len();
            bytes <= before
        });
        within.map(|(token, _)| token.clone()).collect()
    });
    common_length(&tokens.collect::<Vec<Vec<String>>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_reach_into_a_choice_are_scored() {
        let list = |tokens: &[&str]| -> Vec<(String, Option<f64>)> {
            tokens.iter().map(|&t| (t.to_owned(), Some(-1.0))).collect()
        };
        let plain = [
            list(&["<s>", "a ", "b", "c"]),
            list(&["<s>", "a ", "b", "d"]),
        ];
        assert_eq!(common_tokens(&plain, &["c", "d"].map(str::to_owned)), 3);
        let merged = [list(&["a ", "bc"]), list(&["a ", "b", "d"])];
        assert_eq!(common_tokens(&merged, &["c", "d"].map(str::to_owned)), 1);
    }
}
