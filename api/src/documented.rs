//! Keeps `docs/API.md` equal to the code: its tables of fields to the request types, its
//! table of routes to the route table.

use std::collections::{BTreeMap, BTreeSet};

use actix_web::http::Method;
use serde::de::DeserializeOwned;

use crate::anthropic::request as anthropic;
use crate::fields::messages::Message;
use crate::fields::sampling::StreamOptions;
use crate::llama_server::request as llama;
use crate::ollama::embed::EmbedRequest;
use crate::ollama::{options, request as ollama};
use crate::openai::adapters;
use crate::openai::chat_request::ChatRequest;
use crate::openai::completion_request::CompletionRequest;
use crate::openai::embeddings::EmbeddingRequest;
use crate::openai::responses::request::ResponseRequest;
use crate::openapi::manual::{quoted, table};
use crate::openapi::probe::schema;
use crate::programs::request::{ProgramNode, ProgramRequest};
use crate::routes::ROUTES;
use crate::sglang::encode::EncodeRequest;
use crate::sglang::request::GenerateRequest;
use crate::sglang::sampling::Sampling;
use crate::sglang::score::ScoreRequest;
use crate::sglang::{adapters as sglang_adapters, control, tokens};

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
    assert_documented::<adapters::LoadRequest>("`/v1/load_lora_adapter`");
    assert_documented::<adapters::UnloadRequest>("`/v1/unload_lora_adapter`");
    assert_documented::<sglang_adapters::LoadRequest>("`/load_lora_adapter`");
    assert_documented::<sglang_adapters::UnloadRequest>("`/unload_lora_adapter`");
    assert_documented::<ProgramRequest>("`/v1/programs`");
    assert_documented::<ProgramNode>("`/v1/programs`: `nodes[]`");
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
    assert_documented::<llama::CompletionRequest>("`/completion`");
    assert_documented::<ollama::ChatRequest>("`/api/chat`");
    assert_documented::<ollama::Message>("`/api/chat`: `messages[]`");
    assert_documented::<ollama::GenerateRequest>("`/api/generate`");
    assert_documented::<EmbedRequest>("`/api/embed`");
    assert_documented::<options::Options>("`options`");
    assert_documented::<ollama::ShowRequest>("`/api/show`");
}

#[test]
fn every_route_is_documented_with_its_methods_and_no_other() {
    let mut routes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for route in ROUTES {
        let methods = route.methods.iter().map(Method::as_str);
        // Each GET answers HEAD, which the page says once.
        let methods = methods.filter(|&method| method != "HEAD");
        routes.entry(route.path).or_default().extend(methods);
    }
    let routes: BTreeSet<_> = routes
        .into_iter()
        .map(|(path, methods)| (path.to_owned(), methods.join(", ")))
        .collect();
    let documented: BTreeSet<_> = table("## Routes")
        .expect("docs/API.md lists the routes")
        .flat_map(|[paths, methods, _]| {
            quoted(paths).map(move |path| (path.to_owned(), methods.to_owned()))
        })
        .collect();
    assert_eq!(documented, routes);
}
