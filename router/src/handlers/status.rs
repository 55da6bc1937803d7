//! Health, readiness, and what the router is.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;

use crate::error::RouterError;
use crate::state::Router;
use crate::worker::Role;

/// The process serves HTTP.
pub async fn live() -> &'static str {
    "OK"
}

/// 200 if requests can be served: there is a healthy worker, in PD mode one of each kind.
pub async fn ready(router: Data<Router>) -> HttpResponse {
    let all = router.registry.all();
    let available = all.iter().filter(|worker| worker.is_available());
    let count = |role: Role| {
        let kind = available.clone().filter(|w| w.role.is_kind_of(role));
        kind.count()
    };
    let (prefill, decode) = (count(router.prefill.role), count(Role::Decode));
    let enough = match router.is_pd() {
        true => prefill > 0 && decode > 0,
        false => count(Role::Regular) > 0,
    };
    let reason = if router.is_stopping() {
        Some("the router is stopping")
    } else if !enough {
        Some("too few healthy workers")
    } else {
        None
    };
    let healthy = available.clone().count();
    let total = all.len();
    match reason {
        None => HttpResponse::Ok().json(json!({
            "status": "ready", "healthy_workers": healthy, "total_workers": total,
        })),
        Some(reason) => HttpResponse::ServiceUnavailable().json(json!({
            "status": "not ready", "reason": reason,
            "healthy_workers": healthy, "total_workers": total,
        })),
    }
}

/// The router's own version, mode and policies.
pub async fn server_info(router: Data<Router>) -> HttpResponse {
    let policy = |pool: &crate::select::Pool| pool.kind.name();
    let workers = router.registry.all();
    let body = if router.is_pd() {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "router_type": "pd",
            "prefill_policy": policy(&router.prefill),
            "decode_policy": policy(&router.decode),
            "workers": workers.len(),
        })
    } else {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "router_type": "regular",
            "policy": policy(&router.regular),
            "workers": workers.len(),
        })
    };
    HttpResponse::Ok().json(body)
}

/// 404 for a path that no route has.
///
/// # Errors
/// Always.
pub async fn unknown(request: actix_web::HttpRequest) -> Result<HttpResponse, RouterError> {
    Err(RouterError::not_found(request.path()))
}
