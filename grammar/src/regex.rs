//! Reads regular expressions and checks their bounds.

use regex_syntax::hir::{Hir, HirKind, Look};
use regex_syntax::{ParserBuilder, ast, hir};

use crate::error::GrammarError;

/// The most bytes of a pattern.
pub(crate) const MAX_PATTERN_BYTES: usize = 16 * 1024;
/// The largest `n` of `x{n}`.
pub(crate) const MAX_REPETITION: u32 = 10_000;
/// The largest product of the counts of nested repetitions.
const MAX_REPETITION_PRODUCT: u64 = 100_000;
/// The most levels of nested groups.
const MAX_NESTING: u32 = 100;

/// Parses a pattern of at most `max_bytes`, which can match only valid UTF-8.
///
/// # Errors
/// If the pattern cannot be read, is not supported, or exceeds a bound.
pub(crate) fn parse(pattern: &str, max_bytes: usize) -> Result<Hir, GrammarError> {
    if pattern.len() > max_bytes {
        return Err(GrammarError::too_complex(format!(
            "a regex must be at most {max_bytes} bytes long, got {}",
            pattern.len()
        )));
    }
    let hir = ParserBuilder::new()
        .nest_limit(MAX_NESTING)
        .build()
        .parse(pattern)
        .map_err(|error| refused(&error))?;
    check_repetitions(&hir, 1)?;
    Ok(hir)
}

fn refused(error: &regex_syntax::Error) -> GrammarError {
    use ast::ErrorKind;
    match error {
        regex_syntax::Error::Parse(error) => match error.kind() {
            ErrorKind::UnsupportedLookAround => {
                GrammarError::unsupported("look-around is not supported in a regex")
            }
            ErrorKind::UnsupportedBackreference => {
                GrammarError::unsupported("back-references are not supported in a regex")
            }
            ErrorKind::NestLimitExceeded(limit) => GrammarError::too_complex(format!(
                "a regex must have at most {limit} levels of nesting"
            )),
            kind => GrammarError::invalid(format!(
                "the regex cannot be read at byte {}: {kind}",
                error.span().start.offset
            )),
        },
        regex_syntax::Error::Translate(error) => {
            let kind: &hir::ErrorKind = error.kind();
            GrammarError::invalid(format!(
                "the regex cannot be read at byte {}: {kind}",
                error.span().start.offset
            ))
        }
        _ => GrammarError::invalid("the regex cannot be read"),
    }
}

fn check_repetitions(hir: &Hir, outer: u64) -> Result<(), GrammarError> {
    match hir.kind() {
        HirKind::Repetition(repetition) => {
            let count = repetition.max.unwrap_or(repetition.min).max(1);
            if count > MAX_REPETITION {
                return Err(GrammarError::too_complex(format!(
                    "a regex repetition count must be at most {MAX_REPETITION}, got {count}"
                )));
            }
            let product = outer * u64::from(count);
            if product > MAX_REPETITION_PRODUCT {
                return Err(GrammarError::too_complex(format!(
                    "nested regex repetition counts must multiply to at most \
                     {MAX_REPETITION_PRODUCT}, got {product}"
                )));
            }
            check_repetitions(&repetition.sub, product)
        }
        HirKind::Capture(capture) => check_repetitions(&capture.sub, outer),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts
            .iter()
            .try_for_each(|part| check_repetitions(part, outer)),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => Ok(()),
    }
}

/// The pattern without the anchors at its ends, which have no effect because a pattern matches
/// a whole text; `None` if the pattern has other anchors or word boundaries.
pub(crate) fn without_anchors(hir: &Hir) -> Option<String> {
    let inner = match hir.kind() {
        HirKind::Concat(parts) => {
            let is = |part: Option<&Hir>, look| {
                part.is_some_and(|part| *part.kind() == HirKind::Look(look))
            };
            let start = usize::from(is(parts.first(), Look::Start));
            let end = parts.len() - usize::from(is(parts.last(), Look::End));
            Hir::concat(parts[start..end.max(start)].to_vec())
        }
        _ => hir.clone(),
    };
    inner
        .properties()
        .look_set()
        .is_empty()
        .then(|| inner.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Problem;

    fn refusal(pattern: &str) -> GrammarError {
        parse(pattern, MAX_PATTERN_BYTES).expect_err(pattern)
    }

    #[test]
    fn repetition_counts_are_bounded_alone_and_multiplied() {
        assert_eq!(
            refusal("a{1000000}").message,
            "a regex repetition count must be at most 10000, got 1000000"
        );
        assert_eq!(refusal("a{10001,}").problem, Problem::TooComplex);
        assert_eq!(
            refusal("((a{1000}){1000}){1000}").problem,
            Problem::TooComplex
        );
        assert!(parse("a{10000}b{10000}", MAX_PATTERN_BYTES).is_ok());
        assert_eq!(refusal(&"a".repeat(20_000)).problem, Problem::TooComplex);
        assert_eq!(
            refusal(&("(".repeat(5000) + &")".repeat(5000))).problem,
            Problem::TooComplex
        );
    }

    #[test]
    fn unsupported_features_are_refused_by_name() {
        assert!(refusal("(?=a)b").message.contains("look-around"));
        assert!(refusal(r"(a)\1").message.contains("back-references"));
        assert_eq!(refusal("(").problem, Problem::Invalid);
        assert_eq!(refusal(r"(?-u)\xff").problem, Problem::Invalid);
    }

    #[test]
    fn anchors_at_the_ends_are_removed() {
        let bare = |pattern| without_anchors(&parse(pattern, 100).unwrap());
        let matches = |pattern: &str, text: &str| {
            ::regex::Regex::new(&format!("^(?:{pattern})$"))
                .unwrap()
                .is_match(text)
        };
        let stripped = bare("^a|b$");
        assert_eq!(stripped, None, "they are not at the ends of the whole");
        assert!(matches(&bare("^ab+$").unwrap(), "abb"));
        assert!(matches(&bare("ab").unwrap(), "ab"));
        assert_eq!(bare(r"a\b"), None);
        assert!(bare("^$").is_some());
    }
}
