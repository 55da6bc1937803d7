//! Which name was meant by one that does not exist.

/// The known name that is nearest to `given`; `None` if none is near. One letter in three may be
/// wrong, missing or too many, or have changed its place with the next one.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|name| (strsim::damerau_levenshtein(given, name), name));
    let (distance, name) = distances.min()?;
    (distance <= given.chars().count() / 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_answered_with_the_nearest_name_and_nonsense_with_none() {
        let near = |given| nearest(given, ["max_queue", "max_loras", "port"].into_iter());
        assert_eq!(near("max_quue"), Some("max_queue"));
        assert_eq!(near("max_lora"), Some("max_loras"));
        assert_eq!(near("prot"), Some("port"));
        assert_eq!(near("service_host"), None);
        assert_eq!(near(""), None);
    }
}
