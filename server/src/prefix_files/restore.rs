//! Puts what files hold into the prefix cache of an engine that has just started.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use hearth_engine::{EngineHandle, TransferError};

use super::block::{self, BadFile, Block, Kind, PrefixDigest};
use super::directory::Directory;

/// Restores the prefixes that were used last, as many as fit into the free slots. A file that is
/// damaged is removed, and prefixes that contain its tokens end before it.
pub fn restore(engine: &EngineHandle, directory: &mut Directory, token_bytes: usize) {
    let started = Instant::now();
    let kind = Kind {
        identity: directory.identity(),
        token_bytes,
    };
    let found = find(directory, kind);
    let chosen = choose(&found, engine.stats().kv.free);
    let (mut files, mut tokens) = (0, 0);
    let mut state = HashMap::new();
    'leaves: for &leaf in &chosen {
        for &digest in &chain(&found, leaf) {
            let is_there = match state.get(&digest) {
                Some(&is_there) => is_there,
                None => match put(engine, directory, digest, kind) {
                    Ok(count) => {
                        (files, tokens) = (files + 1, tokens + count);
                        true
                    }
                    Err(Failure::File(error)) => {
                        discard(directory, digest, &error);
                        false
                    }
                    Err(Failure::Engine(TransferError::NotCached | TransferError::Vocabulary)) => {
                        false
                    }
                    Err(Failure::Engine(error)) => {
                        tracing::warn!(%error, "cached prefixes are not restored any further");
                        break 'leaves;
                    }
                },
            };
            state.insert(digest, is_there);
            if !is_there {
                break;
            }
        }
    }
    let path = directory.path().display().to_string();
    let foreign = directory.foreign();
    let took_ms = started.elapsed().as_millis() as u64;
    tracing::info!(
        path,
        files,
        tokens,
        foreign,
        took_ms,
        "restored cached prefixes"
    );
}

/// A file that may be restored.
struct Found {
    block: Block,
    /// The file with the tokens before; `None` if its tokens begin a prompt.
    before: Option<u64>,
}

/// The heads of all files of this server, by digest, with their order: those used last first.
struct Files {
    by_digest: HashMap<u64, Found>,
    order: Vec<u64>,
}

fn find(directory: &mut Directory, kind: Kind) -> Files {
    let mut by_digest = HashMap::new();
    let mut order = Vec::new();
    for digest in directory.own() {
        let head = directory.read_head(digest, kind);
        match head.and_then(|block| check_name(block, digest)) {
            Ok(found) => {
                by_digest.insert(digest, found);
                order.push(digest);
            }
            Err(error) => discard(directory, digest, &error),
        }
    }
    Files { by_digest, order }
}

fn check_name(block: Block, digest: u64) -> Result<Found, BadFile> {
    let mut prefix = PrefixDigest::new(&block.namespace);
    let mut before = None;
    for (at, &token) in block.tokens.iter().enumerate() {
        if at == block.from && at > 0 {
            before = Some(prefix.value());
        }
        prefix.push(token);
    }
    match prefix.value() == digest {
        true => Ok(Found { block, before }),
        false => Err(BadFile::Name),
    }
}

/// Removes a damaged file. One that could not be read may be sound, and stays.
fn discard(directory: &mut Directory, digest: u64, error: &BadFile) {
    let removed = !matches!(error, BadFile::Io(_)) && directory.remove(digest).is_ok();
    let path = directory.path().display();
    let file = format!("{digest:016x}");
    tracing::warn!(%path, file, %error, removed, "a file of cached prefixes is ignored");
}

/// Chooses the files that were used last, with the files of the tokens before theirs, as many as have at
/// most `slots` tokens together. Returns the last file of each prefix, those used longest ago first, so
/// that the cache has the same order.
fn choose(files: &Files, slots: usize) -> Vec<u64> {
    let mut chosen = HashSet::new();
    let mut left = slots;
    for &digest in &files.order {
        for &digest in &chain(files, digest) {
            let Some(found) = files.by_digest.get(&digest) else {
                break;
            };
            let tokens = found.block.tokens.len() - found.block.from;
            if !chosen.contains(&digest) {
                if tokens > left {
                    break;
                }
                left -= tokens;
                chosen.insert(digest);
            }
        }
    }
    let before = chosen.iter().map(|digest| files.by_digest[digest].before);
    let inner: HashSet<u64> = before.flatten().collect();
    let order = files.order.iter().rev().copied();
    let last = order.filter(|digest| chosen.contains(digest) && !inner.contains(digest));
    last.collect()
}

/// The files from the beginning of a prompt to the file `last`. One that is missing is in the list.
fn chain(files: &Files, last: u64) -> Vec<u64> {
    let before = |digest: &u64| files.by_digest.get(digest)?.before;
    // A file that names itself, or one that names it, would never end.
    let most = files.by_digest.len() + 1;
    let mut chain: Vec<u64> = std::iter::successors(Some(last), before)
        .take(most)
        .collect();
    chain.reverse();
    chain
}

enum Failure {
    File(BadFile),
    Engine(TransferError),
}

/// Puts the tokens of one file into the cache; returns how many they are.
fn put(
    engine: &EngineHandle,
    directory: &Directory,
    digest: u64,
    kind: Kind,
) -> Result<usize, Failure> {
    let mut bytes = directory.read(digest, kind).map_err(Failure::File)?;
    let (block, kv) = block::read(&bytes, kind).map_err(Failure::File)?;
    let count = block.tokens.len() - block.from;
    bytes.drain(..kv.start);
    let pending = engine.restore_prefix(block.namespace.into(), block.tokens, block.from, bytes);
    let pending = pending.map_err(Failure::Engine)?;
    let restored = pending.wait_blocking();
    let stopped = |_| Failure::Engine(TransferError::Gone);
    restored.map_err(stopped)?.map_err(Failure::Engine)?;
    Ok(count)
}
