//! Merges the `/metrics` of several workers into one text.
//!
//! As sglang-router does it, `sglang:x` becomes `sglang_x`, and each sample gets the label
//! `worker_addr`. Samples of one family stand together, as the format demands.

use std::collections::HashMap;
use std::fmt::Write;

/// One family: its comments, and its samples of all workers.
#[derive(Default)]
struct Family {
    comments: Vec<String>,
    samples: Vec<String>,
}

/// Merges texts, each with the address of its worker.
pub fn merge(texts: &[(String, String)]) -> String {
    let mut order: Vec<String> = Vec::new();
    let mut families: HashMap<String, Family> = HashMap::new();
    for (address, text) in texts {
        // Samples follow the comments of their family; their names may have a suffix.
        let mut current = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let comment = line.strip_prefix('#').map(str::trim_start);
            let name = match comment {
                None => renamed(line.split(['{', ' ']).next().unwrap_or_default()),
                Some(comment) => match comment.split_once(' ') {
                    Some(("HELP" | "TYPE", rest)) => {
                        renamed(rest.split(' ').next().unwrap_or_default())
                    }
                    _ => continue,
                },
            };
            let belongs = !current.is_empty() && name.starts_with(&current) && comment.is_none();
            if !belongs {
                current = name;
            }
            let family = families.entry(current.clone()).or_insert_with(|| {
                order.push(current.clone());
                Family::default()
            });
            match comment {
                None => family.samples.push(labelled(line, address)),
                Some(comment) => {
                    let comment = recommented(comment);
                    // The first worker's text stands for all.
                    let kind = comment.split(' ').take(3).collect::<Vec<_>>().join(" ");
                    let known = |own: &String| own.starts_with(&format!("{kind} "));
                    if !family.comments.iter().any(known) {
                        family.comments.push(comment);
                    }
                }
            }
        }
    }
    let mut merged = String::new();
    for family in order.iter().filter_map(|name| families.get(name)) {
        for line in family.comments.iter().chain(&family.samples) {
            let _ = writeln!(merged, "{line}");
        }
    }
    merged
}

fn renamed(name: &str) -> String {
    name.replace(':', "_")
}

/// `HELP name text` with the new name, as a comment.
fn recommented(comment: &str) -> String {
    let mut words = comment.splitn(3, ' ');
    let (kind, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    format!("# {kind} {} {}", renamed(name), words.next().unwrap_or(""))
}

/// A sample with the new name and the worker's label.
fn labelled(sample: &str, address: &str) -> String {
    let escaped = address.replace('\\', "\\\\").replace('"', "\\\"");
    let label = format!("worker_addr=\"{escaped}\"");
    let end = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (name, rest) = sample.split_at(end);
    let name = renamed(name);
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => format!("{name}{{{label}{labels}"),
        Some(labels) => format!("{name}{{{label},{labels}"),
        None => format!("{name}{{{label}}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_all_workers_stand_together() {
        let text = "# HELP sglang:x Text here\n# TYPE sglang:x histogram\n\
                    sglang:x_bucket{le=\"1\"} 2\nsglang:x_sum 3\n# TYPE up gauge\nup{} 1\n";
        let texts = ["a:1", "b:2"].map(|address| (address.to_owned(), text.to_owned()));
        let expected = "\
# HELP sglang_x Text here
# TYPE sglang_x histogram
sglang_x_bucket{worker_addr=\"a:1\",le=\"1\"} 2
sglang_x_sum{worker_addr=\"a:1\"} 3
sglang_x_bucket{worker_addr=\"b:2\",le=\"1\"} 2
sglang_x_sum{worker_addr=\"b:2\"} 3
# TYPE up gauge
up{worker_addr=\"a:1\"} 1
up{worker_addr=\"b:2\"} 1
";
        assert_eq!(merge(&texts), expected);
        assert_eq!(merge(&[]), "");
    }
}
