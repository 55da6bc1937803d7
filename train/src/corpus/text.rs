//! Small helpers for English text.

/// "a" or "an" before `word`.
pub fn article(word: &str) -> &'static str {
    match word.chars().next() {
        Some('a' | 'e' | 'i' | 'o' | 'u' | 'A' | 'E' | 'I' | 'O' | 'U') => "an",
        _ => "a",
    }
}

/// `word` with its first letter in upper case.
pub fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars
        .next()
        .map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

/// Replaces every `{key}` of `template` by its value.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + 32);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        let tail = &rest[open + 1..];
        let close = tail.find('}').expect("corpus templates close their braces");
        let key = &tail[..close];
        let value = values.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        out.push_str(value.expect("corpus templates name only slots that are given"));
        rest = &tail[close + 1..];
    }
    out.push_str(rest);
    out
}

/// "a", "a and b", "a, b and c".
pub fn join_and(items: &[&str]) -> String {
    match items {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [start @ .., last] => format!("{} and {last}", start.join(", ")),
    }
}
