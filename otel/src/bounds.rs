//! The bucket bounds of histograms: the standard ones of their families, or configured ones.

use std::collections::BTreeMap;

use crate::buckets::{Buckets, FAMILIES};
use crate::catalog;
use crate::rows;

/// Bounds that one family may have: recording searches them, and a scrape shows each one.
const MAX_BOUNDS: usize = 200;

/// Configured bounds of some families, in place of the standard ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomBuckets(BTreeMap<Buckets, Vec<f64>>);

impl CustomBuckets {
    /// Checks `given`, bounds by the name of their family ([`FAMILIES`]).
    ///
    /// # Errors
    /// A message that says what is wrong: an unknown family, or bounds that are not ascending.
    pub fn new(given: BTreeMap<String, Vec<f64>>) -> Result<Self, String> {
        let mut families = BTreeMap::new();
        for (name, bounds) in given {
            let Some((_, family)) = FAMILIES.iter().find(|(known, _)| *known == name) else {
                let known = FAMILIES.map(|(name, _)| name).join(", ");
                return Err(format!("there is no family {name:?}, but {known}"));
            };
            let ascending = bounds.is_sorted_by(|a, b| a < b);
            let sane = bounds
                .iter()
                .all(|bound| bound.is_finite() && *bound >= 0.0);
            if !(1..=MAX_BOUNDS).contains(&bounds.len()) || !ascending || !sane {
                return Err(format!(
                    "the bounds of {name:?} must be 1 to {MAX_BOUNDS} ascending numbers from 0 on"
                ));
            }
            families.insert(*family, bounds);
        }
        Ok(Self(families))
    }
}

/// The bounds of every family, for a model with a given context length.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Longest sequence in tokens.
    context: usize,
    custom: CustomBuckets,
}

impl Bounds {
    pub fn new(context: usize, custom: CustomBuckets) -> Self {
        Self { context, custom }
    }

    /// The bounds of `family`, ascending.
    pub fn of(&self, family: Buckets) -> Vec<f64> {
        let custom = self.custom.0.get(&family);
        custom.map_or_else(|| family.standard(self.context), Clone::clone)
    }

    /// All bounds of `families`, ascending, each once.
    pub fn union(&self, families: impl IntoIterator<Item = Buckets>) -> Vec<f64> {
        let bounds = families.into_iter().flat_map(|family| self.of(family));
        let mut bounds: Vec<f64> = bounds.collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        bounds
    }

    /// The bounds that an instrument records with: its own and those of its projections.
    pub fn of_instrument(&self, name: &str) -> Vec<f64> {
        let own = catalog::find(name).map_or(&[][..], |instrument| instrument.buckets);
        self.union(own.iter().copied().chain(rows::buckets_of(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_has_every_bound_once_in_ascending_order() {
        let all = Bounds::new(1, CustomBuckets::default());
        let families = [Buckets::FirstToken, Buckets::SglangFirstToken];
        let bounds = all.union(families);
        assert!(bounds.is_sorted_by(|a, b| a < b));
        // 22 and 18 bounds, of which six are the same.
        assert_eq!(bounds.len(), 34);
        for family in families {
            assert!(all.of(family).iter().all(|b| bounds.contains(b)));
        }
    }

    #[test]
    fn configured_bounds_replace_those_of_their_family_only() {
        let given = BTreeMap::from([("time_to_first_token".to_owned(), vec![0.3, 3.0])]);
        let bounds = Bounds::new(1, CustomBuckets::new(given).unwrap());
        assert_eq!(bounds.of(Buckets::FirstToken), [0.3, 3.0]);
        assert_eq!(bounds.of(Buckets::SglangFirstToken).len(), 18);
        let recorded = bounds.of_instrument("gen_ai.server.time_to_first_token");
        assert!(recorded.contains(&0.3) && recorded.contains(&0.1));
    }

    #[test]
    fn bounds_that_cannot_make_a_histogram_are_refused_with_a_message() {
        let refused = |name: &str, bounds: Vec<f64>| {
            CustomBuckets::new(BTreeMap::from([(name.to_owned(), bounds)])).unwrap_err()
        };
        assert!(refused("latency", vec![1.0]).contains("request_latency"));
        for bounds in [
            vec![],
            vec![1.0, 1.0],
            vec![2.0, 1.0],
            vec![-1.0],
            vec![f64::NAN],
            vec![f64::INFINITY],
            (0..300).map(f64::from).collect(),
        ] {
            let error = refused("request_latency", bounds);
            assert!(error.contains("1 to 200 ascending numbers"), "{error}");
        }
    }

    #[test]
    fn every_family_has_its_own_name() {
        let names: std::collections::BTreeSet<&str> = FAMILIES.map(|(name, _)| name).into();
        let families: std::collections::BTreeSet<Buckets> =
            FAMILIES.map(|(_, family)| family).into();
        assert_eq!(
            (names.len(), families.len()),
            (FAMILIES.len(), FAMILIES.len())
        );
    }
}
