//! A Hearth server, or SGLang's, through its own `/generate`.

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use crate::backends::chats::chat;
use crate::backends::wire::{common_length, field, finish, given, stop, text};
use crate::http::Client;
use crate::lang::backend::{
    Backend, Call, Completion, Output, Prompt, Scores, Sink, TokenLogprob, Usage,
};
use crate::lang::{ChoiceLogprobs, Error};
use crate::message::{Message, Role};

/// A Hearth server or SGLang's: every feature of the language but images. Texts go to `/generate`,
/// and conversations to `/v1/chat/completions`, where the server's chat template is.
#[derive(Clone, Debug)]
pub struct Server {
    client: Client,
}

impl Server {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn generate_text(
        &self,
        text: &str,
        call: &Call,
        sink: Sink<'_>,
    ) -> Result<Completion, Error> {
        let mut body = json!({
            "text": text,
            "sampling_params": params(call),
            "stream": call.stream,
        });
        if call.n > 1 {
            body["sampling_params"]["n"] = json!(call.n);
        }
        if let Some(top) = call.logprobs {
            body["return_logprob"] = json!(true);
            body["top_logprobs_num"] = json!(top);
            body["return_text_in_logprobs"] = json!(true);
        }
        if !call.stream {
            return completion(&self.client.post("/generate", &body).await?);
        }
        let mut events = self.client.stream("/generate", &body).await?;
        let (mut seen, mut last) = (0, None);
        while let Some(event) = events.next().await? {
            // Every event has the whole text so far.
            let whole = event["text"].as_str().unwrap_or_default();
            let news = whole.get(seen..).unwrap_or_default();
            if !news.is_empty() {
                sink(news);
                seen = whole.len();
            }
            last = Some(event);
        }
        let ended = || Error::Transport("the stream ended without an event".to_owned());
        completion(&last.ok_or_else(ended)?)
    }

    async fn generate_message(
        &self,
        messages: &[Message],
        call: &Call,
        sink: Sink<'_>,
    ) -> Result<Completion, Error> {
        let mut body = Value::Object(chat_fields(call));
        body["messages"] = json!(messages);
        if messages
            .last()
            .is_some_and(|last| last.role == Role::Assistant)
        {
            body["continue_final_message"] = json!(true);
            body["add_generation_prompt"] = json!(false);
        }
        chat(&self.client, body, call, sink).await
    }

    /// The token ids of `prompt`, and those of it with each of `choices`.
    async fn tokens(
        &self,
        prompt: &Prompt,
        choices: &[String],
    ) -> Result<(Vec<u32>, Vec<Vec<u32>>), Error> {
        let (before, begun) = match prompt {
            Prompt::Text(text) => (Vec::new(), text.as_str()),
            Prompt::Chat(messages) => {
                let (messages, begun) = match messages.split_last() {
                    Some((last, rest)) if last.role == Role::Assistant => {
                        (rest, last.content.as_str())
                    }
                    _ => (messages.as_slice(), ""),
                };
                let body = json!({"messages": messages, "add_generation_prompt": true});
                let answer = self.client.post("/tokenize", &body).await?;
                (ids(field(&answer, "/tokens")?)?, begun)
            }
        };
        let texts = choices.iter().map(|choice| format!("{begun}{choice}"));
        let texts: Vec<String> = std::iter::once(begun.to_owned()).chain(texts).collect();
        let special = matches!(prompt, Prompt::Text(_));
        let body = json!({"prompt": texts, "add_special_tokens": special});
        let answer = self.client.post("/tokenize", &body).await?;
        let lists = field(&answer, "/tokens")?.as_array();
        let lists = lists.into_iter().flatten().map(|list| {
            let mut all = before.clone();
            all.extend(ids(list)?);
            Ok::<_, Error>(all)
        });
        let mut lists = lists.collect::<Result<Vec<_>, Error>>()?;
        if lists.len() != texts.len() {
            let message = "the server tokenised another number of texts than it was given";
            return Err(Error::Transport(message.to_owned()));
        }
        let prompt = lists.remove(0);
        Ok((prompt, lists))
    }
}

fn ids(list: &Value) -> Result<Vec<u32>, Error> {
    let wrong = |error| Error::Transport(format!("the server sent invalid token ids: {error}"));
    serde_json::from_value(list.clone()).map_err(wrong)
}

