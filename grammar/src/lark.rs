//! Checks grammars in llguidance's dialect of Lark before they are compiled: bounds that
//! llguidance's compiler does not have, and the JSON Schemas within the grammar, to which the
//! same rules apply as to other schemas.

mod scanner;

use self::scanner::{Scanner, Token, too_many};
use crate::error::GrammarError;
use crate::schema::Preparing;

/// The most schemas within one grammar.
const MAX_SCHEMAS: usize = 100;

/// The grammar `text` with its schemas prepared for llguidance.
///
/// # Errors
/// If the grammar exceeds a bound, has a schema that cannot be enforced, or is not Lark.
pub(crate) fn prepare(text: &str, preparing: &mut Preparing) -> Result<String, GrammarError> {
    let mut scanner = Scanner::new(text);
    let mut out = String::with_capacity(text.len());
    let mut schemas = 0;
    while let Some(token) = scanner.next()? {
        match token {
            Token::Json => {
                out.push_str(scanner.taken());
                let value = scanner.json()?;
                schemas += 1;
                if schemas > MAX_SCHEMAS {
                    return Err(too_many("schemas", MAX_SCHEMAS, schemas));
                }
                let schema = preparing.schema(&value)?;
                out.push(' ');
                out.push_str(&schema.to_string());
                scanner.drop_taken();
            }
            Token::Options => {
                scanner.json()?;
            }
            Token::Text => {}
        }
    }
    out.push_str(scanner.taken());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Problem;
    use crate::spec::{Strictness, Whitespace};

    fn natural(text: &str) -> Result<String, GrammarError> {
        prepare(
            text,
            &mut Preparing::new(Whitespace::Natural, Strictness::Strict),
        )
    }

    #[test]
    fn schemas_within_a_grammar_follow_the_rules_for_schemas() {
        let text = "start: \"x\" %json {\"type\": \"null\", \"title\": \"}\"} \"y\" # %json 1\n";
        let given = natural(text).unwrap();
        assert!(
            given.starts_with("start: \"x\" %json {\"type\":\"null\""),
            "{given}"
        );
        assert!(given.contains("whitespace_flexible\":false"), "{given}");
        assert!(given.ends_with("} \"y\" # %json 1\n"), "{given}");
        let nested = "start: %lark {\nstart: %json {\"not\": {\"multipleOf\": 2}}\n}";
        assert_eq!(natural(nested).unwrap_err().problem, Problem::Unsupported);
        let lenient = "start: %json {\"x-guidance\": {\"lenient\": true}}";
        assert_eq!(natural(lenient).unwrap_err().problem, Problem::Unsupported);
        let in_text = "start: \"%json {\" /%json {/ <|%json|>\n// %json {\n";
        assert_eq!(natural(in_text).unwrap(), in_text);
    }

    #[test]
    fn every_refusal_names_the_bound_and_the_given_value() {
        let refusal = |text: String| {
            let error = natural(&text).unwrap_err();
            assert_eq!(error.problem, Problem::TooComplex, "{error}");
            error.message
        };
        let rules: String = (0..2_001).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
        assert_eq!(
            refusal(rules),
            "a grammar must have at most 2000 rules and terminals, got 2001"
        );
        let nots = format!(
            "x::_: \"a\" %if {}eq(_,1){}",
            "not(".repeat(90),
            ")".repeat(90)
        );
        assert_eq!(
            refusal(nots),
            "a grammar must have at most 64 levels of brackets, got 65"
        );
        assert_eq!(
            refusal(format!("start: \"{}\"", "a".repeat(8_193))),
            "a literal of a grammar must be at most 8192 bytes long, got 8193"
        );
        assert_eq!(
            refusal(format!("start: A\nA: /a/{}", " & /b/".repeat(30))),
            "a grammar must have at most 8 `&` and `~`, got 9"
        );
        for counted in [
            "\"a\"{20000}",
            "\"a\"{1, 20000}",
            "\"a\"~1..20000",
            "/a{20000}/",
        ] {
            assert_eq!(
                refusal(format!("start: {counted}")),
                "a repetition count must be at most 10000, got 20000"
            );
        }
    }

    #[test]
    fn texts_that_only_look_like_too_large_counts_are_accepted() {
        for text in [
            "start: \"{99999}\" x::99999\nx::_: \"a\" %if eq(_, 99999)",
            "start[max_tokens=99999]: /[0-9]+/\n",
            "start: \"a\"~3 | \"b\"\n  | \"c\" // \"\n",
        ] {
            assert_eq!(natural(text).unwrap(), text);
        }
        let longer: String = (0..900)
            .map(|i| format!("r{i}: \"a\"\n  | r{i}\n"))
            .collect();
        assert!(natural(&longer).is_ok());
    }

    #[test]
    fn text_that_is_not_lark_is_refused_with_its_line() {
        for text in [
            "start: \"a",
            "start: \"b\"\nx: /a",
            "start: <a",
            "start: %json",
        ] {
            assert_eq!(
                natural(text).unwrap_err().problem,
                Problem::Invalid,
                "{text}"
            );
        }
        let error = natural("start: x\nx: \"").unwrap_err();
        assert!(error.message.contains("line 2"), "{error}");
        let warm = natural("start[temperature=0.5]: \"a\"").unwrap_err();
        assert_eq!(warm.problem, Problem::Unsupported);
    }
}
