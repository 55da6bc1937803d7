//! Random programs, and an interpreter that runs one statement after another.

use std::collections::BTreeMap;

use hearth_client::lang::backend::{Backend, Call, Prompt};
use hearth_client::lang::{
    ChoiceMethod, Error, Format, Frontend, Generation, Graph, Join, Node, Op, Piece, Sampling,
    Selection, Value,
};

/// A sequence of numbers that follows from its seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) as usize) % bound
    }

    fn one<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }
}

/// How large the programs are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub statements: usize,
    pub max_tokens: u32,
    pub states: usize,
}

/// A program of texts, generations, selections, forks and joins.
pub fn program(seed: u64, size: Size) -> Graph {
    let mut numbers = Numbers(seed);
    let mut maker = Maker {
        graph: Graph::default(),
        variables: BTreeMap::from([(0, Vec::new())]),
        open: vec![(0, Vec::new())],
        states: 1,
        names: 0,
    };
    maker.text(&mut numbers, 0);
    for _ in 0..size.statements {
        maker.statement(&mut numbers, size);
    }
    while maker.open.len() > 1 {
        maker.join(&mut numbers);
    }
    maker.generate(&mut numbers, 0, size);
    maker.graph
}

struct Maker {
    graph: Graph,
    /// The texts that each state can read.
    variables: BTreeMap<usize, Vec<String>>,
    /// States with forks: the state that made them, and the forks.
    open: Vec<(usize, Vec<usize>)>,
    states: usize,
    names: usize,
}

