//! Dependencies: their licences, where they come from, and which are there twice, against `deny.toml`;
//! and the list of all of them (SBOM).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::root;

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: BTreeSet<String>,
}

fn deny() -> Deny {
    toml::from_str(&fs::read_to_string(root().join("deny.toml")).unwrap()).unwrap()
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

/// A package of `Cargo.lock`; without a source it is a crate of this workspace.
#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    source: Option<String>,
    checksum: Option<String>,
}

fn locked() -> Vec<Locked> {
    let text = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    toml::from_str::<Lock>(&text).unwrap().package
}

/// The output of `cargo metadata` about the packages that this platform needs.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .args(["metadata", "--locked", "--format-version", "1"]);
    if cfg!(target_os = "linux") {
        command.args(["--filter-platform", &platform]);
    }
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// True if one may choose among the licences of an SPDX expression such that all are in `allowed`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // The form that crates had before SPDX.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any_of(&words, &mut at, allowed) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut holds = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        holds |= all_of(words, at, allowed);
    }
    holds
}

fn all_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut holds = one_of(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        holds &= one_of(words, at, allowed);
    }
    holds
}

fn one_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else {
        return false;
    };
    *at += 1;
    if *word == "(" {
        let holds = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return holds && closed;
    }
    let mut license = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        license += &format!(" WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&license)
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "ISC"];
    let allowed = allowed.map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("(GPL-3.0 OR MIT) AND BSD-3-Clause", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("(MIT", false),
        ("MIT MIT", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = deny().licenses.allow;
    let packages = packages();
    assert!(packages.len() > 300, "{}", packages.len());
    for package in packages {
        let license = package["license"].as_str().unwrap_or_default();
        let (name, version) = (&package["name"], &package["version"]);
        assert!(
            is_allowed(license, &allowed),
            "{name} {version}: {license:?}"
        );
    }
}

#[test]
fn every_dependency_comes_from_the_registry_with_a_checksum() {
    let packages = locked();
    let mut registry = None;
    for package in &packages {
        let name = &package.name;
        match &package.source {
            None => assert!(name.starts_with("hearth-"), "{name} has no source"),
            Some(source) => {
                assert!(source.starts_with("registry+"), "{name}: {source}");
                assert_eq!(source, *registry.get_or_insert(source), "{name}");
                assert!(package.checksum.is_some(), "{name}");
            }
        }
    }
}

#[test]
fn no_dependency_is_there_twice_but_those_of_the_list() {
    let skip = deny().bans.skip;
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for package in locked() {
        let named = format!("{}@{}", package.name, package.version);
        if !skip.contains(&named) {
            versions
                .entry(package.name)
                .or_default()
                .push(package.version);
        }
        all.insert(named);
    }
    let twice: Vec<_> = versions.iter().filter(|(_, list)| list.len() > 1).collect();
    assert!(twice.is_empty(), "not in the list of deny.toml: {twice:?}");
    let gone: Vec<_> = skip.difference(&all).collect();
    assert!(
        gone.is_empty(),
        "in the list of deny.toml, and not in Cargo.lock: {gone:?}"
    );
}

/// All dependencies in the format CycloneDX 1.5.
fn sbom() -> Value {
    let license = |package: &Value| {
        let expression = package["license"]
            .as_str()
            .unwrap_or_default()
            .replace('/', " OR ");
        json!([{"expression": expression}])
    };
    let described: BTreeMap<String, Value> = packages()
        .into_iter()
        .map(|package| {
            let (name, version) = (package["name"].as_str(), package["version"].as_str());
            (format!("{}@{}", name.unwrap(), version.unwrap()), package)
        })
        .collect();
    let components = locked().into_iter().filter_map(|package| {
        // Packages that only other platforms need are not part of this build.
        let about = described.get(&format!("{}@{}", package.name, package.version))?;
        let purl = format!("pkg:cargo/{}@{}", package.name, package.version);
        let mut component = json!({
            "type": "library",
            "bom-ref": purl,
            "name": package.name,
            "version": package.version,
            "purl": purl,
            "licenses": license(about),
        });
        if let Some(checksum) = package.checksum {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        Some(component)
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "name": "hearth",
            "version": env!("CARGO_PKG_VERSION"),
        }},
        "components": components.collect::<Vec<_>>(),
    })
}

#[test]
fn the_sbom_lists_every_dependency() {
    let sbom = sbom();
    let components = sbom["components"].as_array().unwrap();
    assert!(components.len() > 300);
    for component in components {
        let name = component["name"].as_str().unwrap();
        let has_hash = component["hashes"][0]["content"].as_str().is_some();
        assert!(has_hash || name.starts_with("hearth-"), "{component}");
    }
    if let Some(path) = std::env::var_os("HEARTH_SBOM") {
        fs::write(path, format!("{sbom:#}\n")).unwrap();
    }
}
