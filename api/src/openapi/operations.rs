//! The request and the answer of each route.

use serde_json::{Map, Value, json};

use crate::anthropic::request as anthropic;
use crate::debug;
use crate::dialect::Dialect;
use crate::fields::adapters::ScaledAdapter;
use crate::live;
use crate::llama_server::request as llama;
use crate::ollama::embed::EmbedRequest;
use crate::ollama::request as ollama;
use crate::openai::adapters as openai_adapters;
use crate::openai::chat_request::ChatRequest;
use crate::openai::completion_request::CompletionRequest;
use crate::openai::embeddings::EmbeddingRequest;
use crate::openai::responses::request::ResponseRequest;
use crate::openapi::manual::{quoted, table};
use crate::openapi::probe::schema;
use crate::programs::request::ProgramRequest;
use crate::routes::{self, Access};
use crate::sglang::encode::EncodeRequest;
use crate::sglang::request::GenerateRequest;
use crate::sglang::score::ScoreRequest;
use crate::sglang::{adapters as sglang_adapters, control, loads, tokens};

const ANSWERS: &str = include_str!("answers.json");

/// The APIs: the name of each, the words with which docs/API.md begins the description of its routes,
/// and a sentence about it. The last one has all other routes.
const GROUPS: [(&str, &[&str], &str); 6] = [
    (
        "OpenAI",
        &["OpenAI"],
        "Chats, text completions, embeddings and responses.",
    ),
    (
        "Anthropic",
        &["Anthropic"],
        "Messages, and the number of their tokens.",
    ),
    (
        "Ollama",
        &["Ollama"],
        "Chats, generation and embeddings in lines of JSON.",
    ),
    (
        "SGLang and vLLM",
        &["SGLang", "vLLM"],
        "Generation from text or token ids in batches, scores, tokens, load.",
    ),
    (
        "llama-server",
        &["llama-server"],
        "Text completion, and facts about the model and its slots.",
    ),
    (
        "Hearth",
        &[],
        "Programs, the live picture, health, metrics and control.",
    ),
];

fn group(what: &str) -> &'static str {
    let begins = |words: &[&str]| words.iter().any(|word| what.starts_with(word));
    let own = GROUPS.iter().find(|(_, words, _)| begins(words));
    own.map_or("Hearth", |(name, ..)| name)
}

/// A request to one route of each API, which `/docs` offers to send.
fn example(path: &str) -> Option<Value> {
    let messages = json!([{"role": "user", "content": "Tell me about a dog."}]);
    Some(match path {
        "/v1/chat/completions" => json!({"messages": messages, "max_tokens": 40, "stream": true}),
        "/v1/messages" => {
            json!({"model": "hearth-tiny", "messages": messages, "max_tokens": 40})
        }
        "/api/chat" => {
            json!({"model": "hearth-tiny", "messages": messages, "options": {"num_predict": 40}})
        }
        "/generate" => {
            json!({"text": "Once upon a time", "sampling_params": {"max_new_tokens": 40}})
        }
        "/completion" => json!({"prompt": "Once upon a time", "n_predict": 40}),
        "/v1/programs" => json!({"nodes": [
            {"op": "text", "text": "The dog is called"},
            {"op": "gen", "name": "name", "max_tokens": 8, "stop": "."},
        ]}),
        _ => return None,
    })
}

/// The key that a route asks for where the server has keys.
fn key(path: &str) -> &'static str {
    match routes::find(path).map(|route| route.access) {
        Some(Access::Open) => "none",
        Some(Access::Admin) => "admin",
        _ => "api",
    }
}

