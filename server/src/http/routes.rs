//! The route table.

use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{self, ServiceConfig};
use actix_web::{FromRequest, Handler, HttpRequest, HttpResponse, Resource, Responder};

use super::anthropic::messages;
use super::error::ApiError;
use super::metrics;
use super::ollama;
use super::openai::responses::{create, stored};
use super::openai::{chat, completions, embeddings};
use super::openapi;
use super::sglang::{control, encode, generate, model, score, tokens};
use super::shape::Shape;
use super::status;

/// Adds every route; a known path with another method is 405, all else 404.
pub fn configure(app: &mut ServiceConfig) {
    app.service(get("/", status::root))
        .service(get("/health", status::health))
        .service(get("/ready", status::ready))
        .service(get("/metrics", metrics::metrics))
        .service(get("/version", status::version))
        .service(get("/openapi.json", openapi::document))
        .service(get("/docs", openapi::page))
        .service(get("/server_info", status::server_info))
        .service(get("/get_server_info", status::server_info))
        .service(get("/v1/models", status::models))
        // Hub ids have a slash in them.
        .service(get("/v1/models/{id:.+}", status::model))
        .service(post("/v1/chat/completions", chat::chat_completions))
        .service(post("/v1/completions", completions::completions))
        .service(post("/v1/embeddings", embeddings::embeddings))
        .service(post("/v1/responses", create::create))
        .service(post("/v1/responses/{id}/cancel", stored::cancel))
        .service(get_or_delete(
            "/v1/responses/{id}",
            stored::retrieve,
            stored::delete,
        ))
        .service(post_or_put("/generate", generate::generate))
        .service(post_or_put("/encode", encode::encode))
        .service(post("/v1/score", score::score))
        .service(get("/model_info", model::model_info))
        .service(get("/get_model_info", model::model_info))
        .service(get("/get_load", model::get_load))
        .service(get("/v1/loads", model::loads))
        .service(get("/health_generate", model::health_generate))
        .service(post("/tokenize", tokens::tokenize))
        .service(post("/v1/tokenize", tokens::tokenize))
        .service(post("/detokenize", tokens::detokenize))
        .service(post("/v1/detokenize", tokens::detokenize))
        .service(get_or_post("/flush_cache", control::flush_cache))
        .service(post("/abort_request", control::abort_request))
        .service(post("/pause_generation", control::pause_generation))
        .service(post("/continue_generation", control::continue_generation))
        .service(post("/v1/messages", messages::messages))
        .service(post("/v1/messages/count_tokens", messages::count_tokens))
        .service(post("/api/chat", ollama::generate::chat))
        .service(post("/api/generate", ollama::generate::generate))
        .service(post("/api/show", ollama::model::show))
        .service(get("/api/tags", ollama::model::tags))
        .service(get("/api/ps", ollama::model::running))
        .service(get("/api/version", ollama::model::version))
        .default_service(web::to(not_found));
}

fn get<H, Args>(path: &str, handler: H) -> Resource
where
    H: Handler<Args>,
    Args: FromRequest + 'static,
    H::Output: Responder + 'static,
{
    // Load balancers ask with HEAD.
    web::resource(path)
        .route(web::get().to(handler.clone()))
        .route(web::head().to(handler))
        .default_service(web::to(|request| refuse_method(request, "GET, HEAD")))
}

fn post<H, Args>(path: &str, handler: H) -> Resource
where
    H: Handler<Args>,
    Args: FromRequest + 'static,
    H::Output: Responder + 'static,
{
    web::resource(path)
        .route(web::post().to(handler))
        .default_service(web::to(|request| refuse_method(request, "POST")))
}

fn post_or_put<H, Args>(path: &str, handler: H) -> Resource
where
    H: Handler<Args>,
    Args: FromRequest + 'static,
    H::Output: Responder + 'static,
{
    web::resource(path)
        .route(web::post().to(handler.clone()))
        .route(web::put().to(handler))
        .default_service(web::to(|request| refuse_method(request, "POST, PUT")))
}

fn get_or_post<H, Args>(path: &str, handler: H) -> Resource
where
    H: Handler<Args>,
    Args: FromRequest + 'static,
    H::Output: Responder + 'static,
{
    web::resource(path)
        .route(web::get().to(handler.clone()))
        .route(web::post().to(handler))
        .default_service(web::to(|request| refuse_method(request, "GET, POST")))
}

fn get_or_delete<G, D, GetArgs, DeleteArgs>(path: &str, get: G, delete: D) -> Resource
where
    G: Handler<GetArgs>,
    D: Handler<DeleteArgs>,
    GetArgs: FromRequest + 'static,
    DeleteArgs: FromRequest + 'static,
    G::Output: Responder + 'static,
    D::Output: Responder + 'static,
{
    web::resource(path)
        .route(web::get().to(get.clone()))
        .route(web::head().to(get))
        .route(web::delete().to(delete))
        .default_service(web::to(|request| {
            refuse_method(request, "GET, HEAD, DELETE")
        }))
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let path = request.path();
    Shape::of(path).refuse(&ApiError::not_found(path))
}

async fn refuse_method(request: HttpRequest, allowed: &'static str) -> HttpResponse {
    let error = ApiError::method_not_allowed(request.method().as_str(), request.path());
    let shape = Shape::of(request.path());
    let mut response = shape.refuse(&error);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
