//! Keeps `docs/API.md` equal to the code: its tables of fields to the request types, its
//! table of routes to the route table.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::anthropic::request as anthropic;
use super::ollama::{options, request as ollama};
use super::openai::chat_request::{ChatRequest, Message};
use super::openai::completion_request::CompletionRequest;
use super::openai::sampling::StreamOptions;
use super::sglang::request::GenerateRequest;
use super::sglang::sampling::Sampling;
use super::sglang::{control, tokens};

const PAGE: &str = include_str!("../../../docs/API.md");
const ROUTES: &str = include_str!("routes.rs");
const STATES: [&str; 3] = ["honoured", "refused", "ignored"];

/// The fields that `T` knows, as serde says them when it meets one that it does not.
fn fields_of<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = serde_json::from_str::<T>(r#"{"?": 0}"#).err();
    let error = error.expect("no type takes every field").to_string();
    let (_, known) = error
        .split_once("expected ")
        .expect("unknown field `?`, expected ...");
    quoted(known)
}

/// What is between backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    let between = text.split('`').skip(1).step_by(2);
    between.map(str::to_owned).collect()
}

/// The rows of the table under `heading`: the first cell, and the second.
fn table(heading: &str) -> Vec<(&'static str, &'static str)> {
    let start = format!("\n{heading}\n");
    let (_, section) = PAGE
        .split_once(&start)
        .unwrap_or_else(|| panic!("docs/API.md has no {heading:?}"));
    let section = section.split("\n#").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        (cells.next().unwrap_or(""), cells.next().unwrap_or(""))
    })
    .collect()
}

fn assert_documented<T: DeserializeOwned>(title: &str) {
    let heading = format!("### {title}");
    let mut documented = BTreeSet::new();
    for (field, state) in table(&heading) {
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
    assert_documented::<StreamOptions>("`stream_options`");
    assert_documented::<GenerateRequest>("`/generate`");
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
    for (wrapper, methods) in [
        ("(get(\"", "GET"),
        ("(post(\"", "POST"),
        ("(post_or_put(\"", "POST, PUT"),
        ("(get_or_post(\"", "GET, POST"),
    ] {
        let rest = ROUTES.split(wrapper).skip(1);
        routes.extend(rest.map(|rest| {
            let path = rest.split('"').next().unwrap_or_default();
            (path.to_owned(), methods.to_owned())
        }));
    }
    let documented: BTreeSet<_> = table("## Routes")
        .into_iter()
        .flat_map(|(paths, methods)| {
            let paths = quoted(paths).into_iter();
            paths.map(move |path| (path, methods.to_owned()))
        })
        .collect();
    assert_eq!(documented, routes);
    assert!(
        routes.len() > 20,
        "the route table is written otherwise now"
    );
}
