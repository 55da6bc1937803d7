//! The clients of this server: each API key is one, with a name, and perhaps limits.
//!
//! Keys come from `--api-key` and from the file of `--api-keys-file`, which is read again when the
//! process gets a SIGHUP. A key that stays in the file keeps its counts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use actix_web::{HttpMessage, HttpRequest};
use serde::Deserialize;

use crate::error::ApiError;
use crate::secret::Secret;

/// The name of the client whose key is `--api-key`.
const DEFAULT: &str = "default";
/// Bytes of a name, which is in logs and metrics.
const MAX_NAME_BYTES: usize = 64;
/// Most keys of a file, each of which has series in the metrics.
pub const MAX_KEYS: usize = 1000;
/// Bytes of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why a file of keys cannot be used. The messages show no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: {reason}")]
    Malformed { path: PathBuf, reason: String },
}

/// The limits of a client; `None` for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most sequences that it may have in flight, running and waiting.
    pub max_requests: Option<usize>,
    /// Tokens of prompts and outputs in a minute.
    pub tokens_per_minute: Option<u64>,
}

/// A client, which is one API key.
#[derive(Debug)]
pub struct Client {
    pub name: String,
    secret: Secret,
    /// True if its key opens the routes that change the server.
    pub admin: bool,
    limits: Limits,
    counts: Arc<Counts>,
}

/// Counts that last when the file is read again.
#[derive(Debug)]
struct Counts {
    in_flight: AtomicUsize,
    /// Tokens that it may still use, which may be negative, and when that was so.
    tokens: Mutex<(f64, Instant)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    name: String,
    key: Secret,
    #[serde(default)]
    admin: bool,
    max_requests: Option<usize>,
    tokens_per_minute: Option<u64>,
}

/// All clients of a server.
#[derive(Debug)]
pub struct Clients {
    own: Option<Arc<Client>>,
    file: Option<PathBuf>,
    listed: RwLock<Arc<Vec<Arc<Client>>>>,
}

impl Clients {
    /// The client of `--api-key`, and those of `file`.
    ///
    /// # Errors
    /// The file cannot be read, or has an error.
    pub fn new(api_key: Option<Secret>, file: Option<PathBuf>) -> Result<Self, KeysError> {
        let own = api_key.map(|secret| {
            Arc::new(Client::new(
                DEFAULT.to_owned(),
                secret,
                false,
                Limits::default(),
                None,
            ))
        });
        let clients = Self {
            own,
            file,
            listed: RwLock::default(),
        };
        clients.reload()?;
        Ok(clients)
    }

    /// Reads the file again, if there is one. Gives the number of its keys.
    ///
    /// # Errors
    /// As [`Clients::new`]; the clients stay as they were.
    pub fn reload(&self) -> Result<usize, KeysError> {
        let Some(path) = &self.file else {
            return Ok(0);
        };
        let before = self.listed();
        let malformed = |reason| KeysError::Malformed {
            path: path.clone(),
            reason,
        };
        let listed = read(path, &before)?;
        let taken = |client: &Arc<Client>| self.own.is_some() && client.name == DEFAULT;
        if listed.iter().any(taken) {
            let reason = format!("the name {DEFAULT:?} is that of --api-key");
            return Err(malformed(reason));
        }
        let keys = listed.len();
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(listed);
        Ok(keys)
    }

    /// True if clients need a key.
    pub fn need_keys(&self) -> bool {
        self.own.is_some() || self.file.is_some()
    }

    /// The client with the key `given`. Every key is compared, so that the time does not tell
    /// which one was nearly right.
    pub fn find(&self, given: &[u8]) -> Option<Arc<Client>> {
        let listed = self.listed();
        let mut found = None;
        for client in self.own.iter().chain(listed.iter()) {
            if client.secret.is(given) {
                found = Some(Arc::clone(client));
            }
        }
        found
    }

