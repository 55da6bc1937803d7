//! OTLP over HTTP with `ureq`, the HTTP client that the workspace already depends on.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// Bytes read of a collector's response, which normally has only a few.
const MAX_RESPONSE: u64 = 4 << 20;

/// An HTTP client that blocks. The exporters call it on their own threads.
#[derive(Debug)]
pub struct UreqClient(Agent);

impl UreqClient {
    pub fn new(timeout: Duration) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            // The exporter examines the status itself to decide what to send again.
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
        let bytes = body.with_config().limit(MAX_RESPONSE).read_to_vec()?;
        Ok(Response::from_parts(parts, Bytes::from(bytes)))
    }
}