impl Maker {
    fn push(&mut self, state: usize, op: Op) {
        self.graph.nodes.push(Node { state, op });
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn statement(&mut self, numbers: &mut Numbers, size: Size) {
        let (parent, forks) = self.open[self.open.len() - 1].clone();
        let running = match forks.is_empty() {
            true => parent,
            false => forks[numbers.below(forks.len())],
        };
        match numbers.below(10) {
            0..3 => self.text(numbers, running),
            3..6 => self.generate(numbers, running, size),
            6 => self.select(numbers, running),
            7 | 8 if self.states + 2 <= size.states => self.fork(numbers, running),
            _ if self.open.len() > 1 => self.join(numbers),
            _ => self.text(numbers, running),
        }
    }

    fn text(&mut self, numbers: &mut Numbers, state: usize) {
        let mut text = vec![Piece::Text(
            numbers
                .one(&["a ", "Tom has ", "b: ", "x y ", "\nQ: "])
                .to_owned(),
        )];
        let known = &self.variables[&state];
        if !known.is_empty() && numbers.below(2) == 0 {
            let var = known[numbers.below(known.len())].clone();
            text.push(Piece::Var { var, state });
            text.push(Piece::Text(" ".to_owned()));
        }
        self.push(state, Op::Text { text });
    }

    fn generate(&mut self, numbers: &mut Numbers, state: usize, size: Size) {
        let is_random = numbers.below(2) == 0;
        let name = self.name();
        let stop = match numbers.below(3) {
            0 => vec![numbers.one(&["\n", "e", " "]).to_owned()],
            _ => Vec::new(),
        };
        let sampling = Sampling {
            max_tokens: Some(1 + numbers.below(size.max_tokens as usize) as u32),
            temperature: Some(if is_random { 1.0 } else { 0.0 }),
            seed: is_random.then(|| numbers.below(1000) as i64),
            stop,
            ..Sampling::default()
        };
        let format = Format::default();
        self.variables.entry(state).or_default().push(name.clone());
        let statement = Generation {
            name,
            sampling,
            format,
            ..Generation::default()
        };
        self.push(state, Op::Gen(Box::new(statement)));
    }

    fn select(&mut self, numbers: &mut Numbers, state: usize) {
        let name = self.name();
        let method = match numbers.below(3) {
            0 => ChoiceMethod::TokenLengthNormalized,
            1 => ChoiceMethod::GreedyTokenSelection,
            _ => ChoiceMethod::UnconditionalLikelihoodNormalized,
        };
        let choices = ["yes", "no", "may be", "three"].map(str::to_owned);
        let choices = choices[..2 + numbers.below(3)].to_vec();
        self.variables.entry(state).or_default().push(name.clone());
        let statement = Selection {
            name,
            choices,
            method,
        };
        self.push(state, Op::Select(statement));
    }

    fn fork(&mut self, numbers: &mut Numbers, state: usize) {
        let into: Vec<usize> = (self.states..self.states + 2).collect();
        self.states += 2;
        for &fork in &into {
            let copy = self.variables[&state].clone();
            self.variables.insert(fork, copy);
        }
        self.push(state, Op::Fork { into: into.clone() });
        for &fork in &into {
            self.text(numbers, fork);
        }
        self.open.push((state, into));
    }

    fn join(&mut self, numbers: &mut Numbers) {
        let Some((state, from)) = self.open.pop() else {
            return;
        };
        let mode = match numbers.below(2) {
            0 => Join::Gather,
            _ => Join::Concatenate,
        };
        self.push(state, Op::Join { from, mode });
    }
}

/// The result of a program: the text of each state at its end, and the variables of the program's
/// own state.
pub type Results = (Vec<String>, BTreeMap<String, Value>);

/// Runs `graph` as the language does.
pub async fn run(frontend: &Frontend, graph: &Graph) -> Result<Results, Error> {
    let mut ends = graph.run(frontend)?;
    let mut texts = Vec::new();
    for end in &mut ends {
        texts.push(end.text().await?);
    }
    let mut variables = BTreeMap::new();
    for var in &ends[0].variables {
        variables.insert(var.name().to_owned(), var.outcome().await?.value);
    }
    Ok((texts, variables))
}

#[derive(Clone, Default)]
struct Naive {
    text: String,
    variables: BTreeMap<String, Value>,
    own: BTreeMap<String, Value>,
    from: usize,
}

/// Runs one statement after another, and waits for each.
pub async fn naive(backend: &dyn Backend, graph: &Graph) -> Result<Results, Error> {
    let mut states = vec![Naive::default()];
    for Node { state, op } in &graph.nodes {
        let state = *state;
        let set = |states: &mut Vec<Naive>, name: &str, value: Value| {
            let state = &mut states[state];
            state.variables.insert(name.to_owned(), value.clone());
            state.own.insert(name.to_owned(), value);
        };
        match op {
            Op::Text { text } => {
                for piece in text {
                    let piece = match piece {
                        Piece::Text(text) => text.clone(),
                        Piece::Var { var, state } => match &states[*state].variables[var] {
                            Value::Text(text) => text.clone(),
                            Value::List(_) => panic!("no random program reads a list"),
                        },
                    };
                    states[state].text.push_str(&piece);
                }
            }
            Op::Gen(generation) => {
                let call = Call {
                    prompt: Prompt::Text(states[state].text.clone()),
                    sampling: generation.sampling.clone(),
                    format: generation.format.clone(),
                    n: 1,
                    logprobs: None,
                    stream: false,
                    tokens: false,
                };
                let text = backend.generate(&call, &mut |_| {}).await?.text;
                states[state].text.push_str(&text);
                set(&mut states, &generation.name, Value::Text(text));
            }
            Op::Select(selection) => {
                let prompt = Prompt::Text(states[state].text.clone());
                let alone = selection.method.is_unconditional();
                let scores = backend.score(&prompt, &selection.choices, alone).await?;
                let (_, best) = selection.method.best(&scores.choices);
                let text = selection.choices[best].clone();
                states[state].text.push_str(&text);
                set(&mut states, &selection.name, Value::Text(text));
            }
            Op::Fork { into } => {
                for &fork in into {
                    assert_eq!(fork, states.len());
                    let mut copy = states[state].clone();
                    copy.from = copy.text.len();
                    copy.own.clear();
                    states.push(copy);
                }
            }
            Op::Join { from, mode } => {
                let names: Vec<String> = from
                    .iter()
                    .flat_map(|&fork| states[fork].own.keys().cloned())
                    .collect();
                for name in names {
                    let values = from
                        .iter()
                        .map(|&fork| match states[fork].variables.get(&name) {
                            Some(value) => Ok(value.clone()),
                            None => Err(Error::Undefined(name.clone())),
                        });
                    let value = Value::List(values.collect());
                    set(&mut states, &name, value);
                }
                if *mode == Join::Concatenate {
                    for &fork in from {
                        let text = states[fork].text[states[fork].from..].to_owned();
                        states[state].text.push_str(&text);
                    }
                }
            }
            other => panic!("no random program has {other:?}"),
        }
    }
    let texts = states.iter().map(|state| state.text.clone()).collect();
    Ok((texts, states.swap_remove(0).own))
}
