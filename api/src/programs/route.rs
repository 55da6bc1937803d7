//! `POST /v1/programs`: runs a program that was traced elsewhere.

use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use hearth_client::lang::{Error, Frontend, Graph, Op, Retry};

use crate::adapters::Choice;
use crate::error::ApiError;
use crate::exchange::{self, Exchange};
use crate::fields::sampling::SamplingFields;
use crate::fields::structured::{Asked, compile};
use crate::middleware::request_id::RequestId;
use crate::programs::answer::Running;
use crate::programs::backend::{EngineBackend, checked};
use crate::programs::request::{ProgramRequest, graph};
use crate::respond::json;
use crate::served::Served;
use crate::state::{AppState, unix_time};
use crate::{body, offload, sse, stall};

/// Calls of one program that run at the same time.
const IN_FLIGHT: usize = 32;

struct Prepared {
    graph: Graph,
    /// The grammars of the program, with the numbers of their nodes.
    grammars: Vec<(usize, Asked)>,
    stream: bool,
    namespace: Option<String>,
    adapter: Choice,
    priority: i32,
}

/// # Errors
/// 4xx for a faulty program, 503 without a model. An error of a call while the program runs is in
/// the answer, with the state that it ended.
pub async fn programs(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let (served, prepared) = offload::prepare(&request, payload, &state, prepare).await?;
    for (index, asked) in prepared.grammars {
        let compiled = compile(&served, Some(asked)).await;
        compiled.map_err(|error| error.within(&format!("nodes[{index}]")))?;
    }
    let named = prepared.adapter.0.as_ref();
    let named = named.and_then(|adapter| adapter.name.clone());
    let model = named.unwrap_or_else(|| served.id.clone());
    let text_limit = served.max_prompt_bytes();
    let backend = EngineBackend::new(served)
        .apart(prepared.namespace, prepared.priority)
        .adapted(prepared.adapter);
    let mut frontend = Frontend::new(backend)
        .in_flight(IN_FLIGHT)
        .retrying(Retry {
            attempts: 4,
            ..Retry::default()
        })
        .text_limit(text_limit);
    if prepared.stream {
        frontend = frontend.streaming();
    }
    let states = prepared.graph.run(&frontend).map_err(|error| match error {
        Error::Misuse(message) => ApiError::field("nodes", message),
        other => ApiError::internal(other.to_string()),
    })?;
    let running = Running {
        id: RequestId::of(&request),
        created: unix_time(),
        model,
        states,
    };
    if !prepared.stream {
        let answer = running.ended().await;
        return Ok(HttpResponse::Ok()
            .content_type("application/json")
            .body(json(&answer)));
    }
    exchange::note_stream();
    let mut response = HttpResponse::Ok();
    response
        .content_type(sse::CONTENT_TYPE)
        .insert_header((CACHE_CONTROL, "no-cache"));
    Ok(match Exchange::current() {
        Some(exchange) => {
            response.streaming(stall::cut_off(running.events(), exchange.stall_timeout))
        }
        None => response.streaming(running.events()),
    })
}

fn prepare(served: &Served, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let request: ProgramRequest = body::parse(bytes)?;
    let adapter = served.choose_model(request.model.as_deref())?;
    let shared = SamplingFields {
        cache_salt: request.cache_salt,
        priority: request.priority,
        ..SamplingFields::default()
    };
    let graph = graph(request.nodes)?;
    let mut grammars = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Op::Gen(generation) = &node.op {
            let checked = checked(served, &generation.sampling, &generation.format);
            let (.., asked) = checked.map_err(|error| error.within(&format!("nodes[{index}]")))?;
            grammars.extend(asked.map(|asked| (index, asked)));
        }
    }
    Ok(Prepared {
        graph,
        grammars,
        stream: request.stream.unwrap_or(false),
        namespace: shared.namespace()?,
        adapter,
        priority: shared.priority(served.engine.heeds_priority())?,
    })
}
