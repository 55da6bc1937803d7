//! `--api-key`, `--api-keys-file` and `--admin-api-key`: who may call which route.

use std::sync::Arc;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{
    AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpMessage};

use crate::clients::Caller;
use crate::error::ApiError;
use crate::exchange;
use crate::middleware::cors;
use crate::routes::{self, Access, Route};
use crate::state::AppState;

/// The header in which Anthropic's clients send the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_REQUESTED_WITH: HeaderName = HeaderName::from_static("x-requested-with");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Middleware.
///
/// # Errors
/// The route's errors. A refusal is a response and not an error.
pub async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let state = request.app_data::<Data<AppState>>();
    let caller = state.map(|state| {
        // The path is percent-decoded, as it is when actix finds the handler: `/flush%5Fcache` is
        // `/flush_cache` too.
        let path = request.match_info().as_str();
        let route = routes::find(path);
        let access = route.map_or(Access::Key, |route| route.access);
        // Where a path has the same row for both, a GET does what a POST does.
        let acts = |route: &Route| route.methods.contains(&Method::POST);
        let by_get = request.method() == Method::GET && route.is_some_and(acts);
        caller(state, access, by_get, request.headers())
    });
    let error = match caller {
        None => None,
        Some(Err(error)) => Some(error),
        Some(Ok(caller)) => {
            if let Some(client) = &caller.client {
                exchange::note_client(Arc::clone(client));
            }
            request.extensions_mut().insert(caller);
            None
        }
    };
    let Some(error) = error else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let mut response = routes::dialect_of(request.match_info().as_str()).refuse(&error);
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    Ok(request.into_response(response).map_into_right_body())
}

/// Finds the one who calls a route with this `access`, with a GET that changes something if
/// `acts_by_get`.
///
/// # Errors
/// 401 or 403 for a request that may not.
fn caller(
    state: &AppState,
    access: Access,
    acts_by_get: bool,
    headers: &HeaderMap,
) -> Result<Caller, ApiError> {
    let config = &state.config;
    if access == Access::Open {
        return Ok(Caller::default());
    }
    let changes = matches!(access, Access::Admin | Access::Own);
    // A page of another site, open in a browser at home, must not empty the cache of a server
    // there.
    if changes && cors::is_a_strangers(config.cors.as_deref(), headers) {
        return Err(ApiError::forbidden(
            "a web page may do this only if --cors names its origin",
        ));
    }
    // An older browser does not say whose page asks for an image.
    if changes && acts_by_get && !has_header_of_a_program(headers) {
        return Err(ApiError::forbidden(
            "send this request with POST, or with a header that a link or an image of a web page \
             cannot have, such as `Authorization` or `X-Requested-With`",
        ));
    }
    let given = given(headers);
    let is_admins = |given: &[u8]| {
        let admin = config.admin_api_key.as_ref();
        admin.is_some_and(|admin| admin.is(given))
    };
    let needs = match access {
        Access::Admin => config.admin_api_key.is_some() || state.clients.need_keys(),
        _ => state.clients.need_keys(),
    };
    if !needs {
        let admin = match &config.admin_api_key {
            Some(_) => given.is_some_and(is_admins),
            None => true,
        };
        return Ok(Caller {
            client: None,
            admin,
        });
    }
    let Some(given) = given else {
        return Err(ApiError::unauthorized(
            "this server wants an API key: `Authorization: Bearer KEY`, or `x-api-key: KEY`",
        ));
    };
    if changes && is_admins(given) {
        return Ok(Caller {
            client: None,
            admin: true,
        });
    }
    let client = state.clients.find(given);
    // Without an administrator's key, the one key opens everything.
    let is_only =
        config.admin_api_key.is_none() && config.api_key.as_ref().is_some_and(|key| key.is(given));
    let admin = is_only || client.as_ref().is_some_and(|client| client.admin);
    match client {
        Some(client) if access != Access::Admin || admin => Ok(Caller {
            client: Some(client),
            admin,
        }),
        Some(_) | None if access == Access::Admin && config.admin_api_key.is_some() => Err(
            ApiError::unauthorized("the API key given is not the --admin-api-key of this server"),
        ),
        Some(_) => Err(ApiError::unauthorized(
            "the API key given is not one of an administrator",
        )),
        None if config.api_keys_file.is_some() => Err(ApiError::unauthorized(
            "the API key given is not one of this server's",
        )),
        None => Err(ApiError::unauthorized(
            "the API key given is not the --api-key of this server",
        )),
    }
}

/// True if the request has a header that makes a browser ask the server first, or one that browsers
/// set themselves.
fn has_header_of_a_program(headers: &HeaderMap) -> bool {
    let names = [AUTHORIZATION, X_API_KEY, X_REQUESTED_WITH, SEC_FETCH_SITE];
    names.iter().any(|name| headers.contains_key(name))
}

fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get(X_API_KEY).map(HeaderValue::as_bytes))
}
