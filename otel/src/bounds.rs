//! The bounds that histograms have here: their families', or those that were asked for.

use std::collections::BTreeMap;

use crate::buckets::{Buckets, FAMILIES};
use crate::catalog;
use crate::rows;

/// Recording searches the bounds, and a scrape shows each of them.
const MOST: usize = 200;

/// Bounds chosen for some families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomBuckets(BTreeMap<Buckets, Vec<f64>>);

impl CustomBuckets {
    /// # Errors
    /// What is wrong with them, in words.
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
            if !(1..=MOST).contains(&bounds.len()) || !ascending || !sane {
                return Err(format!(
                    "the bounds of {name:?} must be 1 to {MOST} ascending numbers from 0 on"
                ));
            }
            families.insert(*family, bounds);
        }
        Ok(Self(families))
    }
}

/// The bounds of every family.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// The longest sequence in tokens.
    context: usize,
    custom: CustomBuckets,
}

impl Bounds {
    pub fn new(context: usize, custom: CustomBuckets) -> Self {
        Self { context, custom }
    }

    /// Ascending.
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

    /// What an instrument records with: its own bounds and those of its projections.
    pub fn of_instrument(&self, name: &str) -> Vec<f64> {
        let own = catalog::find(name).map_or(&[][..], |instrument| instrument.buckets);
        self.union(own.iter().copied().chain(rows::buckets_of(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_union_has_every_bound_once_in_order() {
        let all = Bounds::new(1, CustomBuckets::default());
        let families = [Buckets::FirstToken, Buckets::SglangFirstToken];
        let bounds = all.union(families);
        assert!(bounds.is_sorted_by(|a, b| a < b));
        // 22 and 18, six of them the same: as measured with the published dashboards.
        assert_eq!(bounds.len(), 34);
        for family in families {
            assert!(all.of(family).iter().all(|b| bounds.contains(b)));
        }
    }

    #[test]
    fn chosen_bounds_are_those_of_their_family_alone() {
        let given = BTreeMap::from([("time_to_first_token".to_owned(), vec![0.3, 3.0])]);
        let bounds = Bounds::new(1, CustomBuckets::new(given).unwrap());
        assert_eq!(bounds.of(Buckets::FirstToken), [0.3, 3.0]);
        assert_eq!(bounds.of(Buckets::SglangFirstToken).len(), 18);
        let recorded = bounds.of_instrument("gen_ai.server.time_to_first_token");
        assert!(recorded.contains(&0.3) && recorded.contains(&0.1));
    }

    #[test]
    fn bounds_that_make_no_histogram_are_refused_in_words() {
        let refused = |name: &str, bounds: Vec<f64>| {
            CustomBuckets::new(BTreeMap::from([(name.to_owned(), bounds)])).unwrap_err()
        };
        assert!(refused("latency", vec![1.0]).contains("request_latency"));
        for nonsense in [
            vec![],
            vec![1.0, 1.0],
            vec![2.0, 1.0],
            vec![-1.0],
            vec![f64::NAN],
            vec![f64::INFINITY],
            (0..300).map(f64::from).collect(),
        ] {
            let error = refused("request_latency", nonsense);
            assert!(error.contains("1 to 200 ascending numbers"), "{error}");
        }
    }

    #[test]
    fn every_family_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = FAMILIES.map(|(name, _)| name).into();
        let families: std::collections::BTreeSet<Buckets> =
            FAMILIES.map(|(_, family)| family).into();
        assert_eq!(
            (names.len(), families.len()),
            (FAMILIES.len(), FAMILIES.len())
        );
    }
}
