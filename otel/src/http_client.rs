//! OTLP over HTTP with the client that the workspace has already.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// An answer of a collector has a few bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// Blocks: the exporters call it on threads of their own.
#[derive(Debug)]
pub struct UreqClient(Agent);

impl UreqClient {
    pub fn new(timeout: Duration) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            // The exporter looks at the status itself, to know what to send again.
            .http_status_as_error(false)
            .build();
        Self(Agent::new_with_config(config))
    }
}

#[async_trait]
impl HttpClient for UreqClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let (parts, mut body) = self
            .0
            .run(Request::from_parts(parts, body.to_vec()))?
            .into_parts();
        let bytes = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(parts, Bytes::from(bytes)))
    }
}
