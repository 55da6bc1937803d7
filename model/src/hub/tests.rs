use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server that speaks as much of the Hub's protocol as a download needs.
struct FakeHub {
    endpoint: String,
    files: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    /// Requests for files. Each download makes two: one for the size, one for the bytes.
    downloads: Arc<AtomicUsize>,
    tokens: Arc<Mutex<Vec<String>>>,
}

impl FakeHub {
    fn start(files: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files = files
            .iter()
            .map(|(n, text)| ((*n).to_owned(), text.as_bytes().to_vec()));
        let hub = Self {
            endpoint,
            files: Arc::new(Mutex::new(files.collect())),
            downloads: Arc::default(),
            tokens: Arc::default(),
        };
        let (files, downloads, tokens) =
            (hub.files.clone(), hub.downloads.clone(), hub.tokens.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &files, &downloads, &tokens);
            }
        });
        hub
    }
}

fn answer(
    stream: TcpStream,
    files: &Mutex<HashMap<String, Vec<u8>>>,
    downloads: &AtomicUsize,
    tokens: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut range = None;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").unwrap_or_default();
        match name.to_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "authorization" => tokens.lock().unwrap().push(value.to_owned()),
            _ => {}
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let files = files.lock().unwrap();
    let mut stream = stream;
    let mut reply = |status: &str, headers: &str, body: &[u8]| {
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n",
            body.len()
        )?;
        stream.write_all(body)
    };
    if path.starts_with("/api/models/org/private") {
        return reply("401 Unauthorized", "", b"");
    }
    if path.starts_with("/api/models/org/broken") {
        return reply("500 Internal Server Error", "", b"");
    }
    if path.starts_with("/api/models/org/tiny") {
        let siblings: Vec<Value> = files
            .keys()
            .map(|name| serde_json::json!({ "rfilename": name }))
            .collect();
        let body = serde_json::json!({ "siblings": siblings, "sha": COMMIT }).to_string();
        return reply(
            "200 OK",
            "content-type: application/json\r\n",
            body.as_bytes(),
        );
    }
    let file = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
    let Some((name, bytes)) = file.and_then(|name| files.get_key_value(name)) else {
        return reply("404 Not Found", "", b"");
    };
    downloads.fetch_add(1, Ordering::SeqCst);
    let range = range.unwrap_or_default();
    let (start, end) = range
        .strip_prefix("bytes=")
        .and_then(|r| r.split_once('-'))
        .unwrap_or_default();
    let start: usize = start.parse().unwrap_or(0);
    let end: usize = end.parse().map_or(bytes.len(), |end: usize| end + 1);
    let headers = format!(
        "content-range: bytes {start}-{}/{}\r\netag: \"etag-{name}\"\r\nx-repo-commit: {COMMIT}\r\n",
        end - 1,
        bytes.len()
    );
    reply("206 Partial Content", &headers, &bytes[start..end])
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(name: &str, endpoint: &str) -> (TempDir, HubOptions) {
    let cache = std::env::temp_dir().join(format!("hearth-hub-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&cache);
    let options = HubOptions {
        endpoint: endpoint.to_owned(),
        cache: cache.clone(),
        token: None,
        offline: false,
        without_weights: false,
    };
    (TempDir(cache), options)
}

const FILES: [(&str, &str); 6] = [
    ("config.json", "{}"),
    ("tokenizer.json", "{\"t\": 1}"),
    ("chat_template.jinja", "{{ x }}"),
    ("model.safetensors", "weights"),
    ("pytorch_model.bin", "not wanted"),
    ("README.md", "not wanted"),
];

#[test]
fn only_the_files_of_a_checkpoint_are_downloaded_and_only_once() {
    let hub = FakeHub::start(&FILES);
    let (_dir, mut options) = options("once", &hub.endpoint);
    options.token = Some("secret".to_owned());
    let dir = fetch("org/tiny", &options).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "tokenizer.json"
        ]
    );
    assert_eq!(
        std::fs::read_to_string(dir.join("model.safetensors")).unwrap(),
        "weights"
    );
    assert_eq!(hub.downloads.load(Ordering::SeqCst), 8);
    assert!(
        hub.tokens
            .lock()
            .unwrap()
            .iter()
            .all(|token| token == "Bearer secret")
    );
    assert!(!hub.tokens.lock().unwrap().is_empty());

    assert_eq!(fetch("org/tiny", &options).unwrap(), dir);
    assert_eq!(hub.downloads.load(Ordering::SeqCst), 8);
}

