//! The route table: every path of the server, and everything that is decided by the path.
//!
//! **Architecture Invariant.** No other file lists the paths of routes to decide who may call them,
//! how their errors are written, or what is measured about them. For a path that no route has,
//! [`Dialect::of_unknown`] goes by its prefix.

use std::sync::LazyLock;

use actix_web::dev::ResourceDef;
use actix_web::http::Method;
use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{self, ServiceConfig, to};
use actix_web::{HttpRequest, HttpResponse, Resource};

use crate::anthropic::messages;
use crate::dialect::Dialect::{self, Anthropic, Ollama, OpenAi, Sglang};
use crate::error::ApiError;
use crate::llama_server::{completion, status as llama_status};
use crate::openai::responses::{create, stored};
use crate::openai::{adapters, chat, completions, embeddings};
use crate::programs::route as programs;
use crate::sglang::{
    adapters as sglang_adapters, control, encode, generate, loads, model, score, server_info,
    tokens,
};
use crate::{debug, live, metrics, ollama, openapi, page, status};
use Access::{Admin, Key, Open, Own};
use Observation::{Observed, Quiet};
use Operation::{Chat, Embeddings, TextCompletion};

/// A path, or one of several rows of a path whose methods have different handlers. Such rows
/// differ in nothing else.
pub struct Route {
    pub methods: &'static [Method],
    /// As actix writes patterns.
    pub path: &'static str,
    /// The API whose errors it answers with.
    pub errors: Dialect,
    pub access: Access,
    pub observation: Observation,
    pub operation: Operation,
    handler: fn() -> actix_web::Route,
}

/// The keys that a route asks for, where the server was started with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None: probes, scrapers and browsers have no keys.
    Open,
    /// `--api-key`.
    Key,
    /// `--api-key`, and not from a web page of another site: it changes requests of the client
    /// itself.
    Own,
    /// `--admin-api-key`, because it changes the server for everybody.
    Admin,
}

/// The decision if requests are counted and traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    Observed,
    /// Machines ask for it every few seconds.
    Quiet,
}

/// The kind of task that a request gives the model, as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Chat,
    TextCompletion,
    Embeddings,
    /// Nothing that is measured as a request to the model.
    None,
}

impl Operation {
    /// OpenTelemetry's `gen_ai.operation.name`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::TextCompletion => "text_completion",
            Self::Embeddings => "embeddings",
            Self::None => "",
        }
    }
}

/// Load balancers ask with HEAD.
const GET: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
const DELETE: &[Method] = &[Method::DELETE];
const POST_OR_PUT: &[Method] = &[Method::POST, Method::PUT];
const GET_OR_POST: &[Method] = &[Method::GET, Method::POST];
const NONE: Operation = Operation::None;

