//! Keeps `docs/API.md` equal to the code: its tables of fields to the request types, its
//! table of routes to the route table.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::anthropic::request as anthropic;
use super::ollama::{options, request as ollama};
use super::openai::chat_request::{ChatRequest, Message};
use super::openai::completion_request::CompletionRequest;
use super::openai::embeddings::EmbeddingRequest;
use super::openai::responses::request::ResponseRequest;
use super::openai::sampling::StreamOptions;
use super::openapi::manual::{quoted, table};
use super::openapi::probe::schema;
use super::sglang::encode::EncodeRequest;
use super::sglang::request::GenerateRequest;
use super::sglang::sampling::Sampling;
use super::sglang::score::ScoreRequest;
use super::sglang::{control, tokens};

const ROUTES: &str = include_str!("routes.rs");
const STATES: [&str; 3] = ["honoured", "refused", "ignored"];

fn fields_of<T: DeserializeOwned>() -> BTreeSet<String> {
    let schema = schema::<T>();
    let known = schema["properties"].as_object();
    known
        .expect("no type takes every field")
        .keys()
        .cloned()
        .collect()
}

fn assert_documented<T: DeserializeOwned>(title: &str) {
    let heading = format!("### {title}");
    let mut documented = BTreeSet::new();
    let rows = table(&heading);
    let rows = rows.unwrap_or_else(|| panic!("docs/API.md has no {heading:?}"));
    for [field, state, _] in rows {
        assert!(STATES.contains(&state), "{heading}, {field}: {state:?}");
        let name = field.trim_matches('`').to_owned();
        assert!(documented.insert(name), "{heading}: {field} twice");
    }
    let known = fields_of::<T>();
    let missing: Vec<_> = known.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&known).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "{heading} of docs/API.md lacks {missing:?} and invents {invented:?}"
    );
}

#[test]
fn every_field_of_every_route_is_documented_and_no_other() {
    assert_documented::<ChatRequest>("`/v1/chat/completions`");
    assert_documented::<Message>("`/v1/chat/completions`: `messages[]`");
    assert_documented::<CompletionRequest>("`/v1/completions`");
    assert_documented::<ResponseRequest>("`/v1/responses`");
    assert_documented::<StreamOptions>("`stream_options`");
    assert_documented::<EmbeddingRequest>("`/v1/embeddings`");
    assert_documented::<GenerateRequest>("`/generate`");
    assert_documented::<EncodeRequest>("`/encode`");
    assert_documented::<ScoreRequest>("`/v1/score`");
    assert_documented::<Sampling>("`/generate`: `sampling_params`");
    assert_documented::<tokens::TokenizeRequest>("`/tokenize`");
    assert_documented::<tokens::DetokenizeRequest>("`/detokenize`");
    assert_documented::<control::AbortRequest>("`/abort_request`");
    assert_documented::<control::PauseRequest>("`/pause_generation`");
    assert_documented::<control::ContinueRequest>("`/continue_generation`");
    assert_documented::<anthropic::MessagesRequest>("`/v1/messages`");
    assert_documented::<anthropic::Turn>("`/v1/messages`: `messages[]`");
    assert_documented::<anthropic::CountRequest>("`/v1/messages/count_tokens`");
    assert_documented::<ollama::ChatRequest>("`/api/chat`");
    assert_documented::<ollama::Message>("`/api/chat`: `messages[]`");
    assert_documented::<ollama::GenerateRequest>("`/api/generate`");
    assert_documented::<options::Options>("`options`");
    assert_documented::<ollama::ShowRequest>("`/api/show`");
}

#[test]
fn every_route_is_documented_with_its_methods_and_no_other() {
    let mut routes = BTreeSet::new();
    // However the formatter breaks a call.
    let routes_text: String = ROUTES.split_whitespace().collect();
    for (wrapper, methods) in [
        ("(get(\"", "GET"),
        ("(post(\"", "POST"),
        ("(post_or_put(\"", "POST, PUT"),
        ("(get_or_post(\"", "GET, POST"),
        ("(get_or_delete(\"", "GET, DELETE"),
    ] {
        let rest = routes_text.split(wrapper).skip(1);
        routes.extend(rest.map(|rest| {
            let path = rest.split('"').next().unwrap_or_default();
            (path.to_owned(), methods.to_owned())
        }));
    }
    let documented: BTreeSet<_> = table("## Routes")
        .expect("docs/API.md lists the routes")
        .flat_map(|[paths, methods, _]| {
            quoted(paths).map(move |path| (path.to_owned(), methods.to_owned()))
        })
        .collect();
    assert_eq!(documented, routes);
    assert!(
        routes.len() > 20,
        "the route table is written otherwise now"
    );
}
