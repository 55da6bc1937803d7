//! Publishes what the prefix cache holds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use hearth_api::served::{KvEventsInfo, Served};
use hearth_engine::{CacheChange, CacheObserver};
use hearth_events::{EventBatch, KvEvent, Publisher};

use crate::config::Config;

/// Starts to publish if the configuration says so; returns where.
///
/// # Errors
/// A port cannot be opened.
pub fn start(config: &Config, served: &Served) -> Result<Option<KvEventsInfo>> {
    let Some(settings) = config.kv_events()? else {
        return Ok(None);
    };
    let publisher = Publisher::start(&settings)?;
    let block_size = served.engine_config.page_size;
    let endpoint = publisher.endpoint().to_string();
    tracing::info!(
        endpoint,
        block_size,
        "publishes the tokens of cached prompts to whoever reaches this endpoint"
    );
    let info = KvEventsInfo {
        publisher: "zmq",
        endpoint,
        replay_endpoint: publisher.replay_endpoint().map(ToString::to_string),
        topic: settings.topic,
        block_size,
        dp_size: 1,
    };
    served.engine.observe_cache(Box::new(Observer {
        publisher,
        block_size,
    }));
    Ok(Some(info))
}

#[derive(Debug)]
struct Observer {
    publisher: Publisher,
    block_size: usize,
}

impl CacheObserver for Observer {
    fn has_room(&mut self) -> bool {
        self.publisher.has_room()
    }

    fn observe(&mut self, changes: Vec<CacheChange>) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let event = |change| KvEvent::of(change, self.block_size);
        // There is room, because nobody else publishes.
        self.publisher.publish(EventBatch {
            ts: since.map_or(0.0, |since: Duration| since.as_secs_f64()),
            events: changes.into_iter().map(event).collect(),
        });
    }
}