#[rustfmt::skip]
pub static ROUTES: &[Route] = &[
    //    methods      path                         errors     access observed  operation       handler
    route(GET,         "/",                         OpenAi,    Open,  Observed, NONE,           || to(page::root)),
    route(GET,         "/ui/{file}",                OpenAi,    Open,  Quiet,    NONE,           || to(page::ui)),
    route(GET,         "/health",                   OpenAi,    Open,  Quiet,    NONE,           || to(status::health)),
    route(GET,         "/ready",                    OpenAi,    Open,  Quiet,    NONE,           || to(status::ready)),
    route(GET,         "/metrics",                  OpenAi,    Open,  Quiet,    NONE,           || to(metrics::metrics)),
    route(GET,         "/debug/trace",              Sglang,    Admin, Quiet,    NONE,           || to(debug::trace)),
    route(GET,         "/live",                     OpenAi,    Admin, Quiet,    NONE,           || to(live::live)),
    route(GET,         "/live/prefix",              OpenAi,    Admin, Quiet,    NONE,           || to(live::prefix)),
    route(GET,         "/version",                  OpenAi,    Key,   Quiet,    NONE,           || to(status::version)),
    route(GET,         "/openapi.json",             OpenAi,    Open,  Observed, NONE,           || to(openapi::document)),
    route(GET,         "/docs",                     OpenAi,    Open,  Observed, NONE,           || to(page::docs)),

    route(GET,         "/v1/models",                OpenAi,    Key,   Observed, NONE,           || to(status::models)),
    // Hub ids have a slash in them.
    route(GET,         "/v1/models/{id:.+}",        OpenAi,    Key,   Observed, NONE,           || to(status::model)),
    route(POST,        "/v1/chat/completions",      OpenAi,    Key,   Observed, Chat,           || to(chat::chat_completions)),
    route(POST,        "/v1/completions",           OpenAi,    Key,   Observed, TextCompletion, || to(completions::completions)),
    route(POST,        "/v1/embeddings",            OpenAi,    Key,   Observed, Embeddings,     || to(embeddings::embeddings)),
    route(POST,        "/v1/responses",             OpenAi,    Key,   Observed, Chat,           || to(create::create)),
    route(POST,        "/v1/responses/{id}/cancel", OpenAi,    Key,   Observed, NONE,           || to(stored::cancel)),
    route(GET,         "/v1/responses/{id}",        OpenAi,    Key,   Observed, NONE,           || to(stored::retrieve)),
    route(DELETE,      "/v1/responses/{id}",        OpenAi,    Key,   Observed, NONE,           || to(stored::delete)),

    route(POST,        "/v1/load_lora_adapter",     OpenAi,    Admin, Observed, NONE,           || to(adapters::load)),
    route(POST,        "/v1/unload_lora_adapter",   OpenAi,    Admin, Observed, NONE,           || to(adapters::unload)),
    // Rows of one path ask for the same key, and the list names paths of the server.
    route(GET,         "/lora-adapters",            OpenAi,    Admin, Observed, NONE,           || to(adapters::list)),
    route(POST,        "/lora-adapters",            OpenAi,    Admin, Observed, NONE,           || to(adapters::set_scales)),

    route(POST,        "/v1/programs",              OpenAi,    Key,   Observed, TextCompletion, || to(programs::programs)),

    route(POST_OR_PUT, "/generate",                 Sglang,    Key,   Observed, TextCompletion, || to(generate::generate)),
    route(POST_OR_PUT, "/encode",                   Sglang,    Key,   Observed, Embeddings,     || to(encode::encode)),
    route(POST,        "/v1/score",                 Sglang,    Key,   Observed, TextCompletion, || to(score::score)),
    route(GET,         "/server_info",              Sglang,    Key,   Quiet,    NONE,           || to(server_info::server_info)),
    route(GET,         "/get_server_info",          Sglang,    Key,   Quiet,    NONE,           || to(server_info::server_info)),
    route(GET,         "/model_info",               Sglang,    Key,   Observed, NONE,           || to(model::model_info)),
    route(GET,         "/get_model_info",           Sglang,    Key,   Observed, NONE,           || to(model::model_info)),
    route(GET,         "/get_load",                 Sglang,    Key,   Observed, NONE,           || to(loads::get_load)),
    route(GET,         "/v1/loads",                 Sglang,    Key,   Observed, NONE,           || to(loads::loads)),
    route(GET,         "/health_generate",          Sglang,    Key,   Quiet,    TextCompletion, || to(model::health_generate)),
    route(POST,        "/tokenize",                 Sglang,    Key,   Observed, NONE,           || to(tokens::tokenize)),
    route(POST,        "/v1/tokenize",              Sglang,    Key,   Observed, NONE,           || to(tokens::tokenize)),
    route(POST,        "/detokenize",               Sglang,    Key,   Observed, NONE,           || to(tokens::detokenize)),
    route(POST,        "/v1/detokenize",            Sglang,    Key,   Observed, NONE,           || to(tokens::detokenize)),
    route(GET_OR_POST, "/flush_cache",              Sglang,    Admin, Observed, NONE,           || to(control::flush_cache)),
    route(POST,        "/abort_request",            Sglang,    Own,   Observed, NONE,           || to(control::abort_request)),
    route(POST,        "/pause_generation",         Sglang,    Admin, Observed, NONE,           || to(control::pause_generation)),
    route(POST,        "/load_lora_adapter",        Sglang,    Admin, Observed, NONE,           || to(sglang_adapters::load)),
    route(POST,        "/unload_lora_adapter",      Sglang,    Admin, Observed, NONE,           || to(sglang_adapters::unload)),
    route(POST,        "/continue_generation",      Sglang,    Admin, Observed, NONE,           || to(control::continue_generation)),

    route(POST,        "/v1/messages",              Anthropic, Key,   Observed, Chat,           || to(messages::messages)),
    route(POST,        "/v1/messages/count_tokens", Anthropic, Key,   Observed, NONE,           || to(messages::count_tokens)),

    route(POST,        "/completion",               OpenAi,    Key,   Observed, TextCompletion, || to(completion::completion)),
    route(POST,        "/completions",              OpenAi,    Key,   Observed, TextCompletion, || to(completion::completion)),
    route(GET,         "/props",                    OpenAi,    Key,   Observed, NONE,           || to(llama_status::props)),
    route(GET,         "/slots",                    OpenAi,    Key,   Quiet,    NONE,           || to(llama_status::slots)),

    route(POST,        "/api/embed",                Ollama,    Key,   Observed, Embeddings,     || to(ollama::embed::embed)),
    route(POST,        "/api/chat",                 Ollama,    Key,   Observed, Chat,           || to(ollama::generate::chat)),
    route(POST,        "/api/generate",             Ollama,    Key,   Observed, TextCompletion, || to(ollama::generate::generate)),
    route(POST,        "/api/show",                 Ollama,    Key,   Observed, NONE,           || to(ollama::model::show)),
    route(GET,         "/api/tags",                 Ollama,    Key,   Observed, NONE,           || to(ollama::model::tags)),
    route(GET,         "/api/ps",                   Ollama,    Key,   Observed, NONE,           || to(ollama::model::running)),
    route(GET,         "/api/version",              Ollama,    Key,   Observed, NONE,           || to(ollama::model::version)),
];

