//! HTTPS, and HTTP/2 over it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use hearth_api::config::{HttpConfig, TlsFiles};
use hearth_api::tls;
use hearth_client::sse_data;
use hearth_engine::EngineConfig;
use reqwest::{Certificate, Version};
use serde_json::{Value, json};

use super::fake::{Behaviour, TestServer};
use super::{CHAT, COMPLETIONS};

/// Files with a self-signed certificate for this machine and its key.
struct Identity {
    pem: String,
    cert: PathBuf,
    key: PathBuf,
}

/// `name` is that of the test, because tests run at the same time.
fn identity(name: &str) -> Identity {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let pem = made.cert.pem();
    Identity {
        cert: file(&format!("{name}-cert.pem"), &pem),
        key: file(
            &format!("{name}-key.pem"),
            &made.signing_key.serialize_pem(),
        ),
        pem,
    }
}

fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn start(identity: &Identity, behaviour: Behaviour) -> TestServer {
    let config = HttpConfig {
        tls: Some(TlsFiles {
            cert: identity.cert.clone(),
            key: identity.key.clone(),
        }),
        ..HttpConfig::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), config)
}

/// A client that trusts `identity` and speaks `version`.
fn client(identity: &Identity, version: Version) -> reqwest::Client {
    let trusted = Certificate::from_pem(identity.pem.as_bytes()).unwrap();
    let builder = reqwest::Client::builder()
        .tls_built_in_root_certs(false)
        .add_root_certificate(trusted);
    let builder = match version {
        Version::HTTP_11 => builder.http1_only(),
        _ => builder,
    };
    builder.build().unwrap()
}

#[tokio::test]
async fn a_client_is_served_over_tls_in_either_version_of_http() {
    let identity = identity("versions");
    let server = start(&identity, Behaviour::default());
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let client = client(&identity, version);
        let health = client.get(format!("{}/health", server.url)).send().await;
        assert_eq!(health.unwrap().version(), version);
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0});
        let url = format!("{}{CHAT}", server.url);
        let whole = client.post(&url).json(&body).send().await.unwrap();
        let whole: Value = whole.json().await.unwrap();
        assert_eq!(whole["choices"][0]["message"]["content"], "abc");
        body["stream"] = json!(true);
        let stream = client.post(&url).json(&body).send().await.unwrap();
        assert_eq!((stream.version(), stream.status().as_u16()), (version, 200));
        let events = sse_data(&stream.bytes().await.unwrap());
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        // The role, three letters, the finish reason, and `[DONE]`.
        assert_eq!(events.len(), 6, "{events:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_trust_the_certificate_does_not_go_on() {
    let server = start(&identity("distrust"), Behaviour::default());
    let error = reqwest::get(format!("{}/health", server.url)).await;
    assert!(error.is_err(), "{error:?}");
}

#[tokio::test]
async fn plain_http_on_the_port_of_tls_gets_nothing_and_disturbs_nobody() {
    let identity = identity("plain");
    let server = start(&identity, Behaviour::default());
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let request = "GET /server_info HTTP/1.1\r\nhost: localhost\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let client = client(&identity, Version::HTTP_2);
    let health = client.get(format!("{}/health", server.url)).send().await;
    assert_eq!(health.unwrap().status(), 200);
}

/// A model that would generate for minutes.
fn endless() -> Behaviour {
    Behaviour {
        step: Duration::from_millis(5),
        max_model_len: 100_000,
        kv_slots: 100_000,
        endless: true,
        ..Behaviour::default()
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_of_http_2_cancels_its_request() {
    let identity = identity("leaves");
    let server = start(&identity, endless());
    let client = client(&identity, Version::HTTP_2);
    let body = json!({"prompt": "a", "max_tokens": 90_000, "stream": true});
    let request = client
        .post(format!("{}{COMPLETIONS}", server.url))
        .json(&body);
    let mut stream = request.send().await.unwrap().bytes_stream();
    assert!(stream.next().await.unwrap().is_ok());
    // The client leaves the stream, and the connection stays open.
    drop(stream);
    server.wait_until_idle().await;
    assert_eq!(server.state.loaded().unwrap().engine.stats().cancelled, 1);
}

#[tokio::test]
async fn a_client_of_http_2_that_leaves_without_a_stream_cancels_its_request_too() {
    let identity = identity("gone");
    let server = start(&identity, endless());
    let client = client(&identity, Version::HTTP_2);
    let url = format!("{}{COMPLETIONS}", server.url);
    let body = json!({"prompt": "a", "max_tokens": 90_000});
    let request = tokio::spawn(client.post(url).json(&body).send());
    let engine = server.state.loaded().unwrap().engine.clone();
    let deadline = Instant::now() + Duration::from_secs(30);
    while engine.stats().running == 0 {
        assert!(Instant::now() < deadline, "{:?}", engine.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The connection stays open, because the client keeps it.
    request.abort();
    server.wait_until_idle().await;
    assert_eq!(engine.stats().cancelled, 1);
    drop(client);
}

#[test]
fn files_that_are_no_certificate_and_its_key_are_refused_by_name() {
    let (own, other) = (identity("own"), identity("other"));
    let (empty, rubbish) = (
        file("empty.pem", ""),
        file("rubbish.pem", "no PEM at all\n"),
    );
    let broken = own.pem.replace("MII", "!!!");
    let broken = file("broken.pem", &broken);
    let missing = Path::new("/nowhere/cert.pem");
    let cases: [(&Path, &Path, &[&str]); 8] = [
        (
            missing,
            &own.key,
            &["--tls-cert /nowhere/cert.pem", "No such file"],
        ),
        (
            &own.cert,
            missing,
            &["--tls-key /nowhere/cert.pem", "No such file"],
        ),
        (
            &empty,
            &own.key,
            &["--tls-cert", "empty.pem has no certificate"],
        ),
        (
            &rubbish,
            &own.key,
            &["--tls-cert", "rubbish.pem has no certificate"],
        ),
        (
            &own.cert,
            &empty,
            &["--tls-key", "empty.pem has no private key"],
        ),
        // The two files are swapped.
        (
            &own.key,
            &own.cert,
            &["--tls-cert", "own-key.pem has no certificate"],
        ),
        (
            &own.cert,
            &other.key,
            &["other-key.pem is not the key of", "own-cert.pem"],
        ),
        (&broken, &own.key, &["--tls-cert", "broken.pem"]),
    ];
    for (cert, key, words) in cases {
        let error = tls::load(cert, key).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error:?} does not say {word:?}");
        }
    }
    assert!(tls::load(&own.cert, &own.key).is_ok());
}
