use proptest::prelude::*;

use hearth_events::{KvEvent, Update};

use super::*;
use crate::kv_index::tests::{prompt, stored};
use crate::worker::Lease;
use crate::worker::tests::worker;

fn text(text: &str) -> Prompt {
    Prompt {
        units: text.chars().map(u32::from).collect(),
        tokens: false,
        known: None,
    }
}

fn policy(config: RouterConfig) -> CacheAware {
    CacheAware::new(&config)
}

fn loads(worker: &Arc<Worker>, count: usize) -> Vec<Lease> {
    (0..count).map(|_| worker.lease().unwrap()).collect()
}

#[test]
fn a_prompt_follows_its_prefix_and_another_goes_to_the_lowest_load() {
    let workers = [worker("http://a"), worker("http://b")];
    let policy = policy(RouterConfig::default());
    let first = policy.select(&workers, &text("0123456789")).unwrap();
    let _busy = loads(&workers[first], 5);
    // 4 of 10 characters match, which is more than the threshold of 0.3.
    assert_eq!(policy.select(&workers, &text("0123xxxxxx")), Some(first));
    // 3 of 10 are not.
    assert_eq!(
        policy.select(&workers, &text("012yyyyyyy")),
        Some(1 - first)
    );
    // An empty prompt goes by load.
    assert_eq!(policy.select(&workers, &text("")), Some(1 - first));
    assert_eq!(policy.select(&[], &text("a")), None);
}

#[test]
fn unequal_loads_go_before_the_prefix() {
    // (load of the worker with the prefix, load of the other, whether the prefix decides)
    for (own, other, prefix) in [
        // The difference is not above 64, then it is.
        (64, 0, true),
        (65, 0, false),
        // The ratio is not above 1.5, then it is.
        (300, 200, true),
        (301, 200, false),
    ] {
        let workers = [worker("http://a"), worker("http://b")];
        let policy = policy(RouterConfig::default());
        let first = policy.select(&workers, &text("shared prompt")).unwrap();
        let _own = loads(&workers[first], own);
        let _other = loads(&workers[1 - first], other);
        let expected = if prefix { first } else { 1 - first };
        let selected = policy.select(&workers, &text("shared prompt"));
        assert_eq!(selected, Some(expected), "{own} {other}");
    }
}

#[test]
fn token_ids_and_characters_do_not_match_each_other() {
    let workers = [worker("http://a"), worker("http://b")];
    let policy = policy(RouterConfig::default());
    let ids = Prompt {
        tokens: true,
        ..text("abcdef")
    };
    let first = policy.select(&workers, &ids).unwrap();
    let _busy = loads(&workers[first], 1);
    assert_eq!(policy.select(&workers, &ids), Some(first));
    assert_eq!(policy.select(&workers, &text("abcdef")), Some(1 - first));
}

#[test]
fn the_tree_is_bounded_and_forgets_the_oldest_prompts() {
    let workers = [worker("http://a")];
    let policy = policy(RouterConfig {
        max_tree_size: 1000,
        ..RouterConfig::default()
    });
    for number in 0..500 {
        policy.select(&workers, &text(&format!("{number:010}{}", "x".repeat(40))));
        let size = policy.tree.lock().unwrap().tree.evictable();
        assert!(size <= 1000, "{size}");
    }
    let mut tree = policy.tree.lock().unwrap();
    let last = format!("{:010}{}", 499, "x".repeat(40));
    assert_eq!(tree.matched(&workers[0], &text(&last)), 50);
    let first = format!("{:010}{}", 0, "x".repeat(40));
    assert!(tree.matched(&workers[0], &text(&first)) < 50);
}