const fn route(
    methods: &'static [Method],
    path: &'static str,
    errors: Dialect,
    access: Access,
    observation: Observation,
    operation: Operation,
    handler: fn() -> actix_web::Route,
) -> Route {
    Route {
        methods,
        path,
        errors,
        access,
        observation,
        operation,
        handler,
    }
}

/// The route of `path`, which is percent-decoded as actix decodes it to find a handler: a path
/// written in another way must not pass by what the table says about it.
pub fn find(path: &str) -> Option<&'static Route> {
    static PATTERNS: LazyLock<Vec<(ResourceDef, &Route)>> = LazyLock::new(|| {
        let with_names = ROUTES.iter().filter(|route| route.path.contains('{'));
        with_names
            .map(|route| (ResourceDef::new(route.path), route))
            .collect()
    });
    let exact = ROUTES.iter().find(|route| route.path == path);
    exact.or_else(|| {
        let mut patterns = PATTERNS.iter();
        patterns
            .find(|(pattern, _)| pattern.is_match(path))
            .map(|(_, route)| *route)
    })
}

/// The dialect that requests for `path`, route or not, are refused in.
pub fn dialect_of(path: &str) -> Dialect {
    find(path).map_or_else(|| Dialect::of_unknown(path), |route| route.errors)
}

/// Adds every route; a known path with another method is 405, all else 404.
pub fn configure(app: &mut ServiceConfig) {
    for (index, route) in ROUTES.iter().enumerate() {
        let earlier = &ROUTES[..index];
        if earlier.iter().all(|earlier| earlier.path != route.path) {
            app.service(resource(route.path));
        }
    }
    app.default_service(to(not_found));
}

/// All rows of `path`.
fn resource(path: &'static str) -> Resource {
    let mut resource = web::resource(path);
    let mut allowed = Vec::new();
    for route in ROUTES.iter().filter(|route| route.path == path) {
        for method in route.methods {
            resource = resource.route((route.handler)().method(method.clone()));
            allowed.push(method.as_str());
        }
    }
    let allowed = allowed.join(", ");
    resource.default_service(to(move |request| refuse_method(request, allowed.clone())))
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let path = request.path();
    dialect_of(path).refuse(&ApiError::not_found(path))
}

async fn refuse_method(request: HttpRequest, allowed: String) -> HttpResponse {
    let path = request.path();
    let error = ApiError::method_not_allowed(request.method().as_str(), path);
    let mut response = dialect_of(path).refuse(&error);
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(path: &str) -> Dialect {
        dialect_of(path)
    }

    #[test]
    fn each_path_refuses_in_the_words_of_its_own_api() {
        assert_eq!(errors_of("/v1/chat/completions"), OpenAi);
        assert_eq!(errors_of("/v1/responses/resp_1/cancel"), OpenAi);
        assert_eq!(errors_of("/v1/messages"), Anthropic);
        assert_eq!(errors_of("/v1/messages/count_tokens"), Anthropic);
        assert_eq!(errors_of("/v1/messages/nothing"), Anthropic);
        assert_eq!(errors_of("/v1/messagesx"), OpenAi);
        assert_eq!(errors_of("/api/chat"), Ollama);
        assert_eq!(errors_of("/api/nothing"), Ollama);
        assert_eq!(errors_of("/generate"), Sglang);
        assert_eq!(errors_of("/nowhere"), OpenAi);
    }

    #[test]
    fn a_path_with_names_in_it_is_found_by_its_pattern() {
        let path = |path| find(path).map(|route| route.path);
        assert_eq!(path("/v1/models/org/name"), Some("/v1/models/{id:.+}"));
        assert_eq!(path("/v1/responses/resp_1"), Some("/v1/responses/{id}"));
        let cancel = "/v1/responses/{id}/cancel";
        assert_eq!(path("/v1/responses/resp_1/cancel"), Some(cancel));
        assert_eq!(path("/v1/responses/resp_1/other"), None);
    }

    #[test]
    fn rows_of_one_path_differ_in_methods_and_handlers_alone() {
        for route in ROUTES {
            let found = find(route.path).unwrap();
            let facts = |r: &Route| (r.errors, r.access, r.observation);
            assert_eq!(facts(found), facts(route), "{}", route.path);
        }
        let mut pairs: Vec<_> = ROUTES
            .iter()
            .flat_map(|route| {
                route
                    .methods
                    .iter()
                    .map(|method| (route.path, method.as_str()))
            })
            .collect();
        let all = pairs.len();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), all, "a method of a path has two handlers");
    }

    #[test]
    fn what_the_model_does_has_opentelemetrys_name() {
        let name = |path| find(path).unwrap().operation.name();
        assert_eq!(name("/v1/responses"), "chat");
        assert_eq!(name("/v1/messages"), "chat");
        assert_eq!(name("/api/chat"), "chat");
        assert_eq!(name("/v1/completions"), "text_completion");
        assert_eq!(name("/generate"), "text_completion");
        assert_eq!(name("/encode"), "embeddings");
    }
}
