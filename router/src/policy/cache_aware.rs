//! `cache_aware`: the worker that has the longest prefix of the prompt in its cache.
//!
//! The contents of the cache of a worker that publishes KV events are known, and prompts of requests that
//! run there will be in it. For the others one radix tree remembers which prompts each got: it is a
//! guess. The rules are those of sglang-router:
//!
//! - Loads are unequal if `max - min > balance_abs_threshold` and `max > balance_rel_threshold *
//!   min`. Then the worker with the lowest load gets the request.
//! - Otherwise the worker with the longest matching prefix gets it, if that is more than
//!   `cache_threshold` of the prompt; if not, the one with the lowest load.
//!
//! Unlike there, only available workers count in `max` and `min`, and among equals one is selected
//! at random.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hearth_radix::{EvictionPolicy, PrefixLock, RadixTree};
use rand::Rng;

use super::Policy;
use crate::config::RouterConfig;
use crate::kv_index::{PromptBlocks, TokenPrompt};
use crate::prompt::Prompt;
use crate::worker::Worker;

#[derive(Debug)]
pub struct CacheAware {
    cache_threshold: f64,
    balance_abs_threshold: usize,
    balance_rel_threshold: f64,
    max_tree_size: usize,
    /// Never held across an await.
    tree: Mutex<Tree>,
    /// The prompts of requests that run, in tokens.
    running: Mutex<Tree>,
}

/// Each worker's prompts are a namespace of the tree. The name has the worker's id, which no later
/// worker at the same URL has; what a removed worker got is evicted as the least recently used.
#[derive(Debug)]
struct Tree {
    tree: RadixTree,
    /// Slots that the tree wants; they have no meaning here.
    slots: Vec<u32>,
}

impl Tree {
    fn new() -> Self {
        let tree = RadixTree::new(1, EvictionPolicy::Lru);
        Self {
            tree: tree.expect("1 is a valid page size"),
            slots: Vec::new(),
        }
    }

    /// Length of the longest prefix of the prompt that the worker got.
    fn matched(&mut self, worker: &Worker, prompt: &Prompt) -> usize {
        let namespace = namespace(worker, prompt);
        self.tree.peek(&namespace, &prompt.units).tokens
    }

    /// Leaves only prompts that are locked, and `slots` empty.
    fn forget_unlocked(&mut self) {
        self.slots.clear();
        self.tree.evict(usize::MAX, &mut self.slots);
        self.slots.clear();
    }

    fn insert(&mut self, worker: &Worker, prompt: &Prompt, most: usize) {
        let namespace = namespace(worker, prompt);
        self.slots.clear();
        self.slots.resize(prompt.units.len(), 0);
        let insertion = self
            .tree
            .insert(&namespace, &prompt.units, 0, &mut self.slots);
        drop(insertion);
        let over = self.tree.evictable().saturating_sub(most);
        if over > 0 {
            // More than is needed, so that not every insertion evicts.
            let share = most / 16;
            self.slots.clear();
            self.tree.evict(over + share, &mut self.slots);
        }
    }
}

/// Each worker's running prompts are a namespace of the tree.
fn running_namespace(worker: &Worker, prompt: &TokenPrompt) -> String {
    format!("{}/{}", worker.id, prompt.namespace)
}

fn locked(tree: &Mutex<Tree>) -> MutexGuard<'_, Tree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}

fn namespace(worker: &Worker, prompt: &Prompt) -> String {
    let kind = if prompt.tokens { "tokens" } else { "text" };
    format!("{}/{kind}", worker.id)
}

impl CacheAware {
    pub fn new(config: &RouterConfig) -> Self {
        Self {
            cache_threshold: config.cache_threshold,
            balance_abs_threshold: config.balance_abs_threshold,
            balance_rel_threshold: config.balance_rel_threshold,
            max_tree_size: config.max_tree_size,
            tree: Mutex::new(Tree::new()),
            running: Mutex::new(Tree::new()),
        }
    }

    /// The share of the prompt that each worker has cached, by what is known or else by what it got.
    fn shares(&self, workers: &[Arc<Worker>], prompt: &Prompt) -> Vec<f64> {
        let mut tree = locked(&self.tree);
        let mut running = locked(&self.running);
        // By now the workers have said what they keep of requests that have ended.
        running.forget_unlocked();
        let mut blocks = prompt.known.as_ref().map(PromptBlocks::new);
        let share = |worker: &Arc<Worker>| {
            let mut guess = || tree.matched(worker, prompt) as f64 / prompt.units.len() as f64;
            let Some(blocks) = &mut blocks else {
                return guess();
            };
            let tokens = blocks.prompt;
            let Some(known) = worker.kv.matched(blocks) else {
                return guess();
            };
            let namespace = running_namespace(worker, tokens);
            let coming = running.tree.peek(&namespace, &tokens.ids).tokens;
            let share = known.tokens.max(coming) as f64 / tokens.ids.len().max(1) as f64;
            match known.complete {
                true => share,
                false => share.max(guess()),
            }
        };
        workers.iter().map(share).collect()
    }

    fn is_unequal(&self, loads: &[usize]) -> bool {
        let max = loads.iter().copied().max().unwrap_or(0);
        let min = loads.iter().copied().min().unwrap_or(0);
        max - min > self.balance_abs_threshold
            && max as f64 > self.balance_rel_threshold * min as f64
    }
}

impl Policy for CacheAware {
    fn select(&self, workers: &[Arc<Worker>], prompt: &Prompt) -> Option<usize> {
        let loads: Vec<usize> = workers.iter().map(|worker| worker.load()).collect();
        let cached = if prompt.units.is_empty() || self.is_unequal(&loads) {
            None
        } else {
            let shares = self.shares(workers, prompt);
            let most = shares.iter().copied().max_by(f64::total_cmp)?;
            (most > self.cache_threshold).then(|| {
                let with_most = (0..workers.len()).filter(|&at| shares[at] == most);
                with_most.collect::<Vec<_>>()
            })
        };
        let candidates = cached.unwrap_or_else(|| (0..workers.len()).collect());
        let selected = lowest(&candidates, &loads)?;
        if !prompt.units.is_empty() {
            locked(&self.tree).insert(&workers[selected], prompt, self.max_tree_size);
        }
        Some(selected)
    }

    fn remember(&self, worker: &Worker, prompt: &Prompt) -> Option<PrefixLock> {
        let tokens = prompt.known.as_ref()?;
        if !worker.kv.is_followed() {
            return None;
        }
        let mut running = locked(&self.running);
        running.forget_unlocked();
        let Tree { tree, slots } = &mut *running;
        slots.resize(tokens.ids.len(), 0);
        let namespace = running_namespace(worker, tokens);
        Some(tree.insert(&namespace, &tokens.ids, 0, slots).lock)
    }

    fn needs_prompt(&self) -> bool {
        true
    }
}

/// The candidate with the lowest load; one of them at random if there are several.
fn lowest(candidates: &[usize], loads: &[usize]) -> Option<usize> {
    let min = candidates.iter().map(|&at| loads[at]).min()?;
    let equal = candidates.iter().filter(|&&at| loads[at] == min);
    let equal: Vec<usize> = equal.copied().collect();
    Some(equal[rand::rng().random_range(0..equal.len())])
}

#[cfg(test)]
mod tests;
