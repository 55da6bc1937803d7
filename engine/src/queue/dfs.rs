//! A depth-first walk over the radix tree of prompts.

use hearth_radix::common_prefix;

/// The indices of `prompts`, each with its namespace, in the order of a depth-first walk over
/// their radix tree. At each fork, the prompts that end there come first, then the branches in
/// the order of how many prompts they have, and of equal branches the one with the earliest
/// prompt.
///
/// Each token is looked at a constant number of times. There is no recursion, whose depth
/// clients could choose.
pub(crate) fn heaviest_first(prompts: &[(&str, &[u32])]) -> Vec<usize> {
    let mut order = Vec::with_capacity(prompts.len());
    let mut branches = groups((0..prompts.len()).collect(), |i| prompts[i].0);
    let mut stack: Vec<_> = branches.drain(..).rev().map(|group| (group, 0)).collect();
    while let Some((group, depth)) = stack.pop() {
        let (&first, others) = group.split_first().expect("groups have members");
        let first = &prompts[first].1[depth..];
        let common = others
            .iter()
            .map(|&i| common_prefix(first, &prompts[i].1[depth..]));
        let fork = depth + common.min().unwrap_or(first.len());
        let (ended, rest) = group
            .into_iter()
            .partition::<Vec<_>, _>(|&i| prompts[i].1.len() == fork);
        order.extend(ended);
        let branches = groups(rest, |i| prompts[i].1[fork]);
        stack.extend(branches.into_iter().rev().map(|group| (group, fork)));
    }
    order
}

/// Divides `indices` into groups of equal keys. The largest group comes first, and equally
/// large groups keep the order of their first members.
fn groups<K: Ord>(mut indices: Vec<usize>, key: impl Fn(usize) -> K) -> Vec<Vec<usize>> {
    indices.sort_by_key(|&i| (key(i), i));
    let mut groups: Vec<Vec<usize>> = indices
        .chunk_by(|&a, &b| key(a) == key(b))
        .map(<[usize]>::to_vec)
        .collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group[0]));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_walked_one_after_another_with_the_heaviest_first() {
        let prompts: [(&str, &[u32]); 8] = [
            ("", &[9]),
            ("", &[1, 2, 3]),
            ("", &[5, 6]),
            ("a", &[1, 2, 3]),
            ("", &[1, 2, 4, 8]),
            ("", &[5, 7]),
            ("", &[1, 2, 4, 7]),
            ("", &[1, 2]),
        ];
        assert_eq!(heaviest_first(&prompts), [7, 4, 6, 1, 2, 5, 0, 3]);
    }

    #[test]
    fn equal_prompts_and_a_chain_of_two_thousand_forks_are_ordered() {
        let long: Vec<u32> = (0..2_000).collect();
        let chain = (0..2_000).map(|end| ("", &long[..end]));
        let prompts: Vec<_> = chain.chain([("", &long[..]), ("", &long[..])]).collect();
        let expected: Vec<usize> = (0..2_002).collect();
        assert_eq!(heaviest_first(&prompts), expected);
    }
}
