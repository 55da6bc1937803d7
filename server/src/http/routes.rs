//! The route table.

use actix_web::HttpRequest;
use actix_web::web::{self, ServiceConfig};

use super::error::ApiError;
use super::openai::{chat, completions};
use super::status;

/// Adds every route; a known path with another method is 405, all else 404.
pub fn configure(app: &mut ServiceConfig) {
    let get = |path: &str| web::resource(path).default_service(web::to(method_not_allowed));
    app.service(get("/health").route(web::get().to(status::health)))
        .service(get("/ready").route(web::get().to(status::ready)))
        .service(get("/version").route(web::get().to(status::version)))
        .service(get("/server_info").route(web::get().to(status::server_info)))
        .service(get("/get_server_info").route(web::get().to(status::server_info)))
        .service(get("/v1/models").route(web::get().to(status::models)))
        // Hub ids have a slash in them.
        .service(get("/v1/models/{id:.+}").route(web::get().to(status::model)))
        .service(get("/v1/chat/completions").route(web::post().to(chat::chat_completions)))
        .service(get("/v1/completions").route(web::post().to(completions::completions)))
        .default_service(web::to(not_found));
}

async fn not_found(request: HttpRequest) -> Result<&'static str, ApiError> {
    Err(ApiError::not_found(request.path()))
}

async fn method_not_allowed(request: HttpRequest) -> Result<&'static str, ApiError> {
    Err(ApiError::method_not_allowed(
        request.method().as_str(),
        request.path(),
    ))
}