/// SGLang's `sampling_params`.
fn params(call: &Call) -> Map<String, Value> {
    let sampling = &call.sampling;
    // SGLang takes a schema as a text only.
    let schema = call.format.json_schema.as_ref().map(Value::to_string);
    let ids = &sampling.stop_token_ids;
    given([
        ("max_new_tokens", json!(sampling.limit())),
        ("min_new_tokens", json!(sampling.min_tokens)),
        ("stop", stop(&sampling.stop)),
        ("stop_regex", stop(&sampling.stop_regex)),
        (
            "stop_token_ids",
            if ids.is_empty() {
                Value::Null
            } else {
                json!(ids)
            },
        ),
        ("temperature", json!(sampling.temperature)),
        ("top_p", json!(sampling.top_p)),
        ("top_k", json!(sampling.top_k)),
        ("min_p", json!(sampling.min_p)),
        ("frequency_penalty", json!(sampling.frequency_penalty)),
        ("presence_penalty", json!(sampling.presence_penalty)),
        ("repetition_penalty", json!(sampling.repetition_penalty)),
        ("ignore_eos", json!(sampling.ignore_eos)),
        ("sampling_seed", json!(sampling.seed)),
        ("regex", json!(call.format.regex)),
        ("json_schema", json!(schema)),
    ])
}

/// The same for chats, whose names are OpenAI's.
fn chat_fields(call: &Call) -> Map<String, Value> {
    let mut fields = params(call);
    for (sglang, openai) in [
        ("max_new_tokens", "max_tokens"),
        ("min_new_tokens", "min_tokens"),
        ("sampling_seed", "seed"),
    ] {
        if let Some(value) = fields.remove(sglang) {
            fields.insert(openai.to_owned(), value);
        }
    }
    fields.remove("json_schema");
    if let Some(schema) = &call.format.json_schema {
        let format = json!({
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema},
        });
        fields.insert("response_format".to_owned(), format);
    }
    fields
}

/// The outputs of an answer, which is a list where several were asked for.
fn completion(answer: &Value) -> Result<Completion, Error> {
    let answers = match answer {
        Value::Array(answers) => answers.as_slice(),
        one => std::slice::from_ref(one),
    };
    let outputs = answers.iter().map(output);
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let mut usages = answers
        .iter()
        .map(|answer| meta_usage(&answer["meta_info"]));
    let mut usage = usages.next().unwrap_or_default();
    // Each answer counts the tokens of the one prompt.
    usages.for_each(|other| usage.completion_tokens += other.completion_tokens);
    Ok(Completion::of(outputs, usage))
}

fn output(answer: &Value) -> Result<Output, Error> {
    let meta = field(answer, "/meta_info")?;
    let reason = &meta["finish_reason"];
    if reason["type"] == "abort" {
        let message = reason["message"].as_str().unwrap_or("it was aborted");
        let status = reason["status_code"].as_u64().unwrap_or(500);
        return Err(Error::Refused {
            status: u16::try_from(status).unwrap_or(500),
            message: message.to_owned(),
        });
    }
    let list = |name: &str| meta[name].as_array().into_iter().flatten();
    // Log-probability, id and text.
    let pair = |token: &Value| {
        let text = token[2].as_str().unwrap_or_default();
        (text.to_owned(), token[0].as_f64().unwrap_or_default())
    };
    let mut tops = list("output_top_logprobs");
    let tokens = list("output_token_logprobs").map(|token| {
        let (token, logprob) = pair(token);
        let top = tops.next().and_then(Value::as_array);
        TokenLogprob {
            token,
            logprob,
            top: top.into_iter().flatten().map(pair).collect(),
        }
    });
    Ok(Output {
        text: text(answer, "/text")?.to_owned(),
        finish: finish(&reason["type"]),
        logprobs: tokens.collect(),
    })
}

fn meta_usage(meta: &Value) -> Usage {
    let count = |name: &str| meta[name].as_u64().unwrap_or(0);
    Usage {
        prompt_tokens: count("prompt_tokens"),
        cached_tokens: count("cached_tokens"),
        completion_tokens: count("completion_tokens"),
    }
}

#[async_trait]
impl Backend for Server {
    fn name(&self) -> &str {
        "server"
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        match &call.prompt {
            Prompt::Text(text) => self.generate_text(text, call, sink).await,
            Prompt::Chat(messages) => self.generate_message(messages, call, sink).await,
        }
    }

