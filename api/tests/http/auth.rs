//! Keys, and pages of other origins.

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::fake::{Behaviour, TestServer};
use super::{CHAT, COMPLETIONS};

fn server(config: HttpConfig) -> TestServer {
    TestServer::start(Behaviour::default(), EngineConfig::default(), config)
}

async fn ask(
    server: &TestServer,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> Response {
    let mut request = reqwest::Client::new().request(method, format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

async fn status(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> u16 {
    ask(server, Method::GET, path, headers)
        .await
        .status()
        .as_u16()
}

#[tokio::test]
async fn with_a_key_only_health_readiness_and_metrics_are_open() {
    let server = server(HttpConfig {
        api_key: "open-sesame".parse().ok(),
        shown: json!({"api_key": "***"}),
        ..HttpConfig::default()
    });
    for path in ["/", "/ui/app.js", "/health", "/ready"] {
        assert_eq!(status(&server, path, &[]).await, 200, "{path}");
    }
    // `/metrics` asks for no key, whatever else it answers.
    assert_ne!(status(&server, "/metrics", &[]).await, 401);
    for path in [
        "/v1/models",
        "/server_info",
        "/api/tags",
        "/health_generate",
        "/nowhere",
    ] {
        assert_eq!(status(&server, path, &[]).await, 401, "{path}");
    }
    for path in [
        "/flush_cache",
        CHAT,
        COMPLETIONS,
        "/generate",
        "/v1/messages",
        "/api/chat",
        "/tokenize",
    ] {
        assert_eq!(
            ask(&server, Method::POST, path, &[]).await.status(),
            401,
            "{path}"
        );
    }
    for wrong in [
        "Bearer open-sesam",
        "Bearer open-sesamE",
        "Bearer ",
        "open-sesame",
        "Basic open-sesame",
    ] {
        assert_eq!(
            status(&server, "/v1/models", &[("authorization", wrong)]).await,
            401,
            "{wrong}"
        );
    }
    for (name, value) in [
        ("authorization", "Bearer open-sesame"),
        ("authorization", "bearer open-sesame"),
        ("x-api-key", "open-sesame"),
    ] {
        assert_eq!(
            status(&server, "/v1/models", &[(name, value)]).await,
            200,
            "{value}"
        );
        assert_eq!(
            status(&server, "/flush_cache", &[(name, value)]).await,
            200,
            "{value}"
        );
    }
    let info = ask(
        &server,
        Method::GET,
        "/server_info",
        &[("x-api-key", "open-sesame")],
    )
    .await;
    let info = info.text().await.unwrap();
    assert!(!info.contains("open-sesame"), "{info}");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["config"], json!({"api_key": "***"}));
}

#[tokio::test]
async fn a_refusal_is_in_the_shape_of_the_api_and_tells_nothing_of_the_key() {
    let server = server(HttpConfig {
        api_key: "open-sesame".parse().ok(),
        ..HttpConfig::default()
    });
    let key = [
        ("authorization", "Bearer shut-sesame"),
        ("x-request-id", "mine"),
    ];
    for (path, message) in [
        ("/v1/models", "/error/message"),
        ("/model_info", "/message"),
        ("/v1/messages", "/error/message"),
        ("/api/tags", "/error"),
    ] {
        let answer = ask(&server, Method::GET, path, &key).await;
        assert_eq!(answer.headers()["www-authenticate"], "Bearer");
        assert_eq!(answer.headers()["x-request-id"], "mine");
        let body: Value = answer.json().await.unwrap();
        let text = body.pointer(message).and_then(Value::as_str).unwrap();
        assert!(text.contains("not the --api-key"), "{path}: {body}");
        assert!(!text.contains("sesame"), "{path}: {body}");
    }
    let answer = ask(&server, Method::POST, "/v1/messages", &[]).await;
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["error"]["type"], "authentication_error");
    let answer = ask(&server, Method::GET, "/v1/models", &[]).await;
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["error"]["code"], "invalid_api_key");
}

#[tokio::test]
async fn the_admins_key_and_no_other_changes_the_server() {
    let server = server(HttpConfig {
        api_key: "everybody".parse().ok(),
        admin_api_key: "admin".parse().ok(),
        ..HttpConfig::default()
    });
    let key = |key| [("x-api-key", key)];
    assert_eq!(
        status(&server, "/flush_cache", &key("everybody")).await,
        401
    );
    assert_eq!(status(&server, "/flush_cache", &key("admin")).await, 200);
    // The same path in percent-encoding.
    for path in ["/flush%5Fcache", "/%66lush_cache"] {
        assert_eq!(
            status(&server, path, &key("everybody")).await,
            401,
            "{path}"
        );
        assert_eq!(status(&server, path, &key("admin")).await, 200, "{path}");
    }
    assert_eq!(status(&server, "/v1/models", &key("admin")).await, 401);
    for path in ["/pause_generation", "/continue_generation"] {
        let answer = ask(&server, Method::POST, path, &key("everybody")).await;
        assert_eq!(answer.status(), 401, "{path}");
    }
    // Steps of the engine are the administrator's, too.
    for (given, expected) in [("everybody", 401), ("admin", 200)] {
        assert_eq!(status(&server, "/debug/trace", &key(given)).await, expected);
    }
    // With an admin key only, all other routes are open.
    let server = self::server(HttpConfig {
        admin_api_key: "admin".parse().ok(),
        ..HttpConfig::default()
    });
    assert_eq!(status(&server, "/v1/models", &[]).await, 200);
    let answer = ask(&server, Method::POST, "/flush_cache", &[]).await;
    assert_eq!(answer.status(), 401);
}

#[tokio::test]
async fn pages_of_the_given_origins_may_read_answers_and_no_others() {
    let page = [
        ("origin", "https://chat.example"),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization, content-type",
        ),
    ];
    let shared = server(HttpConfig {
        cors: Some("https://other.example, https://chat.example".to_owned()),
        api_key: "key".parse().ok(),
        ..HttpConfig::default()
    });
    // The browser first sends a preflight request, without the key.
    let answer = ask(&shared, Method::OPTIONS, CHAT, &page).await;
    assert_eq!(answer.status(), 204);
    let headers = answer.headers();
    assert_eq!(
        headers["access-control-allow-origin"],
        "https://chat.example"
    );
    assert_eq!(
        headers["access-control-allow-headers"],
        "authorization, content-type"
    );
    assert!(
        headers["access-control-allow-methods"]
            .to_str()
            .unwrap()
            .contains("POST")
    );
    // The page may also read refusals.
    let answer = ask(&shared, Method::GET, "/v1/models", &page[..1]).await;
    assert_eq!(answer.status(), 401);
    assert_eq!(
        answer.headers()["access-control-allow-origin"],
        "https://chat.example"
    );
    let stranger = [("origin", "https://stranger.example"), page[1]];
    for (server, headers) in [(&shared, &stranger[..]), (&TestServer::plain(), &page[..])] {
        let answer = ask(server, Method::OPTIONS, "/health", headers).await;
        assert!(!answer.headers().contains_key("access-control-allow-origin"));
        assert_eq!(answer.status().as_u16() / 100, 4);
        let answer = ask(server, Method::GET, "/health", headers).await;
        assert!(!answer.headers().contains_key("access-control-allow-origin"));
        assert_eq!(answer.status(), 200);
    }
    let all = server(HttpConfig {
        cors: Some("*".to_owned()),
        ..HttpConfig::default()
    });
    let answer = ask(&all, Method::GET, "/health", &page[..1]).await;
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn a_web_page_cannot_pass_for_curl() {
    let server = TestServer::plain();
    let stranger = Some("https://stranger.example");
    let post = async |route: &str, kind: Option<&str>, origin: Option<&str>| {
        let mut request = reqwest::Client::new()
            .post(format!("{}{route}", server.url))
            .body(json!({"model": super::fake::MODEL}).to_string());
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send().await.unwrap().status().as_u16()
    };
    for kind in [Some("text/plain"), None] {
        assert_eq!(post("/api/generate", kind, None).await, 200);
        assert_eq!(post("/api/generate", kind, stranger).await, 415);
        assert_eq!(post("/pause_generation", kind, stranger).await, 403);
    }
}

#[tokio::test]
async fn a_strangers_page_cannot_flush_the_cache_and_a_granted_one_can() {
    let home = "https://home.example";
    let server = server(HttpConfig {
        cors: Some(home.to_owned()),
        ..HttpConfig::default()
    });
    let stranger = ("origin", "https://stranger.example");
    let image = ("sec-fetch-site", "cross-site");
    let neighbour = ("sec-fetch-site", "same-site");
    let program = ("x-requested-with", "curl");
    // A browser that says nothing of the page sends an image's request without any header.
    for (headers, get, post) in [
        (vec![], 403, 200),
        (vec![program], 200, 200),
        (vec![stranger], 403, 403),
        (vec![stranger, program], 403, 403),
        (vec![image], 403, 403),
        (vec![neighbour], 403, 403),
        (vec![("origin", home), image], 200, 200),
        (vec![("sec-fetch-site", "none")], 200, 200),
    ] {
        for (method, status) in [(Method::GET, get), (Method::POST, post)] {
            let answer = ask(&server, method, "/flush_cache", &headers).await;
            assert_eq!(answer.status(), status, "{headers:?}");
            assert!(!answer.headers().contains_key("www-authenticate"));
        }
    }
}
