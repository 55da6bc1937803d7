//! Requests to workers.

use std::pin::Pin;
use std::time::Duration;

use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt};
use hearth_otel::{ClientSpan, Trace};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode};

/// Time in which a connection to a worker must be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which an idle connection to a worker is kept. It is shorter than that of common servers
/// (uvicorn's is 5 s), so that the router and not the worker closes it: a request that is sent while
/// the worker closes the connection fails.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// The rest of a response's body.
pub type Rest = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>>>>;

/// A client of the workers. Each thread of the server has its own, so that a connection is driven
/// by the thread that waits for it.
#[derive(Clone, Debug)]
pub struct Upstream {
    http: reqwest::Client,
    timeout: Duration,
}

/// A request that can be sent more than once.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub method: Method,
    pub url: String,
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    pub leg: Option<Leg>,
}

/// The part of a request's trace that is about one worker.
#[derive(Clone, Debug)]
pub struct Leg {
    pub trace: Trace,
    /// The worker's role.
    pub role: &'static str,
    /// The route's pattern.
    pub endpoint: &'static str,
}

/// A response whose first bytes have arrived, or that has none.
pub struct Opened {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub first: Option<Bytes>,
    pub rest: Rest,
    /// It ends with the response.
    pub span: Option<ClientSpan>,
}

impl Outgoing {
    /// Begins the span of this request, which the worker continues.
    fn begin(&mut self) -> Option<ClientSpan> {
        let leg = self.leg.as_ref()?;
        let span = leg.trace.client(
            format!("{} {}", self.method, leg.endpoint),
            self.method.as_str(),
            [
                ("url.full", self.url.clone()),
                ("hearth.worker.role", leg.role.to_owned()),
            ],
        );
        for (name, value) in span.headers() {
            let name = HeaderName::try_from(name);
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                self.headers.insert(name, value);
            }
        }
        Some(span)
    }
}

impl Upstream {
    /// `timeout` is for a whole exchange, to the last byte of the response.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(timeout: Duration) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            // Workers are named by their addresses; a proxy of the environment is for others.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .build()?;
        Ok(Self { http, timeout })
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// The worker does not respond.
    pub async fn send(&self, outgoing: Outgoing) -> reqwest::Result<Response> {
        let mut request = self
            .http
            .request(outgoing.method, outgoing.url)
            .headers(outgoing.headers)
            .timeout(self.timeout);
        if let Some(body) = outgoing.body {
            request = request.body(body);
        }
        // The caller names the worker, so the URL would be there twice.
        request.send().await.map_err(reqwest::Error::without_url)
    }

    /// Sends a request, and waits for the first bytes of the response's body, so that a worker that
    /// fails before them can still be replaced by another.
    ///
    /// # Errors
    /// The worker does not respond, or the response breaks off before its first byte.
    pub async fn open(&self, mut outgoing: Outgoing) -> reqwest::Result<Opened> {
        let mut span = outgoing.begin();
        let opened = self.opened(outgoing, &mut span).await;
        if let (Err(error), Some(span)) = (&opened, &mut span) {
            span.failed("transport", &chain(error));
        }
        opened.map(|opened| Opened { span, ..opened })
    }

    async fn opened(
        &self,
        outgoing: Outgoing,
        span: &mut Option<ClientSpan>,
    ) -> reqwest::Result<Opened> {
        let response = self.send(outgoing).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        if let Some(span) = span {
            span.status(status.as_u16());
        }
        let rest = response.bytes_stream();
        let mut rest: Rest = Box::pin(rest.map(|piece| piece.map_err(reqwest::Error::without_url)));
        let first = rest.next().await.transpose()?;
        Ok(Opened {
            status,
            headers,
            first,
            rest,
            span: None,
        })
    }

    /// The whole body of a `GET`, if the status is a success.
    ///
    /// # Errors
    /// The worker does not respond within `timeout`, or with another status.
    pub async fn get(
        &self,
        url: String,
        headers: HeaderMap,
        timeout: Duration,
    ) -> reqwest::Result<Bytes> {
        let request = self.http.get(url).headers(headers).timeout(timeout);
        request.send().await?.error_for_status()?.bytes().await
    }
}

impl Opened {
    /// A response whose whole body is here.
    pub fn whole(status: StatusCode, mut headers: HeaderMap, body: Bytes) -> Self {
        headers.insert(CONTENT_LENGTH, body.len().into());
        Self {
            status,
            headers,
            first: Some(body),
            rest: Box::pin(futures_util::stream::empty()),
            span: None,
        }
    }

    /// The next piece of the body.
    pub async fn next(&mut self) -> Option<reqwest::Result<Bytes>> {
        match self.first.take() {
            Some(first) => Some(Ok(first)),
            None => self.rest.next().await,
        }
    }

    /// The length of the body, if the worker announced it.
    pub fn length(&self) -> Option<u64> {
        self.headers
            .get(CONTENT_LENGTH)?
            .to_str()
            .ok()?
            .parse()
            .ok()
    }

    pub fn content_type(&self) -> &str {
        let value = self.headers.get(CONTENT_TYPE);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The whole body.
    ///
    /// # Errors
    /// The response breaks off, or has more than `most` bytes.
    pub async fn collect(mut self, most: usize) -> Result<Vec<u8>, CollectError> {
        let mut body = Vec::new();
        while let Some(piece) = self.next().await.transpose()? {
            if body.len() + piece.len() > most {
                return Err(CollectError::TooLong { most });
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }
}

/// Why a body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("the response broke off: {}", chain(.0))]
    Broken(#[from] reqwest::Error),
    #[error("the response is longer than {most} bytes")]
    TooLong { most: usize },
}

/// An error with its causes: the outermost says only that a request failed.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