#[test]
fn shards_are_downloaded_through_the_index() {
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
    let files = [
        ("config.json", "{}"),
        (INDEX, index),
        ("one.safetensors", "1"),
        ("two.safetensors", "2"),
        ("three.safetensors", "3"),
    ];
    let hub = FakeHub::start(&files);
    let (_dir, mut options) = options("shards", &hub.endpoint);
    let dir = fetch("org/tiny", &options).unwrap();
    assert_eq!(
        std::fs::read_to_string(dir.join("two.safetensors")).unwrap(),
        "2"
    );
    assert!(!dir.join("three.safetensors").exists());

    // A complete snapshot is found without the network, and one that lacks a shard is not.
    options.offline = true;
    assert_eq!(fetch("org/tiny", &options).unwrap(), dir);
    std::fs::remove_file(dir.join("one.safetensors")).unwrap();
    assert!(matches!(
        fetch("org/tiny", &options),
        Err(HubError::Offline { .. })
    ));
    options.without_weights = true;
    assert_eq!(fetch("org/tiny", &options).unwrap(), dir);
}

#[test]
fn a_shard_outside_the_directory_is_refused() {
    let index = r#"{"weight_map": {"a": "../../evil"}}"#;
    let hub = FakeHub::start(&[("config.json", "{}"), (INDEX, index), ("../../evil", "x")]);
    let (_dir, options) = options("evil", &hub.endpoint);
    let error = fetch("org/tiny", &options).unwrap_err();
    assert!(matches!(error, HubError::BadIndex { .. }), "{error}");
}

#[test]
fn without_the_network_the_cache_is_used_and_its_absence_explained() {
    let hub = FakeHub::start(&FILES);
    let (_dir, mut options) = options("network", &hub.endpoint);
    // A port that nothing listens on.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let unreachable = format!("http://{closed}");

    options.endpoint = unreachable.clone();
    let error = fetch("org/tiny", &options).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, HubError::Unreachable { .. }), "{message}");
    assert!(
        message.contains(&unreachable) && message.contains("org/tiny"),
        "{message}"
    );
    assert!(message.contains("--model a directory"), "{message}");

    options.endpoint = hub.endpoint.clone();
    let dir = fetch("org/tiny", &options).unwrap();
    options.endpoint = unreachable;
    assert_eq!(fetch("org/tiny", &options).unwrap(), dir);
}

#[test]
fn each_kind_of_failure_says_what_it_is() {
    let hub = FakeHub::start(&[("config.json", "{}")]);
    let (_dir, options) = options("failures", &hub.endpoint);
    let error = |repo: &str| fetch(repo, &options).unwrap_err();
    assert!(matches!(error("org/absent"), HubError::NotFound { .. }));
    assert!(error("org/private").to_string().contains("HF_TOKEN"));
    assert!(matches!(error("org/broken"), HubError::Unreachable { .. }));
    let missing = error("org/tiny").to_string();
    assert!(
        missing.contains("org/tiny has no model.safetensors"),
        "{missing}"
    );
    for bad in [
        "",
        "tiny",
        "a/b/c",
        "../x",
        "org/",
        "org/na me",
        "org/..",
        "/etc/passwd",
    ] {
        assert!(matches!(error(bad), HubError::BadName { .. }), "{bad}");
    }
    assert!(is_repo_id("Qwen/Qwen2.5-0.5B-Instruct"));
}
