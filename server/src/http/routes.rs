//! The route table.

use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{self, ServiceConfig};
use actix_web::{
    FromRequest, Handler, HttpRequest, HttpResponse, Resource, Responder, ResponseError,
};

use super::error::ApiError;
use super::openai::{chat, completions};
use super::status;

/// Adds every route; a known path with another method is 405, all else 404.
pub fn configure(app: &mut ServiceConfig) {
    app.service(get("/health", status::health))
        .service(get("/ready", status::ready))
        .service(get("/version", status::version))
        .service(get("/server_info", status::server_info))
        .service(get("/get_server_info", status::server_info))
        .service(get("/v1/models", status::models))
        // Hub ids have a slash in them.
        .service(get("/v1/models/{id:.+}", status::model))
        .service(post("/v1/chat/completions", chat::chat_completions))
        .service(post("/v1/completions", completions::completions))
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

async fn not_found(request: HttpRequest) -> Result<&'static str, ApiError> {
    Err(ApiError::not_found(request.path()))
}

async fn refuse_method(request: HttpRequest, allowed: &'static str) -> HttpResponse {
    let error = ApiError::method_not_allowed(request.method().as_str(), request.path());
    let mut response = error.error_response();
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
