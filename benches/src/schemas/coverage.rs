//! Counts of a measurement, and the table of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The most characters of a refusal that tell its reason.
const MAX_REASON: usize = 70;

#[derive(Debug, Default)]
pub struct Coverage {
    pub schemas: usize,
    pub unreadable: usize,
    pub refused_in: Vec<Duration>,
    masks: Vec<Duration>,
    /// The slowest mask of each file.
    slowest_masks: Vec<(Duration, String)>,
    compiled: Vec<(Duration, String)>,
    /// The names of refused files by the reason.
    refused: BTreeMap<String, Vec<String>>,
    valid: usize,
    missed: Vec<String>,
    invalid: usize,
    wrong: Vec<String>,
}

impl Coverage {
    pub fn refuse(&mut self, name: &str, code: &str, message: &str) {
        let reason = format!("{code}: {}", reason(message));
        self.refused
            .entry(reason)
            .or_default()
            .push(format!("{name}: {message}"));
    }

    /// Adds the counts of `other`.
    pub fn join(&mut self, other: Self) {
        self.schemas += other.schemas;
        self.unreadable += other.unreadable;
        self.refused_in.extend(other.refused_in);
        self.masks.extend(other.masks);
        self.slowest_masks.extend(other.slowest_masks);
        self.compiled.extend(other.compiled);
        for (reason, names) in other.refused {
            self.refused.entry(reason).or_default().extend(names);
        }
        self.valid += other.valid;
        self.missed.extend(other.missed);
        self.invalid += other.invalid;
        self.wrong.extend(other.wrong);
    }

    pub fn masked(&mut self, name: &str, masks: Vec<Duration>) {
        if let Some(&slowest) = masks.iter().max() {
            self.slowest_masks.push((slowest, name.to_owned()));
        }
        self.masks.extend(masks);
    }

    pub fn compiled_in(&mut self, name: &str, took: Duration) {
        self.compiled.push((took, name.to_owned()));
    }

    pub fn valid(&mut self, name: &str, accepted: bool) {
        self.valid += 1;
        if !accepted {
            self.missed.push(name.to_owned());
        }
    }

    pub fn invalid(&mut self, name: &str, accepted: bool) {
        self.invalid += 1;
        if accepted {
            self.wrong.push(name.to_owned());
        }
    }

    /// The table, with up to `list` names of each kind of failure.
    pub fn table(mut self, vocabulary: usize, list: usize) -> String {
        self.compiled.sort();
        self.slowest_masks.sort();
        self.masks.sort_unstable();
        self.refused_in.sort_unstable();
        let times: Vec<Duration> = self.compiled.iter().map(|(took, _)| *took).collect();
        let mut text = String::new();
        // Writing to a string does not fail.
        let mut row = |what: &str, value: String| {
            let _ = writeln!(text, "| {what} | {value} |");
        };
        row("what", "value".to_owned());
        row("---", "---".to_owned());
        row("schemas", self.schemas.to_string());
        row("compiled", share(times.len(), self.schemas));
        row("valid instances of them, accepted", {
            share(self.valid - self.missed.len(), self.valid)
        });
        row("invalid instances of them, accepted", {
            share(self.wrong.len(), self.invalid)
        });
        row("compiling, ms: p50, p99, max", quantiles(&times, 1e3));
        row(
            "refusing, ms: p50, p99, max",
            quantiles(&self.refused_in, 1e3),
        );
        row("masks, us: p50, p99, max", quantiles(&self.masks, 1e6));
        row("masks", self.masks.len().to_string());
        row("tokens of the vocabulary", vocabulary.to_string());
        if self.unreadable > 0 {
            row("files that are not JSON", self.unreadable.to_string());
        }
        let _ = writeln!(text, "\n| refused | reason |\n| --- | --- |");
        let mut reasons: Vec<_> = self.refused.iter().collect();
        reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
        for (reason, names) in &reasons {
            let _ = writeln!(text, "| {} | {reason} |", names.len());
        }
        if list > 0 {
            self.list(&mut text, list);
        }
        text
    }

    fn list(&self, text: &mut String, list: usize) {
        let slowest = |times: &[(Duration, String)]| {
            let slowest = times.iter().rev().take(list);
            let slowest = slowest.map(|(took, name)| format!("{name}: {took:?}"));
            slowest.collect::<Vec<_>>()
        };
        let refused = self
            .refused
            .values()
            .flat_map(|names| names.iter().take(list));
        let kinds = [
            (
                "valid, not accepted",
                self.missed.iter().take(list).cloned().collect(),
            ),
            (
                "invalid, accepted",
                self.wrong.iter().take(list).cloned().collect(),
            ),
            ("slowest to compile", slowest(&self.compiled)),
            ("slowest masks", slowest(&self.slowest_masks)),
            ("refused", refused.cloned().collect::<Vec<_>>()),
        ];
        for (kind, names) in kinds {
            let _ = writeln!(text, "\n{kind}:");
            for name in names {
                let _ = writeln!(text, "  {name}");
            }
        }
    }
}

/// The beginning of a message, without its place and without numbers.
fn reason(message: &str) -> String {
    let message = message.split(" (at ").next().unwrap_or_default();
    let plain = message.chars().filter(|letter| !letter.is_ascii_digit());
    plain.take(MAX_REASON).collect()
}

fn share(part: usize, whole: usize) -> String {
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    format!("{part} of {whole} ({percent:.2} %)")
}

fn quantiles(sorted: &[Duration], unit: f64) -> String {
    let Some(last) = sorted.len().checked_sub(1) else {
        return "none".to_owned();
    };
    let at = |share: f64| sorted[(last as f64 * share) as usize].as_secs_f64() * unit;
    format!("{:.2}, {:.2}, {:.2}", at(0.5), at(0.99), at(1.0))
}
