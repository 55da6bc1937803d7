//! The task that makes snapshots while somebody watches.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use actix_web::rt;
use actix_web::web::{Bytes, Data};
use hearth_engine::{Outline, Picture};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::snapshot;
use crate::error::ApiError;
use crate::served::Served;
use crate::state::AppState;

/// The time between two snapshots.
const PERIOD: Duration = Duration::from_millis(200);
/// The shortest time between two descriptions of the prefix cache: the engine's thread walks the tree
/// for each.
const TREE_PERIOD: Duration = Duration::from_millis(500);
/// A snapshot that says nothing new is sent as often as this, so that connections stay open.
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// How long a picture may take, which is how long a step takes, before a snapshot is sent without.
const PATIENCE: Duration = Duration::from_secs(1);
/// Nodes of the prefix cache in a snapshot.
const NODES: usize = 400;
/// Most viewers at a time.
const MOST_VIEWERS: usize = 64;

/// The events that all viewers get.
#[derive(Clone, Default)]
pub(super) struct Frame {
    snapshot: Bytes,
    tree: Bytes,
    /// Counts the different trees.
    tree_version: u64,
}

/// The channel from the task to the viewers; it is gone while nobody watches.
#[derive(Default)]
pub struct Live {
    frames: Mutex<Weak<watch::Sender<Frame>>>,
}

/// One who watches.
pub(super) struct Viewer {
    frames: watch::Receiver<Frame>,
    tree_version: u64,
}

impl Viewer {
    /// The next events, where the tree is left out if it has not changed since the last call; `None`
    /// at the end of the server.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.frames.changed().await.ok()?;
        let frame = self.frames.borrow_and_update().clone();
        if frame.tree_version == self.tree_version {
            return Some(frame.snapshot);
        }
        self.tree_version = frame.tree_version;
        Some([frame.tree, frame.snapshot].concat().into())
    }
}

/// A new viewer.
///
/// # Errors
/// 503 if too many watch.
pub(super) fn watch(state: &Data<AppState>) -> Result<Viewer, ApiError> {
    let live = &state.live;
    let mut frames = live.frames.lock().unwrap_or_else(PoisonError::into_inner);
    let receiver = match frames.upgrade() {
        Some(sender) if sender.receiver_count() >= MOST_VIEWERS => {
            let message = format!("{MOST_VIEWERS} viewers watch already");
            return Err(ApiError::unavailable("too_many_viewers", &message));
        }
        Some(sender) => {
            let mut receiver = sender.subscribe();
            // The latest frame is new to this viewer.
            receiver.mark_changed();
            receiver
        }
        None => {
            let (sender, receiver) = watch::channel(Frame::default());
            let sender = Arc::new(sender);
            *frames = Arc::downgrade(&sender);
            rt::spawn(produce(state.clone(), sender));
            receiver
        }
    };
    Ok(Viewer {
        frames: receiver,
        tree_version: 0,
    })
}

impl Live {
    /// True if nobody watches. Then the next viewer finds no channel and starts a new task.
    fn is_over(&self, sender: &watch::Sender<Frame>) -> bool {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = sender.receiver_count() == 0;
        if is_over {
            *frames = Weak::new();
        }
        is_over
    }
}

/// Sends frames until nobody watches, or the server shuts down.
async fn produce(state: Data<AppState>, sender: Arc<watch::Sender<Frame>>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut source = Source::default();
    while !state.is_draining() && !state.live.is_over(&sender) {
        ticks.tick().await;
        if let Some(frame) = source.frame(&state).await {
            sender.send_replace(frame);
        }
    }
}

/// The state that the last event described.
struct Source {
    picture: Picture,
    cache: Outline,
    tree: Bytes,
    tree_version: u64,
    /// When the engine was last asked for the prefix cache.
    tree_asked: Option<Instant>,
    /// True if the engine has worked since then.
    tree_is_old: bool,
    sent: Option<Instant>,
    /// When the latest step ended of those that were sent.
    steps_until: Instant,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            picture: Picture::default(),
            cache: Outline::default(),
            tree: Bytes::new(),
            tree_version: 0,
            tree_asked: None,
            tree_is_old: true,
            sent: None,
            steps_until: Instant::now(),
        }
    }
}

impl Source {
    /// The next frame; `None` if there is nothing new.
    async fn frame(&mut self, state: &AppState) -> Option<Frame> {
        let is_due = self.sent.is_none_or(|sent| sent.elapsed() >= QUIET_PERIOD);
        let Some(served) = state.loaded() else {
            return is_due.then(|| self.with(snapshot::loading(state)));
        };
        let stats = served.engine.stats();
        let is_new = !stats.is_idle() || stats != self.picture.stats || self.tree_is_old;
        if !is_new && !is_due {
            return None;
        }
        // An engine that stays idle is not woken.
        let is_late = is_new && !self.look(served).await;
        if is_late {
            self.picture.stats = served.engine.stats();
        }
        let sums = state.telemetry.step_sums(self.steps_until);
        let sums = sums.unwrap_or_default();
        self.steps_until = sums.latest.unwrap_or(self.steps_until);
        let age = is_late.then(|| served.engine.watch().heartbeat_age());
        Some(self.with(snapshot::snapshot(state, &self.picture, &sums, age)))
    }

    fn with(&mut self, snapshot: Vec<u8>) -> Frame {
        self.sent = Some(Instant::now());
        Frame {
            snapshot: snapshot.into(),
            tree: self.tree.clone(),
            tree_version: self.tree_version,
        }
    }

    /// Looks at the engine, and at its prefix cache if the latest look at that is old enough. Returns
    /// whether it has answered.
    async fn look(&mut self, served: &Served) -> bool {
        let now = Instant::now();
        let shows_tree = self
            .tree_asked
            .is_none_or(|asked| now - asked >= TREE_PERIOD);
        let nodes = if shows_tree { NODES } else { 0 };
        let picture = served.engine.picture(nodes).wait();
        let Ok(Ok(mut picture)) = timeout(PATIENCE, picture).await else {
            return false;
        };
        self.tree_is_old = !shows_tree;
        if shows_tree {
            self.tree_asked = Some(now);
            self.set_tree(std::mem::take(&mut picture.cache));
        }
        self.picture = picture;
        true
    }

    fn set_tree(&mut self, cache: Outline) {
        if self.tree_version == 0 || cache != self.cache {
            self.tree = snapshot::tree(&cache).into();
            self.tree_version += 1;
            self.cache = cache;
        }
    }
}
