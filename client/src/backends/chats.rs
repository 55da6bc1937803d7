//! Chats in OpenAI's form, as several servers have them.

use serde_json::{Value, json};

use crate::backends::wire::{choices, field, finish, usage};
use crate::http::{Client, Events};
use crate::lang::Error;
use crate::lang::backend::{Call, Completion, Output, Sink, TokenLogprob};

const PATH: &str = "/v1/chat/completions";

/// Sends `body`, which has the messages and the sampling fields of `call`, and takes the answer.
///
/// # Errors
/// The server refuses the request, or its answer is not understood.
pub async fn chat(
    client: &Client,
    mut body: Value,
    call: &Call,
    sink: Sink<'_>,
) -> Result<Completion, Error> {
    if call.n > 1 {
        body["n"] = json!(call.n);
    }
    if call.tokens || call.logprobs.is_some() {
        body["logprobs"] = json!(true);
    }
    if let Some(top @ 1..) = call.logprobs {
        body["top_logprobs"] = json!(top);
    }
    if call.stream {
        return streamed(client, body, sink).await;
    }
    let answer = client.post(PATH, &body).await?;
    let outputs = choices(&answer)?.into_iter().map(output);
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let mut whole = Completion::of(outputs, usage(&answer["usage"]));
    if call.tokens {
        let texts = whole.logprobs.iter().map(|token| token.token.clone());
        whole.tokens = Some(texts.collect()).filter(|texts: &Vec<_>| !texts.is_empty());
    }
    Ok(whole)
}

fn output(choice: &Value) -> Result<Output, Error> {
    let message = choice.pointer("/message/content").and_then(Value::as_str);
    let tokens = choice.pointer("/logprobs/content");
    let tokens = tokens.and_then(Value::as_array).into_iter().flatten();
    let text = |token: &Value| token["token"].as_str().unwrap_or_default().to_owned();
    let logprob = |token: &Value| token["logprob"].as_f64().unwrap_or_default();
    let tokens = tokens.map(|token| {
        let top = token["top_logprobs"].as_array().into_iter().flatten();
        TokenLogprob {
            token: text(token),
            logprob: logprob(token),
            top: top.map(|token| (text(token), logprob(token))).collect(),
        }
    });
    Ok(Output {
        text: message.unwrap_or_default().to_owned(),
        finish: finish(field(choice, "/finish_reason")?),
        logprobs: tokens.collect(),
    })
}

async fn streamed(client: &Client, mut body: Value, sink: Sink<'_>) -> Result<Completion, Error> {
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut events = client.stream(PATH, &body).await?;
    let mut whole = Completion::default();
    while let Some(event) = events.next().await? {
        let news = Events::text_of(&event);
        if !news.is_empty() {
            sink(news);
            whole.text.push_str(news);
        }
        if let Some(reason @ Value::String(_)) = event.pointer("/choices/0/finish_reason") {
            whole.finish = finish(reason);
        }
        if event["usage"].is_object() {
            whole.usage = usage(&event["usage"]);
        }
    }
    Ok(whole)
}