/// The whole document.
pub fn document() -> Value {
    let mut schemas: Map<String, Value> =
        serde_json::from_str(ANSWERS).expect("answers.json is JSON: a test reads it");
    let mut paths = Map::new();
    for [names, methods, what] in table("## Routes").into_iter().flatten() {
        for path in quoted(names) {
            let mut operations = Map::new();
            let parameters = parameters(path);
            for method in methods.split(", ") {
                let mut operation = operation(method, path, what, &mut schemas);
                if !parameters.is_empty() {
                    operation["parameters"] = parameters.clone().into();
                }
                if ["GET", "DELETE"].contains(&method) {
                    operation.as_object_mut().map(|o| o.remove("requestBody"));
                }
                operation["operationId"] = format!("{method} {path}").into();
                operations.insert(method.to_lowercase(), operation);
            }
            paths.insert(template(path), operations.into());
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hearth",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A language model server that speaks OpenAI's, SGLang's, Anthropic's, \
                        Ollama's and llama-server's APIs",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "tags": GROUPS.map(|(name, _, what)| json!({"name": name, "description": what})),
        // A server without --api-key asks for no key.
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// `path` as OpenAPI writes it: actix has a pattern after a name.
fn template(path: &str) -> String {
    path.replace(":.+}", "}")
}

fn operation(method: &str, path: &str, what: &str, schemas: &mut Map<String, Value>) -> Value {
    let error = match routes::dialect_of(path) {
        Dialect::OpenAi => "OpenAiError",
        Dialect::Sglang => "SglangError",
        Dialect::Anthropic => "AnthropicError",
        Dialect::Ollama => "OllamaError",
    };
    let mut schema = reference(error);
    if matches!(path, "/load_lora_adapter" | "/unload_lora_adapter") {
        schema = json!({"anyOf": [schema, reference("LoadedLoraAdapters")]});
    }
    let error = json!({
        "description": "refused, in the words of this API",
        "content": {"application/json": {"schema": schema}},
    });
    let mut operation = json!({
        "summary": what.replace('`', ""),
        "tags": [group(what)],
        "x-hearth-key": key(path),
        "responses": {
            "200": {"description": "OK", "headers": headers(path), "content": answer(method, path)},
            "4XX": error,
            "5XX": error,
        },
    });
    if let Some((name, schema)) = body(path) {
        schemas.insert(name.to_owned(), described(schema, path));
        operation["requestBody"] = json!({
            "required": !matches!(path, "/pause_generation" | "/continue_generation"),
            "content": {"application/json": {"schema": reference(name)}},
        });
        if let Some(example) = example(path) {
            operation["requestBody"]["content"]["application/json"]["example"] = example;
        }
    }
    operation
}

/// The headers of an answer beside those of HTTP.
fn headers(path: &str) -> Value {
    let header = |words: &str| json!({"description": words, "schema": {"type": "string"}});
    let id = header("The name of the request: the client's own if it sent one.");
    let mut headers = Map::from_iter([("x-request-id".to_owned(), id)]);
    let takes_grammars = matches!(
        path,
        "/v1/chat/completions"
            | "/v1/completions"
            | "/v1/responses"
            | "/v1/messages"
            | "/generate"
            | "/completion"
            | "/completions"
            | "/api/chat"
            | "/api/generate"
    );
    if takes_grammars {
        let words = "The words of the request's JSON Schema that have no effect, separated by commas: \
                     keywords as they are, formats as format:NAME. Absent if there are none.";
        headers.insert("x-hearth-schema-ignored".to_owned(), header(words));
    }
    headers.into()
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The name and the schema of the body of a request to `path`.
fn body(path: &str) -> Option<(&'static str, Value)> {
    Some(match path {
        "/v1/chat/completions" => ("ChatRequest", schema::<ChatRequest>()),
        "/v1/completions" => ("CompletionRequest", schema::<CompletionRequest>()),
        "/completion" | "/completions" => (
            "LlamaCompletionRequest",
            schema::<llama::CompletionRequest>(),
        ),
        "/v1/embeddings" => ("EmbeddingRequest", schema::<EmbeddingRequest>()),
        "/v1/responses" => ("ResponseRequest", schema::<ResponseRequest>()),
        "/v1/load_lora_adapter" => ("LoadLoraRequest", schema::<openai_adapters::LoadRequest>()),
        "/v1/unload_lora_adapter" => (
            "UnloadLoraRequest",
            schema::<openai_adapters::UnloadRequest>(),
        ),
        "/lora-adapters" => (
            "LoraScales",
            json!({"type": "array", "items": schema::<ScaledAdapter>()}),
        ),
        "/load_lora_adapter" => (
            "SglangLoadLoraRequest",
            schema::<sglang_adapters::LoadRequest>(),
        ),
        "/unload_lora_adapter" => (
            "SglangUnloadLoraRequest",
            schema::<sglang_adapters::UnloadRequest>(),
        ),
        "/v1/programs" => ("ProgramRequest", schema::<ProgramRequest>()),
        "/generate" => ("GenerateRequest", schema::<GenerateRequest>()),
        "/encode" => ("EncodeRequest", schema::<EncodeRequest>()),
        "/v1/score" => ("ScoreRequest", schema::<ScoreRequest>()),
        "/tokenize" | "/v1/tokenize" => ("TokenizeRequest", schema::<tokens::TokenizeRequest>()),
        "/detokenize" | "/v1/detokenize" => {
            ("DetokenizeRequest", schema::<tokens::DetokenizeRequest>())
        }
        "/abort_request" => ("AbortRequest", schema::<control::AbortRequest>()),
        "/pause_generation" => ("PauseRequest", schema::<control::PauseRequest>()),
        "/continue_generation" => ("ContinueRequest", schema::<control::ContinueRequest>()),
        "/v1/messages" => ("MessagesRequest", schema::<anthropic::MessagesRequest>()),
        "/v1/messages/count_tokens" => ("CountRequest", schema::<anthropic::CountRequest>()),
        "/api/chat" => ("OllamaChatRequest", schema::<ollama::ChatRequest>()),
        "/api/generate" => ("OllamaGenerateRequest", schema::<ollama::GenerateRequest>()),
        "/api/embed" => ("OllamaEmbedRequest", schema::<EmbedRequest>()),
        "/api/show" => ("ShowRequest", schema::<ollama::ShowRequest>()),
        _ => return None,
    })
}

/// `schema` with the words of docs/API.md about the fields of `path`.
fn described(mut schema: Value, path: &str) -> Value {
    let heading = format!(
        "### `{}`",
        path.replacen("/v1/tok", "/tok", 1)
            .replacen("/v1/detok", "/detok", 1)
            .replacen(
                "/completions",
                "/completion",
                usize::from(path == "/completions")
            )
    );
    for [name, state, note] in table(&heading).into_iter().flatten() {
        let name = name.trim_matches('`');
        let properties = schema.get_mut("properties");
        if let Some(Value::Object(property)) = properties.and_then(|all| all.get_mut(name)) {
            let words = match note {
                "" => state.to_owned(),
                note => format!("{state}: {note}"),
            };
            property.insert("description".to_owned(), words.into());
        }
    }
    schema
}

/// The schemas of a successful answer by content type.
fn answer(method: &str, path: &str) -> Value {
    let json = |name: &str| json!({"application/json": {"schema": reference(name)}});
    let text = |kind: &str| json!({kind: {"schema": {"type": "string"}}});
    // OpenAPI 3.1 cannot describe the parts of a stream, and its readers differ: some check each
    // event against the schema, some the whole text. A schema without a type suits both.
    let streamed = |name: &str, (kind, parts): (&str, &str)| {
        let mut content = json(name);
        content[kind] = json!({"schema": {"description": parts}});
        content
    };
    const EVENTS: (&str, &str) = (
        "text/event-stream",
        "Server-sent events, whose data is JSON. OpenAI's and SGLang's end in `[DONE]`.",
    );
    const LINES: (&str, &str) = ("application/x-ndjson", "JSON objects, one to a line.");
    match path {
        "/" | "/metrics" | "/flush_cache" | "/v1/load_lora_adapter" | "/v1/unload_lora_adapter" => {
            text("text/plain")
        }
        "/lora-adapters" if method == "POST" => json("Done"),
        "/lora-adapters" => json("LoraAdapters"),
        "/load_lora_adapter" | "/unload_lora_adapter" => json("LoadedLoraAdapters"),
        "/docs" => text("text/html"),
        "/ui/{file}" => text("text/javascript"),
        "/health"
        | "/ready"
        | "/health_generate"
        | "/pause_generation"
        | "/continue_generation" => json("Status"),
        "/version" | "/api/version" => json("Version"),
        "/v1/models" => json("ModelList"),
        "/v1/models/{id:.+}" => json("Model"),
        "/v1/chat/completions" => streamed("ChatCompletion", EVENTS),
        "/v1/completions" => streamed("Completion", EVENTS),
        "/completion" | "/completions" => streamed("LlamaCompletion", EVENTS),
        "/v1/embeddings" => json("EmbeddingList"),
        "/v1/responses" => streamed("Response", EVENTS),
        "/v1/responses/{id}" if method == "DELETE" => json("Deleted"),
        "/v1/responses/{id}" | "/v1/responses/{id}/cancel" => json("Response"),
        "/v1/programs" => streamed("Program", EVENTS),
        "/generate" => streamed("Generated", EVENTS),
        "/encode" => json("Encoded"),
        "/v1/score" => json("Scores"),
        "/tokenize" | "/v1/tokenize" => json("Tokens"),
        "/detokenize" | "/v1/detokenize" => json("Text"),
        "/model_info" | "/get_model_info" => json("ModelInfo"),
        "/server_info" | "/get_server_info" => json("ServerInfo"),
        "/get_load" => json("Load"),
        "/v1/loads" => json("Loads"),
        "/debug/trace" => json("StepTrace"),
        "/live" => json!({"text/event-stream": {"schema": {
            "description": "Server-sent events: `hello`, `tree` and `snapshot`, whose data is JSON."
        }}}),
        "/live/prefix" => json("CachedPrefix"),
        "/abort_request" => json("Aborted"),
        "/v1/messages" => streamed("Message", EVENTS),
        "/v1/messages/count_tokens" => json("TokenCount"),
        "/api/chat" => streamed("OllamaChat", LINES),
        "/api/generate" => streamed("OllamaGenerated", LINES),
        "/api/embed" => json("OllamaEmbeddings"),
        "/props" => json("Props"),
        "/slots" => json("Slots"),
        "/api/tags" | "/api/ps" => json("OllamaModels"),
        "/api/show" => json("OllamaModel"),
        _ => json!({"application/json": {"schema": {"type": "object"}}}),
    }
}

fn parameters(path: &str) -> Vec<Value> {
    if let Some((_, name)) = path.split_once('{') {
        let name = name.split([':', '}']).next();
        let schema = json!({"type": "string"});
        return vec![json!({"name": name, "in": "path", "required": true, "schema": schema})];
    }
    let query = match path {
        "/flush_cache" => schema::<control::FlushQuery>(),
        "/v1/loads" => schema::<loads::LoadsQuery>(),
        "/debug/trace" => schema::<debug::TraceQuery>(),
        "/live/prefix" => schema::<live::PrefixQuery>(),
        _ => return Vec::new(),
    };
    let fields = query["properties"].as_object().into_iter().flatten();
    fields
        // The first of the types, because a query has no null.
        .map(|(name, schema)| json!({"name": name, "in": "query", "schema": schema["anyOf"][0]}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_says_what_it_takes_and_gives_and_every_name_is_there() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() > 30, "{paths:?}");
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for name in text.split("#/components/schemas/").skip(1) {
            let name = name.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is nowhere");
        }
        for (path, operations) in paths {
            for (method, operation) in operations.as_object().unwrap() {
                let content = &operation["responses"]["200"]["content"];
                assert!(content.is_object(), "{method} {path}");
                let vague = json!({"type": "object"});
                let is_vague = content["application/json"]["schema"] == vague;
                assert!(
                    !is_vague || path == "/openapi.json",
                    "{method} {path}: {content}"
                );
                let takes = operation["requestBody"].is_object();
                let takes_none = ["/flush_cache", "/v1/responses/{id}/cancel"];
                let takes_none = takes_none.contains(&path.as_str());
                assert!(
                    takes == (["post", "put"].contains(&method.as_str()) && !takes_none),
                    "{method} {path}"
                );
            }
        }
        for (name, ..) in GROUPS {
            let own = |operation: &&Value| operation["tags"] == json!([name]);
            let all = paths
                .values()
                .flat_map(|of| of.as_object().unwrap().values());
            let examples = all.filter(own).filter(|operation| {
                let content = &operation["requestBody"]["content"]["application/json"];
                content["example"].is_object()
            });
            assert!(examples.count() > 0, "{name}");
        }
        let key = |path: &str| {
            paths[path].as_object().unwrap().values().next().unwrap()["x-hearth-key"].clone()
        };
        let keys = ["/health", "/v1/models", "/flush_cache"].map(key);
        assert_eq!(keys, ["none", "api", "admin"]);
        let headers = |path: &str| paths[path]["post"]["responses"]["200"]["headers"].clone();
        assert!(headers("/generate")["x-hearth-schema-ignored"].is_object());
        assert!(headers("/tokenize")["x-hearth-schema-ignored"].is_null());
        assert!(headers("/tokenize")["x-request-id"].is_object());
        let model = &paths["/v1/models/{id}"]["get"]["parameters"][0];
        assert_eq!(model["name"], "id");
        let timeout = &paths["/flush_cache"]["post"]["parameters"][0];
        assert_eq!(timeout["schema"]["type"], "number");
        let words = &schemas["ChatRequest"]["properties"]["temperature"]["description"];
        assert_eq!(words, "honoured: 0 to 2; 0 is greedy");
    }
}
