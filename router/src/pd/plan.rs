//! The parts of a request that are the same in each attempt.

use std::time::Instant;

use actix_web::web::Bytes;
use hearth_otel::Trace;
use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::body::Fields;
use crate::bootstrap::{Bootstrap, decode_fields, rooms};
use crate::defaults::{PdRoute, fill};
use crate::error::RouterError;
use crate::prompt::PromptField;
use crate::request_id::request_id;
use crate::state::Router;
use crate::upstream::{Leg, Outgoing};
use crate::worker::{Lease, Role};

/// A request of a client.
#[derive(Debug)]
pub struct PdIncoming {
    pub route: PdRoute,
    pub path: String,
    pub endpoint: &'static str,
    pub prompt: PromptField,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub received: Instant,
    /// The trace of the request, if traces are recorded.
    pub trace: Option<Trace>,
}

/// The part of prefill's response that the client's answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    Nothing,
    /// The prompt's log-probabilities, without which the response is wrong.
    Logprobs,
    /// `usage.prompt_tokens_details`, without which the response is less exact.
    Details,
}

/// The request as both workers get it.
pub struct Plan<'a> {
    incoming: &'a PdIncoming,
    pub fields: Fields<'a>,
    /// The inside of the object that both workers get, without the bootstrap fields.
    filled: String,
    rooms: Option<usize>,
    pub streamed: bool,
    pub needed: Needed,
}

impl<'a> Plan<'a> {
    /// # Errors
    /// 400 if the body is no JSON object, or `n` is out of bounds.
    pub fn new(router: &Router, incoming: &'a PdIncoming) -> Result<Self, RouterError> {
        let fields = Fields::parse(&incoming.body).map_err(|error| {
            let message = format!("The body of the request must be a JSON object: {error}.");
            RouterError::bad_request(message)
        })?;
        let streamed = fields.is_true("stream");
        let usage = || {
            let options = Fields::parse(fields.given("stream_options")?.as_bytes()).ok()?;
            Some(options.is_true("include_usage"))
        };
        let needed = match incoming.route {
            PdRoute::Generate => match fields.given("return_logprob") {
                None | Some("false") => Needed::Nothing,
                // True, or a list for a batch.
                Some(_) => Needed::Logprobs,
            },
            PdRoute::Chat | PdRoute::Completions if streamed && usage() != Some(true) => {
                Needed::Nothing
            }
            PdRoute::Chat | PdRoute::Completions => Needed::Details,
        };
        let prefix = incoming.route.id_prefix();
        let filled = fill(incoming.route, fields.clone(), || {
            request_id(prefix, router.address)
        });
        Ok(Self {
            rooms: rooms(incoming.route, &fields)?,
            incoming,
            fields,
            filled,
            streamed,
            needed,
        })
    }

    /// The bodies for prefill and decode, with new rooms.
    pub fn bodies(&self, prefill: &Lease) -> (Bytes, Bytes) {
        let worker = prefill.worker();
        let port = match worker.role {
            Role::Prefill { bootstrap_port } => bootstrap_port,
            Role::Regular | Role::Decode => None,
        };
        let mut text = self.filled.clone();
        let bootstrap = Bootstrap {
            host: &worker.host,
            port,
            rooms: self.rooms,
        };
        bootstrap.write(&mut text);
        let prefill = format!("{{{text}}}");
        decode_fields(&self.fields, &mut text);
        (Bytes::from(prefill), Bytes::from(format!("{{{text}}}")))
    }

    /// The body for a decode worker that computes the prompt itself.
    pub fn body_alone(&self) -> Bytes {
        let mut text = self.filled.clone();
        decode_fields(&self.fields, &mut text);
        Bytes::from(format!("{{{text}}}"))
    }

    pub fn outgoing(&self, lease: &Lease, body: Bytes) -> Outgoing {
        Outgoing {
            method: Method::POST,
            url: format!("{}{}", lease.worker().url, self.incoming.path),
            headers: self.incoming.headers.clone(),
            body: Some(body),
            leg: self.incoming.trace.clone().map(|trace| Leg {
                trace,
                role: lease.worker().role.name(),
                endpoint: self.incoming.endpoint,
            }),
        }
    }
}
