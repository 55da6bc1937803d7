//! The tables of docs/API.md, from which the OpenAPI document takes its words.

const PAGE: &str = include_str!("../../../docs/API.md");

/// The cells of each row of the table under `heading`.
pub fn table(heading: &str) -> Option<impl Iterator<Item = [&'static str; 3]>> {
    let (_, section) = PAGE.split_once(&format!("\n{heading}\n"))?;
    let section = section.split("\n#").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    Some(rows.map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let mut next = || cells.next().unwrap_or("");
        [next(), next(), next()]
    }))
}

/// The parts of `text` between backticks.
pub fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}
