//! Writes patterns in the dialect of Rust's `regex` crate.

use super::part::Part;

/// `part` in the dialect of Rust's `regex` crate; `None` if it has look-around, or an anchor
/// elsewhere than at the ends of a top branch.
pub(crate) fn plain(part: &Part) -> Option<String> {
    let mut text = String::new();
    let branches = match part {
        Part::Either(branches) => branches.as_slice(),
        single => std::slice::from_ref(single),
    };
    // With several branches, anchors would apply to one of them only.
    let parts: Vec<&Part> = match branches {
        [Part::Concat(parts)] => parts.iter().collect(),
        [single] => vec![single],
        _ => branches.iter().collect(),
    };
    if branches.len() > 1 {
        write(part, &mut text)?;
        return Some(text);
    }
    for (index, part) in parts.iter().enumerate() {
        match part {
            Part::Start if index == 0 => text.push('^'),
            Part::End if index + 1 == parts.len() => text.push('$'),
            part => write(part, &mut text)?,
        }
    }
    Some(text)
}

fn write(part: &Part, text: &mut String) -> Option<()> {
    match part {
        Part::Class { text: class, .. } => text.push_str(class),
        Part::Concat(parts) => {
            text.push_str("(?:");
            parts.iter().try_for_each(|part| write(part, text))?;
            text.push(')');
        }
        Part::Either(branches) => {
            text.push_str("(?:");
            for (index, branch) in branches.iter().enumerate() {
                if index > 0 {
                    text.push('|');
                }
                write(branch, text)?;
            }
            text.push(')');
        }
        Part::Repeat { part, min, max } => {
            text.push_str("(?:");
            write(part, text)?;
            text.push(')');
            text.push_str(&match (min, max) {
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (0, Some(1)) => "?".to_owned(),
                (min, None) => format!("{{{min},}}"),
                (min, Some(max)) if min == max => format!("{{{min}}}"),
                (min, Some(max)) => format!("{{{min},{max}}}"),
            });
        }
        Part::Start | Part::End | Part::Look { .. } => return None,
    }
    Some(())
}