proptest! {
    /// The same selections as from lists of all prompts, where these are unique.
    #[test]
    fn selections_agree_with_a_list_of_all_prompts(
        prompts in prop::collection::vec("[ab]{1,12}", 1..40),
        busy in prop::collection::vec(0usize..80, 3),
    ) {
        let workers = [worker("http://a"), worker("http://b"), worker("http://c")];
        let _load: Vec<_> = workers.iter().zip(&busy).map(|(w, &n)| loads(w, n)).collect();
        let policy = policy(RouterConfig::default());
        let mut sent: Vec<Vec<Vec<u32>>> = vec![Vec::new(); 3];
        let (max, min) = (*busy.iter().max().unwrap(), *busy.iter().min().unwrap());
        let unequal = max - min > 64 && max as f64 > 1.5 * min as f64;
        for given in prompts {
            let prompt = text(&given);
            let matches: Vec<usize> = sent.iter().map(|own| {
                let common = |other: &Vec<u32>| hearth_radix::common_prefix(other, &prompt.units);
                own.iter().map(common).max().unwrap_or(0)
            }).collect();
            let longest = *matches.iter().max().unwrap();
            let cached = !unequal && longest as f64 / prompt.units.len() as f64 > 0.3;
            let allowed = (0..3).filter(|&at| !cached || matches[at] == longest);
            let allowed: Vec<usize> = allowed.collect();
            let lowest = allowed.iter().map(|&at| busy[at]).min().unwrap();
            let selected = policy.select(&workers, &prompt).unwrap();
            prop_assert!(allowed.contains(&selected));
            prop_assert_eq!(busy[selected], lowest);
            sent[selected].push(prompt.units);
        }
    }
}

/// A prompt whose tokens are known.
fn tokens(ids: &[u32]) -> Prompt {
    Prompt {
        known: Some(prompt(ids)),
        ..text("a text of which the policy remembers something else")
    }
}

fn follows(worker: &Worker, complete: bool, events: Vec<KvEvent>) {
    worker.kv.update(Update::Following { complete });
    worker.kv.update(Update::Events(events));
}

#[test]
fn what_is_known_decides_and_not_what_was_sent() {
    let workers = [worker("http://a"), worker("http://b")];
    let policy = policy(RouterConfig::default());
    let wanted = tokens(&[1, 2, 3, 4]);
    // The guess: both got it, the first one more often.
    let first = policy.select(&workers, &wanted).unwrap();
    assert_eq!(policy.select(&workers, &wanted), Some(first));
    let other = 1 - first;
    follows(&workers[first], true, vec![]);
    follows(&workers[other], true, vec![stored(1, None, &[1, 2, 3, 4])]);
    let _busy = loads(&workers[other], 5);
    assert_eq!(policy.select(&workers, &wanted), Some(other));
    // Less than the threshold: the load decides.
    let longer: Vec<u32> = (1..20).collect();
    assert_eq!(policy.select(&workers, &tokens(&longer)), Some(first));
    // The guess is used for a worker that may have more than is known, and for one that says nothing.
    workers[first]
        .kv
        .update(Update::Following { complete: false });
    workers[other]
        .kv
        .update(Update::Events(vec![KvEvent::AllBlocksCleared]));
    assert_eq!(policy.select(&workers, &wanted), Some(first));
    workers[first].kv.update(Update::Disconnected);
    assert_eq!(policy.select(&workers, &wanted), Some(first));
}

#[test]
fn a_prompt_that_is_being_computed_counts_until_its_request_ends() {
    let workers = [worker("http://a"), worker("http://b")];
    let policy = policy(RouterConfig::default());
    workers
        .iter()
        .for_each(|worker| follows(worker, true, vec![]));
    let wanted = tokens(&[1, 2, 3, 4]);
    let mut running = workers[1].lease().unwrap();
    running.remember(policy.remember(running.worker(), &wanted));
    for _ in 0..20 {
        assert_eq!(policy.select(&workers, &wanted), Some(1));
    }
    drop(running);
    let _busy = loads(&workers[1], 1);
    assert_eq!(policy.select(&workers, &wanted), Some(0));
}
