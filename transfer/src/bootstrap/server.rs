//! The bootstrap server.

use std::io;
use std::net::{IpAddr, SocketAddr};

use actix_web::dev::Server;
use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Query};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use serde::Deserialize;
use serde_json::json;

use super::Rank;
use crate::identity::Identity;
use crate::listener::KvListener;

/// The bootstrap server was not started.
#[derive(Debug, thiserror::Error)]
// The reason is the next error in the chain.
#[error("cannot listen on {host}:{port} for decode servers")]
pub struct BootstrapError {
    host: String,
    port: u16,
    source: io::Error,
}

/// The facts that the routes answer with.
struct State {
    kv: SocketAddr,
    identity: Identity,
}

/// Opens the bootstrap server of a prefill server, whose KV port is `kv`. It runs when the
/// returned server is polled.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(
    host: &str,
    port: u16,
    kv: &KvListener,
) -> Result<(Server, Vec<SocketAddr>), BootstrapError> {
    let state = Data::new(State {
        kv: kv.address(),
        identity: kv.identity().clone(),
    });
    let app = move || {
        App::new()
            .app_data(state.clone())
            .route("/health", web::get().to(async || "OK"))
            .route("/route", web::get().to(route))
            .route("/route", web::put().to(refuse_rank))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .on_connect(|io, data| {
            if let Some(stream) = io.downcast_ref::<actix_web::rt::net::TcpStream>()
                && let Ok(address) = stream.local_addr()
            {
                data.insert(address);
            }
        })
        .disable_signals()
        .bind((host, port))
        .map_err(|source| BootstrapError {
            host: host.to_owned(),
            port,
            source,
        })?;
    let addresses = server.addrs();
    Ok((server.run(), addresses))
}

/// SGLang's query: a rank of each kind of parallelism, or -1 in all of them for the topology.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct RouteQuery {
    prefill_dp_rank: i64,
    prefill_cp_rank: i64,
    target_tp_rank: i64,
    target_pp_rank: i64,
}

impl Default for RouteQuery {
    fn default() -> Self {
        Self {
            prefill_dp_rank: -1,
            prefill_cp_rank: -1,
            target_tp_rank: -1,
            target_pp_rank: -1,
        }
    }
}

async fn route(request: HttpRequest, state: Data<State>, query: Query<RouteQuery>) -> HttpResponse {
    let ranks = [
        ("prefill_dp_rank", query.prefill_dp_rank),
        ("prefill_cp_rank", query.prefill_cp_rank),
        ("target_tp_rank", query.target_tp_rank),
        ("target_pp_rank", query.target_pp_rank),
    ];
    if ranks.iter().all(|(_, rank)| *rank == -1) {
        return HttpResponse::Ok().json(json!({
            "attn_tp_size": 1,
            "attn_cp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "page_size": state.identity.page_size,
            "kv_cache_dtype": state.identity.dtype,
        }));
    }
    if let Some((name, rank)) = ranks.iter().find(|(_, rank)| *rank > 0) {
        let error = format!("{name} must be 0, got {rank}: this server has one rank");
        return HttpResponse::NotFound().json(json!({ "error": error }));
    }
    HttpResponse::Ok().json(Rank {
        rank_ip: reachable(state.kv.ip(), &request).to_string(),
        rank_port: state.kv.port(),
    })
}

/// The address under which the peer reaches the KV port: an unspecified address means that of the
/// interface on which the request came.
fn reachable(kv: IpAddr, request: &HttpRequest) -> IpAddr {
    let connection = request.conn_data::<SocketAddr>();
    let local = connection.map(|address| address.ip());
    match kv.is_unspecified() {
        true => local.unwrap_or(kv),
        false => kv,
    }
}

async fn refuse_rank() -> HttpResponse {
    let error = "this server has one rank, which registers itself";
    HttpResponse::build(StatusCode::METHOD_NOT_ALLOWED).json(json!({ "error": error }))
}
