//! A worker that records what it gets and answers as a script says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::body::BodyStream;
use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data, PayloadConfig};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, rt};
use futures_util::stream;
use serde_json::{Value, json};

/// A request that a worker got.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub text: String,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

/// How a response ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Clean,
    /// The connection breaks.
    Break,
    /// Nothing more comes.
    Hang,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub content_type: &'static str,
    pub pieces: Vec<String>,
    /// Before the head and before each piece.
    pub pause: Duration,
    pub end: End,
    /// Whether not even the head is sent.
    pub hangs_at_once: bool,
}

impl Reply {
    pub fn json(status: u16, body: Value) -> Self {
        Self {
            status,
            content_type: "application/json",
            pieces: vec![body.to_string()],
            pause: Duration::ZERO,
            end: End::Clean,
            hangs_at_once: false,
        }
    }

    pub fn sse(events: &[&str]) -> Self {
        Self {
            content_type: "text/event-stream",
            pieces: events.iter().map(|&event| event.to_owned()).collect(),
            ..Self::json(200, Value::Null)
        }
    }

    pub fn ending(self, end: End) -> Self {
        Self { end, ..self }
    }

    pub fn slowly(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    pub fn hanging() -> Self {
        Self {
            hangs_at_once: true,
            ..Self::json(200, Value::Null)
        }
    }
}

type Script = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

pub struct State {
    seen: Mutex<Vec<Seen>>,
    script: Mutex<Script>,
    healthy: AtomicBool,
    /// Exchanges that the other side gave up.
    abandoned: AtomicUsize,
    model: String,
}

pub struct Fake {
    pub url: String,
    pub state: Arc<State>,
    handle: ServerHandle,
}

/// Counts an exchange that is dropped before its end.
struct Watch(Arc<State>, bool);

impl Watch {
    fn finished(mut self) {
        self.1 = true;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.1 {
            self.0.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Fake {
    /// A worker that answers every request with `{"worker": model}`.
    pub fn start(model: &str) -> Self {
        let state = Arc::new(State {
            seen: Mutex::default(),
            script: Mutex::new(Arc::new(|_: &Seen| Reply::json(200, Value::Null))),
            healthy: AtomicBool::new(true),
            abandoned: AtomicUsize::new(0),
            model: model.to_owned(),
        });
        let data = Data::from(Arc::clone(&state));
        let server = HttpServer::new(move || {
            App::new()
                .app_data(data.clone())
                .app_data(PayloadConfig::new(64 << 20))
                .route("/health", web::get().to(health))
                .route("/v1/models", web::get().to(models))
                .default_service(web::to(answer))
        })
        .workers(1)
        .h1_allow_half_closed(false)
        .disable_signals()
        .shutdown_timeout(0)
        .bind("127.0.0.1:0")
        .unwrap();
        let url = format!("http://{}", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        rt::spawn(server);
        let name = json!({"worker": model});
        let fake = Self { url, state, handle };
        fake.answer(move |_| Reply::json(200, name.clone()));
        fake
    }

    pub fn answer(&self, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        *self.state.script.lock().unwrap() = Arc::new(script);
    }

    pub fn always(&self, reply: Reply) {
        self.answer(move |_| reply.clone());
    }

    pub fn set_healthy(&self, healthy: bool) {
        self.state.healthy.store(healthy, Ordering::SeqCst);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// The request with this number, from 0 on, when it is there. A client of a prefill and a decode server
    /// may have its answer from one while the request to the other is on its way.
    pub async fn request(&self, number: usize) -> Seen {
        for _ in 0..1000 {
            if let Some(seen) = self.seen().get(number) {
                return seen.clone();
            }
            rt::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no request {number} in 10 s")
    }

    pub fn count(&self) -> usize {
        self.state.seen.lock().unwrap().len()
    }

    pub fn abandoned(&self) -> usize {
        self.state.abandoned.load(Ordering::SeqCst)
    }

    /// Closes the port and all connections.
    pub async fn kill(&self) {
        self.handle.stop(false).await;
    }
}

async fn health(state: Data<State>) -> HttpResponse {
    match state.healthy.load(Ordering::SeqCst) {
        true => HttpResponse::Ok().finish(),
        false => HttpResponse::ServiceUnavailable().finish(),
    }
}

async fn models(state: Data<State>) -> HttpResponse {
    let model = json!({"id": state.model, "object": "model"});
    HttpResponse::Ok().json(json!({"object": "list", "data": [model]}))
}

async fn answer(state: Data<State>, request: HttpRequest, body: Bytes) -> HttpResponse {
    let state = state.into_inner();
    let text = |value: &actix_web::http::header::HeaderValue| {
        String::from_utf8_lossy(value.as_bytes()).into_owned()
    };
    let headers = request.headers().iter();
    let seen = Seen {
        method: request.method().to_string(),
        path: request.uri().to_string(),
        headers: headers
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
        text: String::from_utf8_lossy(&body).into_owned(),
    };
    state.seen.lock().unwrap().push(seen.clone());
    let script = Arc::clone(&state.script.lock().unwrap());
    let reply = script(&seen);
    let mut watch = Watch(state, false);
    if reply.hangs_at_once {
        std::future::pending::<()>().await;
    }
    rt::time::sleep(reply.pause).await;
    let mut response = HttpResponse::build(StatusCode::from_u16(reply.status).unwrap());
    response
        .content_type(reply.content_type)
        .insert_header(("x-worker", watch.0.model.as_str()));
    if reply.content_type == "application/json" && reply.end == End::Clean {
        watch.1 = true;
        return response.body(reply.pieces.concat());
    }
    let pieces = reply.pieces.into_iter();
    let body = stream::unfold((pieces, watch), move |(mut pieces, mut watch)| async move {
        rt::time::sleep(reply.pause).await;
        match (pieces.next(), reply.end) {
            (Some(piece), _) => Some((Ok(Bytes::from(piece)), (pieces, watch))),
            (None, End::Clean) => {
                watch.finished();
                None
            }
            (None, End::Break) => {
                watch.1 = true;
                let error = std::io::Error::other("the script breaks the connection");
                Some((Err(error), (pieces, watch)))
            }
            (None, End::Hang) => {
                std::future::pending::<()>().await;
                None
            }
        }
    });
    response.body(BodyStream::new(Box::pin(body)))
}