    fn listed(&self) -> Arc<Vec<Arc<Client>>> {
        Arc::clone(&self.listed.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Client {
    fn new(
        name: String,
        secret: Secret,
        admin: bool,
        limits: Limits,
        counts: Option<Arc<Counts>>,
    ) -> Self {
        let counts = counts.unwrap_or_else(|| {
            let tokens = limits.tokens_per_minute.unwrap_or(0) as f64;
            Arc::new(Counts {
                in_flight: AtomicUsize::new(0),
                tokens: Mutex::new((tokens, Instant::now())),
            })
        });
        Self {
            name,
            secret,
            admin,
            limits,
            counts,
        }
    }

    /// Takes `sequences` with `prompt_tokens` altogether into the client's account.
    ///
    /// # Errors
    /// 429 where that is beyond one of its limits.
    pub fn begin(
        self: &Arc<Self>,
        sequences: usize,
        prompt_tokens: usize,
    ) -> Result<Vec<InFlight>, ApiError> {
        self.spend_prompt(prompt_tokens)?;
        let most = self.limits.max_requests.unwrap_or(usize::MAX);
        let running = &self.counts.in_flight;
        let grown = |now: usize| now.checked_add(sequences).filter(|all| *all <= most);
        if let Err(now) = running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            self.spend(-(prompt_tokens as f64));
            return Err(ApiError::too_many(
                1,
                format!(
                    "the API key {:?} may have at most {most} requests in flight, and has {now}; \
                     this one has {sequences}",
                    self.name
                ),
            ));
        }
        let one = || InFlight {
            client: Arc::clone(self),
        };
        Ok((0..sequences).map(|_| one()).collect())
    }

    /// A prompt is paid for before it is computed, and an output while it is generated, because
    /// nobody knows its length. An account may be overdrawn by outputs.
    fn spend_prompt(&self, prompt_tokens: usize) -> Result<(), ApiError> {
        let Some(limit) = self.limits.tokens_per_minute else {
            return Ok(());
        };
        let refused = |seconds: u64, why: String| {
            let message = format!(
                "the API key {:?} has {limit} tokens a minute, {why}",
                self.name
            );
            Err(ApiError::too_many(seconds, message))
        };
        if prompt_tokens as u64 > limit {
            return refused(60, format!("and this prompt alone has {prompt_tokens}"));
        }
        let mut tokens = self
            .counts
            .tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let left = refilled(&mut tokens, limit);
        let missing = prompt_tokens as f64 - left;
        if missing > 0.0 || left <= 0.0 {
            let seconds = (missing.max(1.0) * 60.0 / limit.max(1) as f64).ceil() as u64;
            return refused(
                seconds,
                format!("of which {} are left", left.max(0.0) as u64),
            );
        }
        tokens.0 = left - prompt_tokens as f64;
        Ok(())
    }

    fn spend(&self, spent: f64) {
        let Some(limit) = self.limits.tokens_per_minute else {
            return;
        };
        let mut tokens = self
            .counts
            .tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        tokens.0 = refilled(&mut tokens, limit) - spent;
    }
}

/// The account at present: it gets a sixtieth of `limit` each second, and has at most `limit`.
fn refilled(tokens: &mut (f64, Instant), limit: u64) -> f64 {
    let now = Instant::now();
    let new = now.duration_since(tokens.1).as_secs_f64() * limit as f64 / 60.0;
    *tokens = ((tokens.0 + new).min(limit as f64), now);
    tokens.0
}

/// The one who sent a request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// `None` where no key is needed, or where it is `--admin-api-key`.
    pub client: Option<Arc<Client>>,
    /// True if it may change the server for everybody.
    pub admin: bool,
}

impl Caller {
    /// The one who sent `request`.
    pub fn of(request: &HttpRequest) -> Self {
        request
            .extensions()
            .get::<Self>()
            .cloned()
            .unwrap_or_default()
    }
}

/// A sequence of a client, from its submission to its end.
#[derive(Debug)]
pub struct InFlight {
    client: Arc<Client>,
}

impl InFlight {
    /// Counts tokens of the output.
    pub fn spend(&self, tokens: usize) {
        self.client.spend(tokens as f64);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.client.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

fn read(path: &Path, before: &[Arc<Client>]) -> Result<Vec<Arc<Client>>, KeysError> {
    let failed = |source| KeysError::Read {
        path: path.to_owned(),
        source,
    };
    let malformed = |reason: String| KeysError::Malformed {
        path: path.to_owned(),
        reason,
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        let reason = format!("it must be a regular file of at most {MAX_FILE_BYTES} bytes");
        return Err(malformed(reason));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    // The error's own text would quote the line, and with it perhaps a key.
    let parsed: Result<KeysFile, toml::de::Error> = toml::from_str(&text);
    let file = parsed.map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes()[..at.min(text.len())]
            .split(|b| *b == b'\n')
            .count();
        malformed(format!("line {line}: {}", error.message()))
    })?;
    if file.key.len() > MAX_KEYS {
        let given = file.key.len();
        return Err(malformed(format!(
            "it may have at most {MAX_KEYS} keys, got {given}"
        )));
    }
    let (mut names, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    let mut clients = Vec::new();
    for entry in file.key {
        let name = entry.name;
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !plain {
            let bound = format!("1 to {MAX_NAME_BYTES} letters, digits and any of -_.");
            return Err(malformed(format!("a name must be {bound}, got {name:?}")));
        }
        if entry.key.is_empty() {
            return Err(malformed(format!("the key of {name:?} is empty")));
        }
        if entry.max_requests == Some(0) || entry.tokens_per_minute == Some(0) {
            return Err(malformed(format!(
                "the limits of {name:?} must be at least 1"
            )));
        }
        if !secrets.insert(entry.key.reveal().to_owned()) {
            return Err(malformed(format!(
                "the key of {name:?} is that of another name, too"
            )));
        }
        let limits = Limits {
            max_requests: entry.max_requests,
            tokens_per_minute: entry.tokens_per_minute,
        };
        let same = before
            .iter()
            .find(|client| client.name == name && client.limits == limits);
        let counts = same.map(|client| Arc::clone(&client.counts));
        clients.push(Arc::new(Client::new(
            name.clone(),
            entry.key,
            entry.admin,
            limits,
            counts,
        )));
        if !names.insert(name.clone()) {
            return Err(malformed(format!("the name {name:?} is given twice")));
        }
    }
    Ok(clients)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct File(PathBuf);

    impl File {
        fn new(name: &str, text: &str) -> Self {
            let file = format!("hearth-keys-{name}-{}.toml", std::process::id());
            let path = std::env::temp_dir().join(file);
            fs::write(&path, text).unwrap();
            Self(path)
        }

        fn clients(&self) -> Result<Clients, KeysError> {
            Clients::new(None, Some(self.0.clone()))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn file_of(limits: &str) -> String {
        format!("[[key]]\nname = \"a\"\nkey = \"secret\"\n{limits}\n")
    }

    #[test]
    fn a_key_is_found_by_its_value_and_the_file_can_change() {
        let file = File::new("find", &file_of("admin = true"));
        let clients = Clients::new("own".parse().ok(), Some(file.0.clone())).unwrap();
        assert_eq!(clients.find(b"own").unwrap().name, "default");
        let found = clients.find(b"secret").unwrap();
        assert!(found.admin && found.name == "a");
        assert!(clients.find(b"other").is_none());
        fs::write(&file.0, "[[key]]\nname = \"b\"\nkey = \"other\"\n").unwrap();
        assert_eq!(clients.reload().unwrap(), 1);
        assert!(clients.find(b"secret").is_none());
        assert_eq!(clients.find(b"other").unwrap().name, "b");
        fs::write(&file.0, "[[key]]\nname = 3\n").unwrap();
        let error = clients.reload().unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(
            clients.find(b"other").is_some(),
            "a bad file changes nothing"
        );
    }

    #[test]
    fn errors_of_a_file_name_the_entry_and_show_no_key() {
        let cases = [
            ("[[key]]\nname = \"a b\"\nkey = \"k3y\"", "letters, digits"),
            (
                "[[key]]\nname = \"a\"\nkey = \"\"",
                "the key of \"a\" is empty",
            ),
            (
                "[[key]]\nname = \"a\"\nkey = \"k3y\"\nmax_requests = 0",
                "at least 1",
            ),
            ("[[key]]\nname = \"a\"\nkey = \"k3y\"\nother = 1", "other"),
            ("[[key]]\nname = \"a\"\nkey = \"k3y\n", "line 3"),
            (
                "[[key]]\nname = \"a\"\nkey = \"k3y\"\n[[key]]\nname = \"b\"\nkey = \"k3y\"",
                "another name",
            ),
            (
                "[[key]]\nname = \"a\"\nkey = \"k3y\"\n[[key]]\nname = \"a\"\nkey = \"k4y\"",
                "given twice",
            ),
        ];
        for (text, words) in cases {
            let error = File::new("errors", text).clients().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("k3y"), "{error}");
        }
        let missing = Clients::new(None, Some("/nowhere/keys.toml".into())).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /nowhere/keys.toml");
        assert!(Clients::new(None, Some("/dev/zero".into())).is_err());
    }

    #[test]
    fn requests_in_flight_are_bounded_and_counted_down() {
        let file = File::new("flight", &file_of("max_requests = 2"));
        let clients = file.clients().unwrap();
        let client = clients.find(b"secret").unwrap();
        let two = client.begin(2, 10).unwrap();
        let error = client.begin(1, 10).unwrap_err();
        assert_eq!(error.status, 429);
        assert!(
            error
                .message
                .contains("at most 2 requests in flight, and has 2"),
            "{error}"
        );
        clients.reload().unwrap();
        let same = clients.find(b"secret").unwrap();
        assert!(same.begin(1, 10).is_err(), "the counts last");
        drop(two);
        assert_eq!(same.begin(2, 10).unwrap().len(), 2);
    }

    #[test]
    fn tokens_are_paid_for_and_come_back_with_time() {
        let file = File::new("tokens", &file_of("tokens_per_minute = 600"));
        let clients = file.clients().unwrap();
        let client = clients.find(b"secret").unwrap();
        let one = client.begin(1, 500).unwrap();
        one[0].spend(200);
        let error = client.begin(1, 1).unwrap_err();
        assert_eq!(error.status, 429);
        // 100 are missing and one is asked for, and ten come each second.
        assert!((9..=11).contains(&error.retry_after.unwrap()), "{error:?}");
        let error = client.begin(1, 601).unwrap_err();
        assert!(
            error.message.contains("this prompt alone has 601"),
            "{error}"
        );
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        client.counts.tokens.lock().unwrap().1 = long_ago;
        assert!(client.begin(1, 400).is_ok());
    }
}
