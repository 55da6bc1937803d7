//! Which file of a crate imports which, read from the sources as text.
//!
//! A file and the files of its own submodules count as one side of a wall each, but an import
//! between a module and its own submodule is not counted: declaring a submodule and using it is
//! how Rust splits one thing over several files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The module path of a file: `scheduler::overlap`; empty for the crate's root.
type Module = Vec<String>;

/// All sources below `src` but tests, with comments and test modules cut out.
pub fn sources(src: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if name != "tests" {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path.strip_prefix(src).unwrap().to_owned(), code(&text)));
            }
        }
    }
    files.sort();
    files
}

/// The code of a file without comments, and without the test module at its end.
fn code(text: &str) -> String {
    let tests =
        Regex::new(r"(?m)^#\[cfg\((all\()?test[^\n]*\n(#\[[^\n]*\n)*(pub )?mod \w+ \{").unwrap();
    let text = match tests.find(text) {
        Some(found) => &text[..found.start()],
        None => text,
    };
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

fn module(file: &Path) -> Module {
    let mut parts: Module = file
        .with_extension("")
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    if ["mod", "lib", "main"].contains(&parts.last().unwrap().as_str()) {
        parts.pop();
    }
    parts
}

/// Each circle as one line that names its imports.
pub fn circles(src: &Path) -> Vec<String> {
    let sources = sources(src);
    let modules: BTreeSet<Module> = sources.iter().map(|(file, _)| module(file)).collect();
    let reexports = reexports(&sources, &modules);
    let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (file, source) in &sources {
        let from = module(file);
        if from.is_empty() {
            continue;
        }
        for path in paths(source, &from) {
            let to = resolve(&path, &modules, &reexports);
            let kin = to.starts_with(&from) || from.starts_with(&to);
            if !kin {
                edges.entry(from.clone()).or_default().insert(to);
            }
        }
    }
    strongly_connected(&edges)
        .into_iter()
        .map(|circle| {
            let inside = |module: &&Module| circle.contains(*module);
            let arrows = circle.iter().flat_map(|from| {
                let targets = edges.get(from).into_iter().flatten().filter(inside);
                targets.map(|to| format!("{} -> {}", from.join("::"), to.join("::")))
            });
            arrows.collect::<Vec<_>>().join(", ")
        })
        .collect()
}

/// The absolute module paths, within the crate, that a source names by `crate::` or `super::`.
fn paths(source: &str, from: &Module) -> Vec<Vec<String>> {
    let starts = Regex::new(r"\b(crate|super(?:::super)*)::").unwrap();
    let mut found = Vec::new();
    for start in starts.captures_iter(source) {
        let mut base = Vec::new();
        if &start[1] != "crate" {
            let ups = start[1].matches("super").count();
            if ups > from.len() {
                continue;
            }
            base = from[..from.len() - ups].to_vec();
        }
        expand(&source[start.get(0).unwrap().end()..], &base, &mut found);
    }
    found
}

/// Reads what follows `a::`: a path, or a tree of paths in braces.
fn expand<'a>(mut text: &'a str, base: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut path = base.to_vec();
    loop {
        text = text.trim_start();
        if let Some(mut rest) = text.strip_prefix('{') {
            loop {
                rest = rest.trim_start();
                if let Some(after) = rest.strip_prefix('}') {
                    return after;
                }
                if rest.is_empty() {
                    return rest;
                }
                rest = expand(rest, &path, found).trim_start();
                rest = rest.strip_prefix(',').unwrap_or(rest);
                if !rest.starts_with(|c: char| c.is_alphanumeric() || "_{}*".contains(c)) {
                    // `as` and anything that is not a tree of imports.
                    match rest.find(['}', ',', ';']) {
                        Some(at) => rest = &rest[at..],
                        None => return "",
                    }
                }
            }
        }
        let end = text
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(text.len());
        if end == 0 {
            found.push(path);
            return text.strip_prefix('*').unwrap_or(text);
        }
        path.push(text[..end].to_owned());
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => text = rest,
            None => {
                found.push(path);
                // `a as b` in a tree of imports.
                return match text.trim_start().strip_prefix("as ") {
                    Some(renamed) => renamed
                        .trim_start()
                        .trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'),
                    None => text,
                };
            }
        }
    }
}

/// Names that a module gives on from another one by `pub use`: (module, name) to where it is from.
type Reexports = BTreeMap<(Module, String), Vec<String>>;

fn reexports(sources: &[(PathBuf, String)], modules: &BTreeSet<Module>) -> Reexports {
    let uses = Regex::new(r"(?m)^pub(?:\([a-z]+\))? use ([^;]+);").unwrap();
    let mut names = Reexports::new();
    for (file, source) in sources {
        let from = module(file);
        for used in uses.captures_iter(source) {
            let mut found = Vec::new();
            let text = used[1].to_owned();
            match text.strip_prefix("crate::") {
                Some(rest) => expand(rest, &[], &mut found),
                None => expand(&text, &from, &mut found),
            };
            for path in found {
                let known = (1..path.len()).any(|end| modules.contains(&path[..end]));
                if let Some(name) = path.last().filter(|_| known) {
                    names.insert((from.clone(), name.clone()), path.clone());
                }
            }
        }
    }
    names
}

/// The deepest module that a path leads to, through re-exports.
fn resolve(path: &[String], modules: &BTreeSet<Module>, reexports: &Reexports) -> Module {
    let deepest = |path: &[String]| {
        let ends = (0..=path.len()).rev();
        let mut found = ends.map(|end| path[..end].to_vec());
        found
            .find(|module| modules.contains(module))
            .unwrap_or_default()
    };
    let mut path = path.to_vec();
    for _ in 0..4 {
        let module = deepest(&path);
        let Some(name) = path.get(module.len()) else {
            return module;
        };
        match reexports.get(&(module.clone(), name.clone())) {
            Some(origin) if *origin != path => path = origin.clone(),
            _ => return module,
        }
    }
    deepest(&path)
}

/// The groups of modules of which each leads to each other.
fn strongly_connected(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(module) = open.pop() {
            for to in edges.get(&module).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|from| (from, reach(from))).collect();
    let mut groups = BTreeSet::new();
    for (from, to) in &reached {
        if to.contains(*from) {
            let back = |module: &&Module| reached.get(module).is_some_and(|to| to.contains(*from));
            groups.insert(to.iter().filter(back).cloned().collect::<BTreeSet<_>>());
        }
    }
    groups.into_iter().collect()
}

#[test]
fn a_circle_is_found_and_a_line_is_not() {
    let folder = std::env::temp_dir().join(format!("hearth-imports-{}", std::process::id()));
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::Deep;\n");
    write(
        "a.rs",
        "mod inner;\nuse crate::{b::{One, Two as Three}, c};\n",
    );
    write("a/inner.rs", "use super::Thing;\n");
    write(
        "b.rs",
        "// crate::a\nuse crate::c::Word;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n",
    );
    write("c.rs", "fn f() {}\n");
    assert_eq!(circles(&folder), Vec::<String>::new());
    write("c.rs", "fn f(_: crate::Deep) {}\n");
    assert_eq!(circles(&folder), ["b -> c, c -> b"]);
    fs::remove_dir_all(&folder).unwrap();
}
