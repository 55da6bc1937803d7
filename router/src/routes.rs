//! The table of routes.

use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data, Path, PayloadConfig, ServiceConfig};
use actix_web::{Error, HttpRequest, HttpResponse, ResponseError};

use crate::defaults::PdRoute::{Chat, Completions, Generate};
use crate::error::RouterError;
use crate::handlers::pass::{self, Passed, Pd};
use crate::handlers::{fleet, scrape, status, workers};
use crate::prompt::PromptField::{self, Input, Messages, Program, Text};
use crate::state::Router;
use crate::upstream::Upstream;

/// Paths that need no API key: probes and scrapers have none.
pub const OPEN: [&str; 4] = ["/health", "/liveness", "/readiness", "/metrics"];

const PROMPT: PromptField = Text(&["prompt"]);
const GENERATE: PromptField = Text(&["text", "input_ids"]);

/// `POST` routes that workers answer.
#[rustfmt::skip]
const PASSED: [Passed; 17] = [
    Passed { path: "/generate",                 prompt: GENERATE,         pd: Pd::Both(Generate) },
    Passed { path: "/v1/chat/completions",      prompt: Messages,         pd: Pd::Both(Chat) },
    Passed { path: "/v1/completions",           prompt: PROMPT,           pd: Pd::Both(Completions) },
    Passed { path: "/v1/embeddings",            prompt: Text(&["input"]), pd: Pd::Decode },
    Passed { path: "/v1/responses",             prompt: Input,            pd: Pd::Decode },
    Passed { path: "/v1/messages",              prompt: Messages,         pd: Pd::Decode },
    Passed { path: "/v1/programs",              prompt: Program,          pd: Pd::Decode },
    Passed { path: "/v1/messages/count_tokens", prompt: PromptField::None, pd: Pd::Prefill },
    Passed { path: "/v1/score",                 prompt: Text(&["query"]), pd: Pd::Decode },
    Passed { path: "/tokenize",                 prompt: PromptField::None, pd: Pd::Prefill },
    Passed { path: "/v1/tokenize",              prompt: PromptField::None, pd: Pd::Prefill },
    Passed { path: "/detokenize",               prompt: PromptField::None, pd: Pd::Prefill },
    Passed { path: "/v1/detokenize",            prompt: PromptField::None, pd: Pd::Prefill },
    Passed { path: "/completion",               prompt: PROMPT,           pd: Pd::Decode },
    Passed { path: "/completions",              prompt: PROMPT,           pd: Pd::Decode },
    Passed { path: "/api/chat",                 prompt: Messages,         pd: Pd::Decode },
    Passed { path: "/api/generate",             prompt: PROMPT,           pd: Pd::Decode },
];

/// `GET` routes that any worker answers.
const PROXIED: [&str; 3] = ["/v1/models", "/get_model_info", "/model_info"];

/// Adds all routes. `longest_body` is in bytes.
pub fn configure(config: &mut ServiceConfig, longest_body: usize) {
    config.app_data(PayloadConfig::new(longest_body));
    for route in PASSED {
        let handler = move |request: HttpRequest,
                            router: Data<Router>,
                            upstream: Data<Upstream>,
                            body: Result<Bytes, Error>| {
            pass::pass(route, request, router, upstream, body)
        };
        config.service(resource(route.path).route(web::post().to(handler)));
    }
    for path in PROXIED {
        let handler =
            move |request: HttpRequest, router: Data<Router>, upstream: Data<Upstream>| {
                pass::proxy(path, request, router, upstream)
            };
        config.service(resource(path).route(web::get().to(handler)));
    }
    let stored = |request: HttpRequest,
                  id: Path<String>,
                  router: Data<Router>,
                  upstream: Data<Upstream>,
                  body: Bytes| pass::stored(request, id, router, upstream, body);
    config
        .service(
            resource("/v1/responses/{id}")
                .route(web::get().to(stored))
                .route(web::delete().to(stored)),
        )
        .service(resource("/v1/responses/{id}/cancel").route(web::post().to(stored)))
        .service(resource("/health").route(web::get().to(status::live)))
        .service(resource("/liveness").route(web::get().to(status::live)))
        .service(resource("/readiness").route(web::get().to(status::ready)))
        .service(resource("/metrics").route(web::get().to(scrape::metrics)))
        .service(resource("/server_info").route(web::get().to(status::server_info)))
        .service(resource("/get_server_info").route(web::get().to(status::server_info)))
        .service(resource("/get_loads").route(web::get().to(fleet::loads)))
        .service(resource("/flush_cache").route(web::post().to(fleet::flush_cache)))
        .service(resource("/engine_metrics").route(web::get().to(fleet::engine_metrics)))
        .service(resource("/list_workers").route(web::get().to(workers::urls)))
        .service(
            resource("/workers")
                .route(web::get().to(workers::list))
                .route(web::post().to(workers::add)),
        )
        .service(
            resource("/workers/{id}")
                .route(web::get().to(workers::get))
                .route(web::delete().to(workers::remove)),
        )
        .default_service(web::to(status::unknown));
}

/// The route of the listener that serves metrics alone.
pub fn configure_metrics(config: &mut ServiceConfig) {
    config
        .service(resource("/metrics").route(web::get().to(scrape::metrics)))
        .default_service(web::to(status::unknown));
}

/// A path whose other methods get an error in the router's form.
fn resource(path: &str) -> actix_web::Resource {
    web::resource(path).default_service(web::to(wrong_method))
}

async fn wrong_method(request: HttpRequest) -> HttpResponse {
    let message = format!("{} does not answer {}.", request.path(), request.method());
    let status = StatusCode::METHOD_NOT_ALLOWED;
    RouterError::new(status, "method_not_allowed", message).error_response()
}
