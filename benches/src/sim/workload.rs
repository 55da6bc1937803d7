//! Programs of language model calls, of the kinds that the paper measures
//! (arXiv 2312.07104, section 6). All sizes are in tokens, and all are drawn from one seed.

use super::random::Random;

/// A call, and the calls that its answer leads to. The prompts of these consist of the prompt of
/// this call, its output, and their own `suffix`.
#[derive(Clone, Debug)]
pub struct Call {
    pub suffix: Vec<u32>,
    pub output: usize,
    pub next: Vec<Call>,
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub name: &'static str,
    /// The first call of each session, whose `suffix` is a whole prompt.
    pub sessions: Vec<Call>,
    /// How many sessions run at the same time: the next one starts when one is done. All of them
    /// for an offline batch.
    pub concurrent: usize,
}

/// A workload of each kind, with `scale` times the smallest sensible number of requests.
pub fn all(scale: usize) -> Vec<Workload> {
    vec![
        few_shot(scale),
        chat(scale),
        tree_of_thought(scale),
        agents(scale),
        no_sharing(scale),
    ]
}

/// Questions about many subjects, each subject with its examples; an offline batch in random order.
fn few_shot(scale: usize) -> Workload {
    let mut random = Random::new(1);
    let mut sessions = Vec::new();
    for _ in 0..14 * scale {
        let examples = random.tokens(400, 800);
        for _ in 0..10 {
            sessions.push(Call {
                suffix: [&examples[..], &random.tokens(60, 120)].concat(),
                output: 4,
                next: Vec::new(),
            });
        }
    }
    random.shuffle(&mut sessions);
    batch("few-shot (offline)", sessions)
}

/// Conversations of six turns under one system prompt, long answers, online.
fn chat(scale: usize) -> Workload {
    let mut random = Random::new(2);
    let system = random.tokens(200, 200);
    let sessions = (0..16 * scale).map(|_| {
        let mut next = Vec::new();
        for turn in 0..6 {
            let mut suffix = random.tokens(40, 160);
            if turn == 5 {
                suffix = [&system[..], &suffix].concat();
            }
            let output = random.between(60, 200);
            next = vec![Call {
                suffix,
                output,
                next,
            }];
        }
        next.remove(0)
    });
    Workload {
        name: "chat, 6 turns (online)",
        sessions: sessions.collect(),
        concurrent: 16,
    }
}

/// Problems in which three thoughts continue from every thought, three levels deep, online.
fn tree_of_thought(scale: usize) -> Workload {
    fn thoughts(random: &mut Random, depth: usize) -> Vec<Call> {
        if depth == 0 {
            return Vec::new();
        }
        let thought = |_| Call {
            suffix: random.tokens(8, 16),
            output: 60,
            next: thoughts(random, depth - 1),
        };
        (0..3).map(thought).collect()
    }
    let mut random = Random::new(3);
    let examples = random.tokens(900, 900);
    let sessions = (0..10 * scale).map(|_| Call {
        suffix: [&examples[..], &random.tokens(60, 120)].concat(),
        output: 60,
        next: thoughts(&mut random, 3),
    });
    Workload {
        name: "tree of thought (online)",
        sessions: sessions.collect(),
        concurrent: 8,
    }
}

/// Agents of a few kinds, each kind with long instructions. They call, read an observation and call
/// again, online.
fn agents(scale: usize) -> Workload {
    let mut random = Random::new(4);
    let kinds: Vec<_> = (0..6).map(|_| random.tokens(1500, 2500)).collect();
    let sessions = (0..20 * scale).map(|_| {
        let kind = random.between(0, kinds.len() - 1);
        let mut next = Vec::new();
        for turn in 0..8 {
            let mut suffix = random.tokens(40, 160);
            if turn == 7 {
                suffix = [&kinds[kind][..], &suffix].concat();
            }
            let output = random.between(20, 80);
            next = vec![Call {
                suffix,
                output,
                next,
            }];
        }
        next.remove(0)
    });
    Workload {
        name: "agents, 8 calls (online)",
        sessions: sessions.collect(),
        concurrent: 12,
    }
}

fn no_sharing(scale: usize) -> Workload {
    let mut random = Random::new(5);
    let sessions = (0..60 * scale).map(|_| Call {
        suffix: random.tokens(200, 800),
        output: random.between(40, 160),
        next: Vec::new(),
    });
    let sessions = sessions.collect();
    batch("no sharing (offline)", sessions)
}

fn batch(name: &'static str, sessions: Vec<Call>) -> Workload {
    Workload {
        name,
        concurrent: sessions.len(),
        sessions,
    }
}
