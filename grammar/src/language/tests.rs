use proptest::prelude::*;

use super::Languages;
use crate::error::Problem;

/// True if Rust's engine, which has no look-around, finds the translation in `text`.
fn finds(pattern: &str, text: &str) -> bool {
    ::regex::Regex::new(pattern).unwrap().is_match(text)
}

#[test]
fn look_around_and_anchors_become_plain_patterns() {
    let cases = [
        ("^(?!foo)", "bar", "foobar"),
        ("^(?!.*foo).*$", "fo o", "a foo b"),
        ("^(?=.*[0-9])(?=.*[a-z]).{3,}$", "a1b", "abc"),
        ("^(?!(a|b)$).+$", "ab", "a"),
        ("^a|b$", "xb", "xc"),
        ("(^a|b)c", "xbc", "xac"),
        ("^[^/](?!/)", "ab", "a/"),
        ("a$|^$", "", "b"),
        ("^(?:(?!\\.\\.)[a-z.]){2,4}$", "a.b", "a..b"),
        ("(?<!x)^a", "ab", "ba"),
    ];
    for (pattern, good, bad) in cases {
        let mut languages = Languages::new();
        let plain = languages.translated(pattern).unwrap().unwrap();
        assert!(finds(&plain, good), "{pattern} {plain} {good}");
        assert!(!finds(&plain, bad), "{pattern} {plain} {bad}");
    }
}

#[test]
fn spellings_of_ecma_and_python_are_read() {
    let cases = [
        ("^\\d\\w\\s$", "1_ ", "a_ "),
        ("^[\\w-]+\\/$", "a-/", "a-"),
        ("^[[&&~~-]$", "&", "x"),
        ("^{a}$", "{a}", "a"),
        ("^\\u00e9\\x41\\cJ$", "éA\n", "eA\n"),
        ("^\\uD83D\\uDE00$", "😀", "😁"),
        ("\\Aa\\Z", "a", "ab"),
        ("^(?P<n>a)(?<m>b)$", "ab", "ba"),
        ("^(?i)a$", "", ""),
        ("(?i)^ab$", "aB", "ac"),
        ("^a{2}{$", "aa{", "aa"),
        ("^[^\\]\\-]$", "a", "-"),
        ("^\\_\\-\\<$", "_-<", "_"),
        ("^\\p{Lu}$", "Ä", "ä"),
    ];
    for (pattern, good, bad) in cases {
        let plain = Languages::new().translated(pattern);
        if good.is_empty() {
            assert!(plain.is_err(), "{pattern}");
            continue;
        }
        let plain = plain.unwrap().unwrap();
        assert!(finds(&plain, good), "{pattern} {plain}");
        assert!(!finds(&plain, bad), "{pattern} {plain}");
    }
}

#[test]
fn what_is_not_regular_or_differs_is_refused_by_name() {
    let cases = [
        ("(a)\\1", "back-references"),
        ("\\bfoo\\b", "word boundaries"),
        ("a{,3}", "{0,n}"),
        ("(?>a)", "atomic"),
        ("a++", "possessive"),
        ("(?s)a", "flags"),
        ("a(?<=a)b", "look-behind"),
        ("(?:(?=a).)*b", "repetition"),
        ("[]a]", "bracket"),
    ];
    for (pattern, words) in cases {
        let error = Languages::new().translated(pattern).unwrap_err();
        assert_eq!(error.problem, Problem::Unsupported, "{pattern}");
        assert!(error.message.contains(words), "{pattern}: {error}");
    }
    for pattern in ["(", ")", "[a", "*", "a{3,2}", "\\", "\\u12", "[b-a]"] {
        let error = Languages::new().translated(pattern).unwrap_err();
        assert_eq!(error.problem, Problem::Invalid, "{pattern}");
    }
    assert!(Languages::new().translated("a(?=b)c").unwrap().is_none());
}

#[test]
fn large_patterns_are_refused_in_time() {
    let began = std::time::Instant::now();
    for pattern in ["(a|b)*a(a|b){30}", "^(?!a{1000}).{1,5000}$"] {
        let mut languages = Languages::new();
        let outcome = languages.matching(pattern).and_then(|language| {
            let others = languages.not(language);
            languages.pattern(others)
        });
        assert!(outcome.is_err(), "{pattern}");
    }
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

#[test]
fn the_work_on_many_large_patterns_is_bounded() {
    let mut languages = Languages::new();
    let refused = (0..24u32).find_map(|number| {
        let letter = char::from_u32(0x3b1 + number).unwrap();
        let long = format!("^{}$", letter.to_string().repeat(1_400));
        let pattern = languages
            .matching(&long)
            .and_then(|language| languages.pattern(language));
        let error = pattern.err()?;
        Some((number, error.to_string()))
    });
    // One takes two million steps, and its expressions alone would be too many only after dozens.
    let (number, error) = refused.expect("there is a bound");
    assert!((5..20).contains(&number), "{number}: {error}");
    assert!(error.contains("at most 20000000 steps"), "{error}");
}

/// Patterns of a small alphabet, which Rust's engine can read too.
fn patterns() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "[abc]",
        "[ab]{1,2}",
        Just("[^a]".to_owned()),
        Just("b".to_owned())
    ];
    let leaf = leaf.prop_map(|text| match text.as_str() {
        "c" => ".".to_owned(),
        _ => text,
    });
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("(?:{a}|{b})")),
            inner.clone().prop_map(|a| format!("(?:{a})*")),
            inner.prop_map(|a| format!("(?:{a}){{1,2}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn combinations_match_what_their_parts_say(
        a in patterns(),
        b in patterns(),
        anchored: bool,
        texts in proptest::collection::vec("[abcd]{0,6}", 12),
    ) {
        let a = if anchored { format!("^{a}$") } else { a };
        let mut languages = Languages::new();
        let (left, right) = (languages.matching(&a).unwrap(), languages.matching(&b).unwrap());
        let not_right = languages.not(right);
        let difference = languages.both(left, not_right);
        let pattern = languages.pattern(difference);
        // A few of the patterns are too large.
        prop_assume!(pattern.is_ok());
        let pattern = pattern.unwrap();
        prop_assert_eq!(pattern.is_none(), languages.is_empty(difference).unwrap());
        for text in texts {
            let expected = finds(&a, &text) && !finds(&b, &text);
            let found = pattern.as_ref().is_some_and(|pattern| finds(pattern, &text));
            prop_assert_eq!(found, expected, "{} {:?}", text, pattern);
            prop_assert_eq!(languages.has(difference, &text).unwrap(), expected);
        }
    }
}
