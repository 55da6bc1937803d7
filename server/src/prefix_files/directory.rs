//! The files of a directory: which there are, in which order they go, and how they are written.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::block::{self, BadFile, Block, FIXED, Kind};

/// Processes that use the directory hold a lock on this file.
const LOCK: &str = "lock";
const SUFFIX: &str = ".kv";
const TEMPORARY: &str = ".kv.tmp";

/// A file, by the identity of its server and the digest of its tokens.
type Key = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
}

/// A directory of files with cached prefixes, which one process uses at a time. Files of other
/// servers count against its bound, and the ones that were used longest ago go first. Files with
/// names that this program does not give are left alone.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    bound: u64,
    identity: u64,
    files: HashMap<Key, Entry>,
    /// Bytes of all files.
    total: u64,
    _lock: File,
}

impl Directory {
    /// Makes the directory if it does not exist, locks it and lists its files.
    ///
    /// # Errors
    /// The system's error, or another process has locked it.
    pub fn open(path: &Path, bound: u64) -> io::Result<Self> {
        make(path)?;
        let mut lock = OpenOptions::new();
        lock.write(true).create(true).truncate(false);
        let lock = private(&mut lock).open(path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                io::Error::other("another server uses this directory; each needs one of its own")
            }
            fs::TryLockError::Error(error) => error,
        })?;
        let mut directory = Self {
            path: path.to_owned(),
            bound,
            identity: 0,
            files: HashMap::new(),
            total: 0,
            _lock: lock,
        };
        for entry in fs::read_dir(path)?.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.strip_suffix(TEMPORARY).and_then(key).is_some() {
                // A process ended while it wrote it.
                let _ = fs::remove_file(entry.path());
            }
            // The data of a link is that of the link itself.
            let (Some(key), Ok(data)) = (name.strip_suffix(SUFFIX).and_then(key), entry.metadata())
            else {
                continue;
            };
            if !data.is_file() {
                continue;
            }
            let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let bytes = data.len();
            directory.files.insert(key, Entry { bytes, used });
            directory.total += bytes;
        }
        Ok(directory)
    }

    /// True if users other than the owner can put files into the directory.
    pub fn is_open_to_others(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let data = fs::metadata(&self.path);
            data.is_ok_and(|data| data.permissions().mode() & 0o022 != 0)
        }
        #[cfg(not(unix))]
        false
    }

    /// Tells which files are those of this server.
    pub fn identify(&mut self, identity: u64) {
        self.identity = identity;
    }

    pub fn identity(&self) -> u64 {
        self.identity
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The number of files of other servers.
    pub fn foreign(&self) -> usize {
        let keys = self.files.keys();
        keys.filter(|(identity, _)| *identity != self.identity)
            .count()
    }

    /// The digests of this server's files, those that were used last first.
    pub fn own(&self) -> Vec<u64> {
        let files = self.files.iter();
        let mut own: Vec<_> = files
            .filter(|((identity, _), _)| *identity == self.identity)
            .map(|((_, digest), entry)| (entry.used, *digest))
            .collect();
        own.sort_by(|a, b| b.cmp(a));
        own.into_iter().map(|(_, digest)| digest).collect()
    }

    pub fn has(&self, digest: u64) -> bool {
        self.files.contains_key(&(self.identity, digest))
    }

    /// Marks a file as used at `time`.
    pub fn touch(&mut self, digest: u64, time: SystemTime) {
        let key = (self.identity, digest);
        if let Some(entry) = self.files.get_mut(&key) {
            entry.used = time;
            // Otherwise the next start takes it for less recent than it is.
            let _ = File::open(self.path.join(name(key))).and_then(|file| file.set_modified(time));
        }
    }

    /// Removes a file of this server.
    ///
    /// # Errors
    /// The system's error. Then the file is still there, and counts.
    pub fn remove(&mut self, digest: u64) -> io::Result<()> {
        self.remove_key((self.identity, digest))
    }

    fn remove_key(&mut self, key: Key) -> io::Result<()> {
        if self.files.contains_key(&key) {
            remove_if_there(&self.path.join(name(key)))?;
        }
        if let Some(entry) = self.files.remove(&key) {
            self.total -= entry.bytes;
        }
        Ok(())
    }

    /// Writes a file of `parts`, used at `time`, and removes others to make room, but none of `keep`.
    ///
    /// # Errors
    /// The system's error, or there is no room. Then there is no such file.
    pub fn write(
        &mut self,
        digest: u64,
        parts: &[&[u8]],
        time: SystemTime,
        keep: &HashSet<u64>,
    ) -> io::Result<()> {
        let key = (self.identity, digest);
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.remove_key(key)?;
        while self.total + bytes > self.bound {
            let is_kept = |key: &Key| key.0 == self.identity && keep.contains(&key.1);
            let files = self.files.iter().filter(|(key, _)| !is_kept(key));
            let oldest = files.min_by_key(|(key, entry)| (entry.used, **key));
            let Some((&oldest, _)) = oldest else {
                return Err(io::Error::other("the bound of the directory is reached"));
            };
            self.remove_key(oldest)?;
        }
        let stem = stem(key);
        let temporary = self.path.join(format!("{stem}{TEMPORARY}"));
        let written = write_new(&temporary, parts, time)
            .and_then(|()| fs::rename(&temporary, self.path.join(name(key))));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        let used = time;
        self.files.insert(key, Entry { bytes, used });
        self.total += bytes;
        Ok(())
    }

    /// The tokens of a file, without a look at its keys and values.
    ///
    /// # Errors
    /// The file is damaged or cannot be read.
    pub fn read_head(&self, digest: u64, kind: Kind) -> Result<Block, BadFile> {
        let (mut file, length) = self.file(digest)?;
        let mut head = read_exactly(&mut file, FIXED.min(length as usize))?;
        let rest = block::head_bytes(&head, length, kind)? - FIXED;
        head.extend(read_exactly(&mut file, rest)?);
        block::read_head(&head)
    }

    /// A whole file.
    ///
    /// # Errors
    /// As [`read_head`](Self::read_head).
    pub fn read(&self, digest: u64, kind: Kind) -> Result<Vec<u8>, BadFile> {
        let (mut file, length) = self.file(digest)?;
        let mut bytes = read_exactly(&mut file, FIXED.min(length as usize))?;
        // The header bounds what is read.
        block::head_bytes(&bytes, length, kind)?;
        bytes.extend(read_exactly(&mut file, length as usize - FIXED)?);
        Ok(bytes)
    }

    fn file(&self, digest: u64) -> Result<(File, u64), BadFile> {
        let path = self.path.join(name((self.identity, digest)));
        let io = |error: io::Error| BadFile::Io(error.to_string());
        // A pipe would block, and a link may lead anywhere.
        let data = path.symlink_metadata().map_err(io)?;
        if !data.is_file() {
            return Err(BadFile::Io("it is no regular file".to_owned()));
        }
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        Ok((file, length))
    }
}

