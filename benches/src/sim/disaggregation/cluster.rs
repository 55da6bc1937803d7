//! A cluster of nodes in simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::link::Links;
use super::measure::{Figures, Recorder};
use super::node::{Chunk, Computed, Limits, Node};
use super::workload::Request;

/// The tasks of a cluster's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Each node computes prompts and decodes.
    Mixed { nodes: usize },
    /// Some nodes compute prompts and send the KV to the others, which decode. Each node has a link
    /// of `gigabits` Gbit/s.
    Disaggregated {
        prefill: usize,
        decode: usize,
        gigabits: u64,
    },
}

/// The results of a run. All times are simulated nanoseconds since the start.
#[derive(Debug)]
pub struct Run {
    /// The time of each request's first token.
    pub first: Vec<u64>,
    /// The time of each request's last token.
    pub last: Vec<u64>,
    /// Prompt tokens computed by all nodes.
    pub prefilled: u64,
    /// KV bytes sent over all links.
    pub moved: u64,
    pub recorder: Recorder,
}

impl Run {
    pub fn figures(&self, requests: &[Request]) -> Figures {
        self.recorder.figures(requests, &self.first)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The running step of a node ends.
    StepEnd { node: usize },
    /// The transfer of a chunk's KV from the prefill node `from` starts.
    Transfer { from: usize, chunk: Chunk },
    /// The chunk's KV is at its decode node.
    Received { from: usize, chunk: Chunk },
}

struct Cluster<'a> {
    requests: &'a [Request],
    nodes: Vec<Node>,
    /// The tokens that each node has still to compute, and to send, for the requests it was given.
    outstanding: Vec<u64>,
    /// The nodes that compute prompts, and those that decode.
    prefill: Range<usize>,
    decode: Range<usize>,
    /// There is no transfer between mixed nodes.
    links: Option<Links>,
    /// The node that decodes each request.
    decode_node: Vec<usize>,
    /// Events by time, and events of one time in the order in which they were caused.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    caused: u64,
    run: Run,
}

/// Runs all `requests`, which are sorted by arrival, to their ends. The figures are those of the
/// `window`.
pub fn run(
    requests: &[Request],
    arrangement: Arrangement,
    limits: Limits,
    window: Range<u64>,
) -> Run {
    let (prefill, decode, links) = match arrangement {
        Arrangement::Mixed { nodes } => (0..nodes, 0..nodes, None),
        Arrangement::Disaggregated {
            prefill,
            decode,
            gigabits,
        } => {
            let nodes = prefill + decode;
            let links = Links::new(nodes, gigabits);
            (0..prefill, prefill..nodes, Some(links))
        }
    };
    let mut cluster = Cluster {
        requests,
        nodes: (0..decode.end).map(|_| Node::new(limits)).collect(),
        outstanding: vec![0; decode.end],
        prefill,
        decode,
        links,
        decode_node: vec![0; requests.len()],
        events: BinaryHeap::new(),
        caused: 0,
        run: Run {
            first: vec![0; requests.len()],
            last: vec![0; requests.len()],
            prefilled: 0,
            moved: 0,
            recorder: Recorder::new(window),
        },
    };
    for (request, arrival) in requests.iter().map(|r| r.arrival).enumerate() {
        cluster.handle_until(arrival);
        cluster.arrival(arrival, request);
    }
    cluster.handle_until(u64::MAX);
    cluster.run.moved = cluster.links.map_or(0, |links| links.bytes);
    cluster.run
}

impl Cluster<'_> {
    fn cause(&mut self, time: u64, event: Event) {
        self.caused += 1;
        self.events.push(Reverse((time, self.caused, event)));
    }

    /// Handles all events before `time`.
    fn handle_until(&mut self, time: u64) {
        while let Some(&Reverse((now, _, event))) = self.events.peek() {
            if now >= time {
                break;
            }
            self.events.pop();
            match event {
                Event::StepEnd { node } => self.step_end(now, node),
                Event::Transfer { from, chunk } => self.transfer(now, from, chunk),
                Event::Received { from, chunk } => self.received(now, from, chunk),
            }
        }
    }

    /// The node with the fewest outstanding tokens.
    fn least_loaded(&self, nodes: Range<usize>) -> usize {
        let first = nodes.start;
        let least = nodes.min_by_key(|&node| self.outstanding[node]);
        least.unwrap_or(first)
    }

    /// Both nodes of a pair get the request at once, as from Hearth's router.
    fn arrival(&mut self, now: u64, request: usize) {
        let Request { prompt, output, .. } = self.requests[request];
        let node = self.least_loaded(self.prefill.clone());
        self.outstanding[node] += prompt;
        self.nodes[node].prefill(request, prompt);
        let decode_node = match self.links {
            Some(_) => self.least_loaded(self.decode.clone()),
            None => node,
        };
        self.outstanding[decode_node] += output - 1;
        self.decode_node[request] = decode_node;
        self.proceed(now, node);
    }

    fn step_end(&mut self, now: u64, node: usize) {
        let ended = self.nodes[node].end_step(now, &mut self.run.recorder);
        self.outstanding[node] -= ended.decoded;
        for request in ended.complete {
            self.run.last[request] = now;
        }
        for chunk in ended.chunks {
            self.run.prefilled += chunk.tokens;
            match &mut self.links {
                Some(links) => {
                    let start = links.send(now, node, chunk.tokens);
                    self.cause(start, Event::Transfer { from: node, chunk });
                }
                None => self.computed(node, chunk),
            }
        }
        self.proceed(now, node);
    }

    fn transfer(&mut self, now: u64, from: usize, chunk: Chunk) {
        let to = self.decode_node[chunk.request];
        if let Some(links) = &mut self.links {
            let arrived = links.receive(now, to, chunk.tokens);
            self.cause(arrived, Event::Received { from, chunk });
        }
    }

    fn received(&mut self, now: u64, from: usize, chunk: Chunk) {
        self.computed(from, chunk);
        self.proceed(now, self.decode_node[chunk.request]);
    }

    /// A chunk that the node `from` has computed is in the KV cache of the node that decodes.
    fn computed(&mut self, from: usize, chunk: Chunk) {
        self.outstanding[from] -= chunk.tokens;
        if chunk.last {
            let Request { prompt, output, .. } = self.requests[chunk.request];
            self.nodes[self.decode_node[chunk.request]].decode(Computed {
                request: chunk.request,
                context: prompt,
                left: output - 1,
            });
        }
    }

    /// Admits waiting requests and starts a step. The client gets its first token when its request
    /// gets a row: a decode node that has none free keeps the request waiting before it, as SGLang's
    /// does.
    fn proceed(&mut self, now: u64, node: usize) {
        for admitted in self.nodes[node].admit(now) {
            self.run.first[admitted.request] = now;
            self.run.recorder.first_token(now);
            if admitted.left == 0 {
                self.run.last[admitted.request] = now;
            }
        }
        if let Some(time) = self.nodes[node].start_step() {
            self.cause(now + time, Event::StepEnd { node });
        }
    }
}
