//! Keeps `ARCHITECTURE.md` true: the crate table, what each crate never names, the files of a
//! request's life, and that no files import each other in a circle.
//!
//! Cargo itself keeps the strongest part: a crate cannot name another one that its manifest
//! does not list. These tests read the manifests and the sources as text, so they need no
//! build of the crates that they look at.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod imports;
mod supply;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The most files that a reader has to open to follow a request from HTTP to its last token.
const LONGEST_WALK: usize = 25;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// The folders of the workspace's crates.
fn members() -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let list = manifest.split("\nmembers = [").nth(1).unwrap();
    let list = list.split(']').next().unwrap();
    let names = list.split(',').map(|name| name.trim().trim_matches('"'));
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The names of the crates in a manifest's `[dependencies]` and target-specific dependencies.
/// Dependencies of tests alone do not count.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let mut names = BTreeSet::new();
    let mut counts = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            counts = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if counts && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap();
            if !name.is_empty() {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// All crates that `folder` depends on, directly or through crates of this workspace.
fn reach(folder: &str, members: &BTreeSet<String>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for name in dependencies(&folder) {
            let inner = name.strip_prefix("hearth-").map(str::to_owned);
            if seen.insert(name) {
                folders.extend(inner.filter(|inner| members.contains(inner)));
            }
        }
    }
    seen
}

#[test]
fn the_crate_table_lists_every_crate_and_no_other() {
    let rows = Regex::new(r"(?m)^\| `([a-z]+)/`").unwrap();
    let text = architecture();
    let listed: BTreeSet<String> = rows
        .captures_iter(&text)
        .map(|row| row[1].to_owned())
        .collect();
    let missing: Vec<_> = members().difference(&listed).cloned().collect();
    assert!(
        missing.is_empty(),
        "not in ARCHITECTURE.md's table: {missing:?}"
    );
    for folder in &listed {
        assert!(root().join(folder).is_dir(), "there is no folder {folder}/");
    }
}

#[test]
fn no_crate_depends_on_what_it_must_not_name() {
    let members = members();
    let tensors = ["burn", "cubecl", "wgpu", "hearth-shaders", "hearth-model"];
    let http = ["actix-web", "reqwest", "ureq"];
    let never: BTreeMap<&str, Vec<&str>> = BTreeMap::from([
        (
            "radix",
            [&tensors[..], &http, &["tokio", "rayon", "hearth-engine"]].concat(),
        ),
        ("shaders", vec!["hearth-engine", "hearth-api", "actix-web"]),
        (
            "model",
            vec!["hearth-engine", "hearth-radix", "hearth-api", "actix-web"],
        ),
        (
            "grammar",
            [&tensors[..], &http, &["hearth-engine", "hearth-radix"]].concat(),
        ),
        (
            "engine",
            [&tensors[..], &http, &["hearth-api", "hearth-grammar"]].concat(),
        ),
        ("api", [&tensors[..], &["hearth-server"]].concat()),
        (
            "otel",
            [&tensors[..], &["hearth-radix", "hearth-server"]].concat(),
        ),
        (
            "events",
            [&tensors[..], &http, &["hearth-engine", "hearth-api"]].concat(),
        ),
        (
            "client",
            [&tensors[..], &["hearth-api", "hearth-server"]].concat(),
        ),
        (
            "router",
            [
                &tensors[..],
                &["hearth-api", "hearth-engine", "hearth-server"],
            ]
            .concat(),
        ),
    ]);
    for (folder, never) in never {
        let reach = reach(folder, &members);
        for name in never {
            assert!(!reach.contains(name), "{folder} depends on {name}");
        }
    }
    assert_eq!(dependencies("forward"), BTreeSet::new());
    for member in &members {
        let direct = dependencies(member);
        let burn = direct.iter().find(|name| name.starts_with("burn"));
        let allowed = ["shaders", "model", "train"].contains(&member.as_str());
        assert!(allowed || burn.is_none(), "{member} names {burn:?}");
    }
}

#[test]
fn the_prefix_cache_knows_no_time_and_no_threads() {
    for (file, source) in imports::sources(&root().join("radix/src")) {
        for name in ["std::time", "std::thread", "Mutex", "std::fs"] {
            let file = file.display();
            assert!(!source.contains(name), "radix/src/{file} names {name}");
        }
    }
}

#[test]
fn the_files_that_the_map_names_exist() {
    let paths = Regex::new(r"`([a-z_]+/[a-zA-Z0-9_./-]+)`").unwrap();
    for path in paths.captures_iter(&architecture()) {
        assert!(
            root().join(&path[1]).exists(),
            "ARCHITECTURE.md names {}, which does not exist",
            &path[1]
        );
    }
}

#[test]
fn the_life_of_a_request_is_read_in_few_files() {
    let text = architecture();
    let section = text.split("\n## ").find(|section| {
        section.starts_with("The life of a request") || section.starts_with("A request's life")
    });
    let files = Regex::new(r"`([a-z_]+/[a-z0-9_/]+\.rs)`").unwrap();
    let named: BTreeSet<String> = files
        .captures_iter(section.unwrap())
        .map(|file| file[1].to_owned())
        .collect();
    assert!(
        named.len() > 10,
        "the section names too few files: {named:?}"
    );
    assert!(
        named.len() <= LONGEST_WALK,
        "{} files: {named:?}",
        named.len()
    );
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let crates = [
        "forward", "radix", "engine", "grammar", "model", "otel", "client", "events", "router",
    ];
    let mut found = String::new();
    for folder in crates {
        for circle in imports::circles(&root().join(folder).join("src")) {
            found.push_str(&format!("\n{folder}: {circle}"));
        }
    }
    assert!(found.is_empty(), "files that import each other:{found}");
}
