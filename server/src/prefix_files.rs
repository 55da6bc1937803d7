//! `--cache-dir`: cached prefixes in files, so that a server that starts again need not compute them
//! again.
//!
//! A thread of its own asks the engine from time to time for what is cached, reads the keys and
//! values that are in no file yet, and writes them; the engine thread does no I/O. All files are read
//! before the server is ready, the ones that were used last first, until the device's pool is full.
//! No file is read later: a request would have to wait for the disk.

mod block;
mod contents;
mod directory;
#[cfg(test)]
mod fuzz;
mod restore;
mod save;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hearth_api::served::Served;
use hearth_engine::EngineHandle;
use hearth_transfer::digest::Digest;

use crate::config::Config;
use crate::kernel_cache;
use save::Saver;

pub use directory::Directory;

/// How often new prefixes are looked for.
const INTERVAL: Duration = Duration::from_secs(10);
/// The least time for writing after a shutdown, however long requests took to finish.
const LEAST_TIME: Duration = Duration::from_secs(5);
/// How often a shutdown looks whether requests still run.
const POLL: Duration = Duration::from_millis(10);

/// The files' own thread; see [`start`].
pub struct PrefixFiles {
    engine: EngineHandle,
    stop: Sender<Instant>,
    done: Receiver<()>,
}

/// The directory of `--cache-dir`, locked for this process; `None` without the flag.
///
/// # Errors
/// The directory cannot be made, read or locked, or another server uses it.
pub fn open(config: &Config) -> Result<Option<Directory>> {
    let Some(path) = &config.cache_dir else {
        return Ok(None);
    };
    let opened = Directory::open(path, config.cache_dir_bytes);
    let opened = opened.with_context(|| format!("--cache-dir {}", path.display()))?;
    if opened.is_open_to_others() {
        tracing::warn!(
            path = %path.display(),
            "other users can write to --cache-dir, and could forge cached prefixes; chmod 700 prevents that"
        );
    }
    Ok(Some(opened))
}

/// Restores what the files hold, and writes files from now on.
///
/// # Errors
/// The device's KV pool or the program's own file cannot be read, or a thread cannot be started.
pub fn start(config: &Config, served: &Served, mut directory: Directory) -> Result<PrefixFiles> {
    let token_bytes = served.engine.kv_token_bytes();
    if token_bytes == 0 {
        bail!("--cache-dir: the KV pool of this device cannot be read");
    }
    let build = kernel_cache::this_build();
    let build = build
        .context("--cache-dir: the program's own file, which tells the build, cannot be read")?;
    directory.identify(identity(config, served, &build));
    restore::restore(&served.engine, &mut directory, token_bytes);
    let engine = served.engine.clone();
    let hold = engine.hold();
    let saver = Saver::new(engine.clone(), directory, token_bytes);
    let (stop, stopped) = channel();
    let (report, done) = channel();
    thread::Builder::new()
        .name("hearth-prefix-files".to_owned())
        .spawn(move || {
            run(saver, &stopped);
            drop(hold);
            // Nobody waits after a second signal.
            let _ = report.send(());
        })?;
    Ok(PrefixFiles { engine, stop, done })
}

fn run(mut saver: Saver, stop: &Receiver<Instant>) {
    loop {
        let mut deadline = None;
        match stop.recv_timeout(INTERVAL) {
            Ok(at) => deadline = Some(at),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => saver.save_while(|| match stop.try_recv() {
                Ok(at) => {
                    deadline = Some(at);
                    false
                }
                Err(error) => error == std::sync::mpsc::TryRecvError::Empty,
            }),
        }
        if let Some(deadline) = deadline {
            return saver.save_while(|| Instant::now() < deadline);
        }
    }
}

impl PrefixFiles {
    /// Lets requests finish within `grace`, and writes what is in no file yet. It accepts no new
    /// requests, and blocks. The engine still has to be shut down.
    pub fn finish(self, grace: Duration) {
        let started = Instant::now();
        self.engine.close(grace);
        let ends = |left: Duration| left.is_zero() || self.engine.stats().is_idle();
        while !ends(grace.saturating_sub(started.elapsed())) && self.engine.is_running() {
            thread::sleep(POLL);
        }
        let left = grace.saturating_sub(started.elapsed()).max(LEAST_TIME);
        let stopped = self.stop.send(Instant::now() + left);
        // A device that hangs keeps the thread from ending.
        let ended = self.done.recv_timeout(left.saturating_add(LEAST_TIME));
        if stopped.is_err() || ended.is_err() {
            tracing::warn!("the files of cached prefixes were not finished");
        }
    }
}

/// A number that differs where keys and values may differ: by model, formats, device and build.
fn identity(config: &Config, served: &Served, build: &str) -> u64 {
    let info = &served.info;
    let level = std::env::var("HEARTH_CPU_LEVEL").unwrap_or_default();
    let parts: [&str; 9] = [
        &info.digest,
        &info.dtype,
        &info.kv_cache_dtype,
        &info.kv_layout,
        &info.device,
        &level,
        build,
        &config.deterministic.to_string(),
        &served.engine.kv_token_bytes().to_string(),
    ];
    let mut digest = Digest::default();
    for part in parts {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    digest.value()
}
