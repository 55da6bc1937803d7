//! Follows the KV events of workers that say in `/server_info` where they publish them.

use std::sync::Arc;
use std::time::Duration;

use hearth_events::{Endpoint, Source, follow};
use serde::Deserialize;
use tokio::time::sleep;

use crate::config::{KvEventsMode, PolicyKind};
use crate::state::Router;
use crate::worker::{Role, Worker};

/// Pause before a worker is asked again that did not answer, or whose connection ended.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Pause before a worker is asked again that publishes nothing. It may be restarted with other settings.
const PUBLISHES_NOTHING: Duration = Duration::from_secs(30);
/// How often it is checked that a worker was not removed.
const CHECK: Duration = Duration::from_secs(1);

/// Follows `worker` until it is removed, if its role's policy uses that.
pub fn watch(router: &Arc<Router>, worker: Arc<Worker>) {
    let config = &router.config;
    let policy = match worker.role {
        Role::Regular => config.policy,
        Role::Prefill { .. } => config.prefill_policy(),
        Role::Decode => config.decode_policy(),
    };
    if config.kv_events == KvEventsMode::Off || policy != PolicyKind::CacheAware {
        return;
    }
    let router = Arc::clone(router);
    router.background.clone().spawn(async move {
        tokio::select! {
            () = removed(&router, &worker) => {}
            () = forever(&router, &worker) => {}
        }
    });
}

async fn removed(router: &Router, worker: &Worker) {
    while router.registry.get(&worker.id).is_some() {
        sleep(CHECK).await;
    }
}

async fn forever(router: &Router, worker: &Worker) {
    loop {
        let pause = match announced(router, worker).await {
            Err(_) => ASK_AGAIN,
            Ok(None) => PUBLISHES_NOTHING,
            Ok(Some(source)) => {
                tracing::info!(
                    worker = worker.url,
                    endpoint = %source.endpoint,
                    "following the worker's KV events"
                );
                let error = follow(&source, |update| worker.kv.update(update)).await;
                tracing::info!(
                    worker = worker.url,
                    endpoint = %source.endpoint,
                    %error,
                    "the worker's KV events are not followed any more"
                );
                ASK_AGAIN
            }
        };
        sleep(pause).await;
    }
}

#[derive(Deserialize)]
struct ServerInfo {
    /// Null until the model is loaded.
    model: Option<String>,
    kv_events: Option<Announced>,
    #[serde(default)]
    config: Settings,
}

/// The part of a worker's settings that counts here.
#[derive(Default, Deserialize)]
struct Settings {
    #[serde(default)]
    cache_isolation: Option<String>,
}

#[derive(Deserialize)]
struct Announced {
    endpoint: String,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

/// Why it is not known whether a worker publishes events.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the worker loads its model")]
    Loading,
}

/// Where the worker publishes its events, if it does.
async fn announced(router: &Router, worker: &Worker) -> Result<Option<Source>, AskError> {
    let timeout = Duration::from_secs_f64(router.config.health_check_timeout_secs);
    let url = format!("{}/server_info", worker.url);
    let body = router.probe.get(url, router.own_headers(), timeout).await;
    let body = match body {
        // A worker of another kind.
        Err(error) if error.is_status() => return Ok(None),
        body => body?,
    };
    // A publisher whose configuration is not understood is not followed.
    let Ok(info) = serde_json::from_slice::<ServerInfo>(&body) else {
        return Ok(None);
    };
    let isolation = info.config.cache_isolation.as_deref();
    worker.kv.set_isolated(isolation == Some("key"));
    match (info.kv_events, info.model) {
        (Some(announced), _) => Ok(source(&announced, &worker.host)),
        (None, None) => Err(AskError::Loading),
        (None, Some(_)) => Ok(None),
    }
}

/// The endpoints with the worker's host in the place of a wildcard.
fn source(announced: &Announced, host: &str) -> Option<Source> {
    let host = host.trim_matches(['[', ']']);
    let endpoint = |text: &str| {
        let endpoint = Endpoint::parse(text)?;
        Some(match endpoint.is_wildcard() {
            true => endpoint.with_host(host),
            false => endpoint,
        })
    };
    Some(Source {
        endpoint: endpoint(&announced.endpoint)?,
        replay: announced.replay_endpoint.as_deref().and_then(endpoint),
        topic: announced.topic.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_the_workers_host() {
        let announced = |json: &str| serde_json::from_str::<Announced>(json).unwrap();
        let both = announced(
            r#"{"publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": "tcp://*:2", "topic": "t"}"#,
        );
        let found = source(&both, "[::1]").unwrap();
        assert_eq!(found.endpoint.to_string(), "tcp://[::1]:1");
        assert_eq!(found.replay.unwrap().to_string(), "tcp://[::1]:2");
        let other = announced(r#"{"endpoint": "tcp://10.0.0.1:1"}"#);
        let found = source(&other, "a").unwrap();
        assert_eq!(found.endpoint.to_string(), "tcp://10.0.0.1:1");
        assert_eq!((found.replay, found.topic), (None, String::new()));
        assert!(source(&announced(r#"{"endpoint": "ipc://a"}"#), "a").is_none());
    }
}