fn read_exactly(file: &mut File, count: usize) -> Result<Vec<u8>, BadFile> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(count);
    reserved.map_err(|error| BadFile::Io(error.to_string()))?;
    let read = file.take(count as u64).read_to_end(&mut bytes);
    match read.map_err(|error| BadFile::Io(error.to_string()))? == count {
        true => Ok(bytes),
        false => Err(BadFile::Io("it became shorter".to_owned())),
    }
}

fn stem((identity, digest): Key) -> String {
    format!("{identity:016x}-{digest:016x}")
}

fn name(key: Key) -> String {
    format!("{}{SUFFIX}", stem(key))
}

/// The key of a file's name without its suffix, if this program gave it.
fn key(stem: &str) -> Option<Key> {
    let (identity, digest) = stem.split_once('-')?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let parse = |text: &str| {
        let is_number = text.len() == 16 && text.as_bytes().iter().all(is_digit);
        u64::from_str_radix(text, 16).ok().filter(|_| is_number)
    };
    Some((parse(identity)?, parse(digest)?))
}

/// Writes a file that only its owner can read, because keys and values are prompts. It does not wait
/// until the disk has the bytes: a file that a loss of power cuts off has a wrong checksum.
fn write_new(path: &Path, parts: &[&[u8]], time: SystemTime) -> io::Result<()> {
    remove_if_there(path)?;
    let mut options = OpenOptions::new();
    // A link in its place is not followed.
    options.write(true).create_new(true);
    let mut file = private(&mut options).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.set_modified(time)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("hearth-prefix-files-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_files_used_longest_ago_make_room_and_strangers_files_stay() {
        let path = scratch("room");
        let mut directory = Directory::open(&path, 100).unwrap();
        fs::write(path.join("notes.kv"), [0; 500]).unwrap();
        directory.identify(7);
        let none = HashSet::new();
        for digest in 0..3 {
            let written = directory.write(digest, &[&[0; 30]], at(digest), &none);
            written.unwrap();
        }
        directory.touch(0, at(9));
        directory
            .write(3, &[&[0; 10], &[0; 20]], at(10), &none)
            .unwrap();
        assert_eq!(directory.own(), [3, 0, 2]);
        let kept = HashSet::from([3, 0]);
        directory.write(4, &[&[0; 40]], at(11), &kept).unwrap();
        assert_eq!(directory.own(), [4, 3, 0]);
        let kept = HashSet::from([4, 3, 0]);
        assert!(directory.write(5, &[&[0; 1]], at(11), &kept).is_err());
        drop(directory);
        let directory = Directory::open(&path, 100).unwrap();
        assert_eq!((directory.foreign(), directory.total), (3, 100));
        assert!(path.join("notes.kv").exists());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            assert_eq!(mode(&path.join(name((7, 4)))), 0o600);
            assert!(!directory.is_open_to_others());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
            assert!(directory.is_open_to_others());
        }
        drop(directory);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_removed_counts_and_folders_are_no_files() {
        let path = scratch("stuck");
        fs::create_dir_all(path.join(name((7, 1)))).unwrap();
        let mut directory = Directory::open(&path, 100).unwrap();
        directory.identify(7);
        assert_eq!((directory.own(), directory.total), (Vec::new(), 0));
        let none = HashSet::new();
        directory.write(2, &[&[0; 60]], at(1), &none).unwrap();
        // A folder in its place cannot be removed as a file.
        let file = path.join(name((7, 2)));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(directory.write(3, &[&[0; 60]], at(2), &none).is_err());
        assert_eq!((directory.own(), directory.total), (vec![2], 60));
        fs::remove_dir(&file).unwrap();
        directory.write(3, &[&[0; 60]], at(2), &none).unwrap();
        assert_eq!((directory.own(), directory.total), (vec![3], 60));
        drop(directory);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_second_server_is_refused_and_a_file_half_written_is_removed() {
        let path = scratch("lock");
        let first = Directory::open(&path, 100).unwrap();
        let error = Directory::open(&path, 100).unwrap_err().to_string();
        assert!(error.contains("another server"), "{error}");
        drop(first);
        let half = path.join(format!("{}{TEMPORARY}", stem((1, 2))));
        fs::write(&half, [1]).unwrap();
        drop(Directory::open(&path, 100).unwrap());
        assert!(!half.exists());
        fs::remove_dir_all(path).unwrap();
    }
}
