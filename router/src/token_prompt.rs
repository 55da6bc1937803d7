//! The token ids of a prompt, for workers whose cached tokens are known.
//!
//! A text is tokenised by one of these workers (`POST /tokenize`), because only a worker knows the
//! tokenizer and the chat template of its model.

use std::time::Duration;

use actix_web::web::Bytes;
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Deserialize;
use tokio::time::timeout;

use crate::body::Fields;
use crate::kv_index::TokenPrompt;
use crate::prompt::{LONGEST, Prompt};
use crate::select::Pool;
use crate::state::Router;
use crate::upstream::{Outgoing, Upstream};

/// Longest time that a request waits for its tokens; after it the worker is selected without.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer in bytes.
const LONGEST_ANSWER: usize = 64 << 20;

/// The tokens of a request's prompt, whose `headers` tell its API key; `None` if no worker of these
/// pools publishes KV events, or the tokens could not be found out.
pub async fn token_prompt(
    router: &Router,
    upstream: &Upstream,
    pools: &[&Pool],
    endpoint: &str,
    prompt: &Prompt,
    headers: &HeaderMap,
    body: &[u8],
) -> Option<TokenPrompt> {
    let mut workers = Vec::new();
    for pool in pools.iter().filter(|pool| pool.policy.needs_prompt()) {
        workers.extend(router.registry.of(pool.role));
    }
    workers.retain(|worker| worker.is_available() && worker.kv.is_followed());
    let worker = workers.into_iter().min_by_key(|worker| worker.load())?;
    let fields = Fields::parse(body).ok()?;
    let namespace = namespace(&fields);
    let is_isolated = worker.kv.is_isolated();
    if prompt.tokens && !is_isolated {
        let ids = prompt.units.clone();
        return Some(TokenPrompt { namespace, ids });
    }
    let mut headers = match is_isolated {
        true => keys_of(headers),
        false => router.own_headers(),
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let asked = Outgoing {
        method: Method::POST,
        url: format!("{}/tokenize", worker.url),
        headers,
        body: Some(Bytes::from(match prompt.tokens {
            // The answer has the namespace.
            true => r#"{"prompt":""}"#.to_owned(),
            false => question(endpoint, &fields)?,
        })),
        leg: None,
    };
    match timeout(PATIENCE, answer(upstream, asked)).await {
        Ok(Ok(answer)) => {
            let mut ids = match prompt.tokens {
                true => prompt.units.clone(),
                false => answer.tokens,
            };
            ids.truncate(LONGEST);
            let namespace = answer.cache_namespace + &namespace;
            Some(TokenPrompt { namespace, ids })
        }
        Ok(Err(error)) => {
            tracing::debug!(worker = worker.url, error, "a prompt was not tokenised");
            None
        }
        Err(_) => {
            tracing::debug!(worker = worker.url, "a prompt was not tokenised in time");
            None
        }
    }
}

/// The headers with the API key of a request.
fn keys_of(headers: &HeaderMap) -> HeaderMap {
    let is_key = |name: &str| name == AUTHORIZATION.as_str() || name == "x-api-key";
    let own = headers.iter().filter(|(name, _)| is_key(name.as_str()));
    own.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The namespace that Hearth's workers use for a request.
fn namespace(fields: &Fields<'_>) -> String {
    let salt: Option<String> = fields.read("cache_salt");
    match fields.read::<String>("extra_key") {
        None => salt.unwrap_or_default(),
        Some(key) => {
            let salt = salt.unwrap_or_default();
            format!("{}:{salt}:{key}", salt.len())
        }
    }
}

/// The body of the request for tokens; `None` for prompts that cannot be asked for.
fn question(endpoint: &str, fields: &Fields<'_>) -> Option<String> {
    let (own, name) = match endpoint {
        "/v1/chat/completions" => ("messages", "messages"),
        "/v1/completions" => ("prompt", "prompt"),
        "/generate" => ("text", "prompt"),
        _ => return None,
    };
    let value = fields.given(own)?;
    let mut body = format!("{{\"{name}\":{value}");
    if name == "messages" {
        if fields.is_true("continue_final_message") {
            return None;
        }
        let uses_tools = fields.read::<String>("tool_choice").as_deref() != Some("none");
        for name in ["tools", "chat_template_kwargs", "add_generation_prompt"] {
            if let Some(value) = fields.given(name)
                && (uses_tools || name != "tools")
            {
                body.push_str(&format!(",\"{name}\":{value}"));
            }
        }
    } else if !value.starts_with('"') {
        // A batch goes to one worker, whichever has its first prompt.
        return None;
    }
    body.push('}');
    Some(body)
}

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<u32>,
    /// The beginning of the names of this API key's namespaces, where keys have their own.
    #[serde(default)]
    cache_namespace: String,
}

async fn answer(upstream: &Upstream, asked: Outgoing) -> Result<Answer, String> {
    let opened = upstream.open(asked).await;
    let opened = opened.map_err(|error| error.to_string())?;
    let status = opened.status;
    let body = opened.collect(LONGEST_ANSWER).await;
    let body = body.map_err(|error| error.to_string())?;
    if !status.is_success() {
        return Err(format!("status {status}"));
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(endpoint: &str, body: &str) -> Option<String> {
        question(endpoint, &Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn a_question_has_what_the_prompt_is_made_of() {
        let chat = "/v1/chat/completions";
        for (endpoint, body, expected) in [
            (
                chat,
                r#"{"messages": [1], "n": 2}"#,
                Some(r#"{"messages":[1]}"#),
            ),
            (
                chat,
                r#"{"messages": [1], "tools": [2], "chat_template_kwargs": {"a": 1.0}}"#,
                Some(r#"{"messages":[1],"tools":[2],"chat_template_kwargs":{"a": 1.0}}"#),
            ),
            (
                chat,
                r#"{"messages": [1], "tools": [2], "tool_choice": "none"}"#,
                Some(r#"{"messages":[1]}"#),
            ),
            (
                chat,
                r#"{"messages": [1], "continue_final_message": true}"#,
                None,
            ),
            (chat, "{}", None),
            (
                "/v1/completions",
                r#"{"prompt": "a"}"#,
                Some(r#"{"prompt":"a"}"#),
            ),
            ("/v1/completions", r#"{"prompt": ["a"]}"#, None),
            ("/generate", r#"{"text": "a"}"#, Some(r#"{"prompt":"a"}"#)),
            ("/v1/messages", r#"{"messages": []}"#, None),
        ] {
            assert_eq!(asked(endpoint, body).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn namespaces_are_those_of_the_workers() {
        for (body, expected) in [
            ("{}", ""),
            (r#"{"cache_salt": null, "extra_key": null}"#, ""),
            (r#"{"cache_salt": "a"}"#, "a"),
            (r#"{"extra_key": "b"}"#, "0::b"),
            (r#"{"cache_salt": "é", "extra_key": "b"}"#, "2:é:b"),
        ] {
            let fields = Fields::parse(body.as_bytes()).unwrap();
            assert_eq!(namespace(&fields), expected);
        }
    }
}
