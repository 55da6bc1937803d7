//! Writes to files what the prefix cache holds.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, SystemTime};

use hearth_engine::{CachedEdge, EngineHandle, TransferError};

use super::block::{self, Kind};
use super::contents::{CachedBlock, blocks, shorter};
use super::directory::Directory;

/// The pause between two reads of the KV pool while requests run, so that they get most of the time.
const PAUSE: Duration = Duration::from_millis(20);

/// Writes what is in no file yet.
pub struct Saver {
    engine: EngineHandle,
    directory: Directory,
    kind: Kind,
    /// The cache's counters of the files when they were last marked as used.
    used: HashMap<u64, u64>,
    /// The engine's steps at the latest complete look.
    steps: Option<u64>,
    /// True if the last write failed, so that the log has the failure once.
    fails: bool,
}

impl Saver {
    pub fn new(engine: EngineHandle, directory: Directory, token_bytes: usize) -> Self {
        let identity = directory.identity();
        Self {
            engine,
            directory,
            kind: Kind {
                identity,
                token_bytes,
            },
            used: HashMap::new(),
            steps: None,
            fails: false,
        }
    }

    /// Writes what is cached and in no file yet, as long as `goes_on` says so before each file. What
    /// was used last comes first.
    pub fn save_while(&mut self, mut goes_on: impl FnMut() -> bool) {
        let steps = self.engine.stats().steps;
        if self.steps == Some(steps) {
            return;
        }
        let Ok(edges) = self.engine.cached_prefixes().wait_blocking() else {
            return;
        };
        let mut wanted = blocks(&edges);
        let mut left = self.directory.bound();
        // A file beyond the bound would only replace one that was used later.
        let fits = |block: &CachedBlock| {
            let namespace = block.namespace(&edges).len();
            let bytes = block::file_bytes(self.kind, namespace, block.end, block.from());
            left = left.checked_sub(bytes)?;
            Some(())
        };
        let count = wanted.iter().map_while(fits).count();
        wanted.truncate(count);
        let keep: HashSet<u64> = wanted.iter().map(|block| block.digest).collect();
        self.used.retain(|digest, _| keep.contains(digest));
        let now = SystemTime::now();
        for (place, block) in (0..).zip(&wanted) {
            if !goes_on() {
                return;
            }
            // The files are as recent to each other as the prefixes are.
            let time = now.checked_sub(Duration::from_micros(place)).unwrap_or(now);
            if !self.directory.has(block.digest) {
                if !self.write(block, &edges, time, &keep) {
                    return;
                }
            } else if self.used.get(&block.digest) != Some(&block.used) {
                self.directory.touch(block.digest, time);
            }
            self.used.insert(block.digest, block.used);
        }
        self.steps = Some(steps);
    }

    /// Writes the file of one block of `edges`; returns false if writing others would fail, too.
    fn write(
        &mut self,
        block: &CachedBlock,
        edges: &[CachedEdge],
        time: SystemTime,
        keep: &HashSet<u64>,
    ) -> bool {
        if self.engine.stats().running > 0 {
            thread::sleep(PAUSE);
        }
        let (namespace, from) = (block.namespace(edges), block.from());
        let tokens = block.tokens(edges);
        let read = self
            .engine
            .read_prefix(namespace.clone(), tokens.clone(), from);
        let kv = match read.wait_blocking() {
            Ok(Ok(kv)) => kv,
            // It was evicted meanwhile.
            Ok(Err(TransferError::NotCached)) => return true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot read cached prefixes to write them to files");
                return false;
            }
            Err(_) => return false,
        };
        let head = block::head(self.kind, namespace, &tokens, from, &kv);
        // A prefix that has grown is in a longer file now.
        for shorter in shorter(namespace, &tokens, from) {
            if self.directory.has(shorter) && !keep.contains(&shorter) {
                // If it stays, it only takes room until it is the oldest.
                let _ = self.directory.remove(shorter);
            }
        }
        let written = self
            .directory
            .write(block.digest, &[&head, &kv], time, keep);
        match &written {
            Ok(()) if self.fails => {
                tracing::info!("cached prefixes are written to files again");
            }
            Err(error) if !self.fails => {
                let path = self.directory.path().display();
                tracing::warn!(%path, %error, "cannot write cached prefixes; requests are not affected");
            }
            _ => {}
        }
        self.fails = written.is_err();
        !self.fails
    }
}
