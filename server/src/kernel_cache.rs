//! The directory of compiled kernels, which the next start reuses. Each build of the program has
//! its own directory, because the files identify a kernel by its name and not by its code. The
//! directories of old builds are removed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of other builds whose kernels are kept: the ones that were started last.
const OTHER_BUILDS: usize = 3;
/// A build that was started within this time is not removed.
const RECENTLY: Duration = Duration::from_secs(24 * 60 * 60);
/// A file in a build's directory. Each start sets its time, and running processes hold a lock
/// on it.
const IN_USE: &str = "in-use";

/// The directory of this build in the user's cache, `~/.cache/hearth/kernels/BUILD`; `None` if
/// the user has no cache directory.
pub fn of_this_build() -> Option<PathBuf> {
    let caches = match std::env::var_os("XDG_CACHE_HOME") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(caches.join("hearth/kernels").join(this_build()?))
}

/// Marks the directory `own` as in use until this process ends, and removes the directories of
/// old builds beside it. A directory that cannot be removed stays.
pub fn keep(own: &Path) {
    // Without the lock, the kernels may be removed a day later and compiled again.
    match lock(own, SystemTime::now()) {
        Ok(lock) => std::mem::forget(lock),
        Err(error) => {
            tracing::debug!(?own, %error, "cannot lock the directory of compiled kernels")
        }
    }
    if let (Some(all), Some(build)) = (own.parent(), own.file_name()) {
        remove_old(all, &build.to_string_lossy(), SystemTime::now());
    }
}

fn lock(own: &Path, now: SystemTime) -> std::io::Result<File> {
    fs::create_dir_all(own)?;
    let file = File::create(own.join(IN_USE))?;
    file.set_modified(now)?;
    file.lock_shared()?;
    Ok(file)
}

/// A build is identified by the time and the size of its executable.
pub fn this_build() -> Option<String> {
    let program = std::env::current_exe().ok()?.metadata().ok()?;
    let written = program.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(name(written, program.len()))
}

fn name(written: Duration, bytes: u64) -> String {
    format!("{:x}-{bytes:x}", written.as_nanos())
}

/// Whether a directory can have been named by [`name`].
fn is_name(name: &str) -> bool {
    let is_number = |text: &str| {
        let digits = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        (1..=32).contains(&text.len()) && text.chars().all(digits)
    };
    name.split_once('-')
        .is_some_and(|(written, bytes)| is_number(written) && is_number(bytes))
}

/// When a build was last started, as far as its files tell.
fn started(build: &Path) -> Option<SystemTime> {
    let data = build.join(IN_USE).symlink_metadata();
    let data = data.or_else(|_| build.symlink_metadata());
    data.ok()?.modified().ok()
}

/// Removes the directories of builds in `all`, except `build`, the few others that were started
/// last, those that were started recently, and those that are running. Follows no links.
fn remove_old(all: &Path, build: &str, now: SystemTime) {
    let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_dir());
    if !is_directory(all) {
        return;
    }
    let Ok(entries) = fs::read_dir(all) else {
        return;
    };
    let mut others: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .is_some_and(|name| is_name(name) && name != build)
        })
        .map(|entry| entry.path())
        .filter(|path| is_directory(path))
        .filter_map(|path| Some((started(&path)?, path)))
        .collect();
    others.sort();
    others.reverse();
    for (started, path) in others.into_iter().skip(OTHER_BUILDS) {
        let recent = now.duration_since(started).unwrap_or_default() < RECENTLY;
        // Builds from before the locks have no such file.
        let lock = File::open(path.join(IN_USE)).ok();
        let runs = lock.as_ref().is_some_and(|lock| lock.try_lock().is_err());
        if recent || runs {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => tracing::debug!(?path, "removed the kernels of an old build"),
            Err(error) => {
                tracing::debug!(?path, %error, "cannot remove the kernels of an old build")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hearth-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Creates the directory of a build that was started `days` days ago. The build counts as
    /// running until the returned lock is dropped.
    fn build(all: &Path, name: &str, now: SystemTime, days: u32) -> File {
        let path = all.join(name);
        fs::create_dir_all(path.join("vulkan")).unwrap();
        fs::write(path.join("vulkan/spirv.json"), b"kernels").unwrap();
        lock(&path, now - days * DAY).unwrap()
    }

    fn names(all: &Path) -> Vec<String> {
        let entries = fs::read_dir(all).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_directory_names_made_for_builds_are_recognized() {
        assert!(is_name(&name(Duration::from_nanos(0x1234_5678), 0xabc)));
        for not in [
            "", "-", "a-", "-a", "abc", "ABC-12", "../1-2", "1-2/3", "1-2-3", "x-1",
        ] {
            assert!(!is_name(not), "{not}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_the_kernels_of_old_builds_are_removed() {
        let (all, elsewhere) = (scratch("kernels"), scratch("elsewhere"));
        let now = SystemTime::now();
        for (name, days) in [
            ("a1-1", 2),
            ("a2-1", 3),
            ("a3-1", 4),
            ("a4-1", 5),
            ("a5-1", 6),
        ] {
            build(&all, name, now, days);
        }
        // A directory that belongs to no build, a link to another directory, and a file.
        build(&all, "notes", now, 90);
        build(&elsewhere, "kept", now, 90);
        std::os::unix::fs::symlink(&elsewhere, all.join("b1-1")).unwrap();
        fs::write(all.join("b2-1"), b"").unwrap();
        build(&all, "c1-1", now, 30);
        remove_old(&all, "c1-1", now);
        let left = ["a1-1", "a2-1", "a3-1", "b1-1", "b2-1", "c1-1", "notes"];
        assert_eq!(names(&all), left);
        assert!(elsewhere.join("kept/vulkan/spirv.json").exists());
        // Starting an old build again makes it one of the builds that were started last.
        build(&all, "c1-1", now + 4 * DAY, 0);
        build(&all, "d1-1", now, 30);
        remove_old(&all, "d1-1", now + 5 * DAY);
        let left = ["a1-1", "a2-1", "b1-1", "b2-1", "c1-1", "d1-1", "notes"];
        assert_eq!(names(&all), left);
        let _ = (fs::remove_dir_all(&all), fs::remove_dir_all(&elsewhere));
    }

    #[test]
    fn all_builds_that_run_or_were_started_recently_are_kept() {
        let all = scratch("running");
        let now = SystemTime::now();
        let build = |index: usize, days| build(&all, &format!("{index}-1"), now, days);
        (1..=9).for_each(|index| drop(build(index, 0)));
        let running: Vec<File> = (10..=15).map(|index| build(index, 30)).collect();
        remove_old(&all, "a-1", now);
        assert_eq!(names(&all).len(), 15);
        drop(running);
        remove_old(&all, "a-1", now);
        assert_eq!(names(&all).len(), 9);
        let _ = fs::remove_dir_all(&all);
    }

    #[test]
    fn a_cache_directory_that_cannot_be_read_is_no_error() {
        let file = scratch("no-directory").join("file");
        fs::write(&file, b"").unwrap();
        remove_old(&file, "1-1", SystemTime::now());
        assert!(file.is_file());
        let _ = fs::remove_dir_all(file.parent().unwrap());
    }
}