    /// The texts are tokenised first, which computes nothing. Then one request scores all choices,
    /// from the first token on in which they differ, so that the prefix cache serves the tokens
    /// before.
    async fn score(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, Error> {
        let (prefix, lists) = self.tokens(prompt, choices).await?;
        let mut all = lists.clone();
        all.push(prefix);
        let common = common_length(&all);
        if common == 0 {
            let message = "`select` needs text before it";
            return Err(Error::Misuse(message.to_owned()));
        }
        let mut inputs = lists.clone();
        let mut starts = vec![common - 1; lists.len()];
        if unconditional {
            inputs.extend(lists.iter().map(|list| list[common..].to_vec()));
            starts.extend(vec![0; lists.len()]);
        }
        let body = json!({
            "input_ids": inputs,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": true,
            "logprob_start_len": starts,
        });
        let answers = self.client.post("/generate", &body).await?;
        let answers = answers.as_array().cloned().unwrap_or_default();
        if answers.len() != inputs.len() {
            let message = "the server scored another number of texts than it was given";
            return Err(Error::Transport(message.to_owned()));
        }
        let logprobs = |answer: &Value| -> Vec<f64> {
            let pairs = answer["meta_info"]["input_token_logprobs"].as_array();
            let pairs = pairs.into_iter().flatten();
            pairs.map(|pair| pair[0].as_f64().unwrap_or(0.0)).collect()
        };
        let mut scores = Scores::default();
        for (index, list) in lists.iter().enumerate() {
            // The first is the last common token, which has no log-probability.
            let after = logprobs(&answers[index]).split_off(1.min(list.len()));
            if after.len() != list.len() - common {
                let message = "the server sent another number of log-probabilities than tokens";
                return Err(Error::Transport(message.to_owned()));
            }
            let alone = answers.get(lists.len() + index).map(logprobs);
            scores.choices.push(ChoiceLogprobs {
                logprobs: after,
                unconditional: alone.unwrap_or_default(),
            });
        }
        for answer in &answers {
            scores.usage += meta_usage(&answer["meta_info"]);
        }
        Ok(scores)
    }

    async fn cache(&self, prompt: &Prompt) -> Result<(), Error> {
        let mut body = json!({"sampling_params": {"max_new_tokens": 0, "temperature": 0.0}});
        match prompt {
            Prompt::Text(text) => body["text"] = json!(text),
            Prompt::Chat(_) => {
                let (ids, _) = self.tokens(prompt, &[]).await?;
                body["input_ids"] = json!(ids);
            }
        }
        self.client.post("/generate", &body).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::{Format, Sampling};

    fn call() -> Call {
        Call {
            prompt: Prompt::Text(String::new()),
            sampling: Sampling {
                stop: vec!["\n".to_owned()],
                seed: Some(7),
                ..Sampling::default()
            },
            format: Format {
                regex: None,
                json_schema: Some(json!({"type": "object"})),
            },
            n: 1,
            logprobs: None,
            stream: false,
            tokens: false,
        }
    }

    #[test]
    fn a_text_has_sglangs_names_and_a_chat_openais() {
        let expected = json!({
            "max_new_tokens": 128, "stop": ["\n"], "sampling_seed": 7,
            "json_schema": "{\"type\":\"object\"}",
        });
        assert_eq!(Value::Object(params(&call())), expected);
        let chat = Value::Object(chat_fields(&call()));
        assert_eq!(
            (&chat["max_tokens"], &chat["seed"]),
            (&json!(128), &json!(7))
        );
        let schema = &chat["response_format"]["json_schema"]["schema"];
        assert_eq!(schema, &json!({"type": "object"}));
    }

    #[test]
    fn several_outputs_are_a_list_and_have_their_log_probabilities() {
        let one = |text: &str| {
            json!({"text": text, "meta_info": {
                "finish_reason": {"type": "length"}, "prompt_tokens": 5, "completion_tokens": 1,
                "output_token_logprobs": [[-0.5, 7, text]],
                "output_top_logprobs": [[[-0.5, 7, text], [-1.5, 8, "z"]]],
            }})
        };
        let whole = completion(&json!([one("a"), one("b")])).unwrap();
        assert_eq!(
            (whole.text.as_str(), whole.others[0].text.as_str()),
            ("a", "b")
        );
        assert_eq!(
            (whole.usage.prompt_tokens, whole.usage.completion_tokens),
            (5, 2)
        );
        let expected = TokenLogprob {
            token: "b".to_owned(),
            logprob: -0.5,
            top: vec![("b".to_owned(), -0.5), ("z".to_owned(), -1.5)],
        };
        assert_eq!(whole.others[0].logprobs, [expected]);
    }

    #[test]
    fn an_aborted_request_is_an_error() {
        let reason = json!({"type": "abort", "message": "queue full", "status_code": 503});
        let answer = json!({"text": "", "meta_info": {"finish_reason": reason}});
        assert!(completion(&answer).unwrap_err().is_transient());
    }
}
