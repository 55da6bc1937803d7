//! Traces: graphs, their checks, and running them.

use hearth_client::lang::{
    Frontend, State, Warning, constant, generate, select, trace, unordered, varying,
};
use serde_json::json;

use super::fake::Fake;

fn program(s: &mut State) {
    s.extend("q#").extend(generate("plan").max_tokens(3));
    let mut forks = s.fork(2);
    for (index, fork) in forks.iter_mut().enumerate() {
        let plan = fork.var("plan");
        fork.extend(format!("{index}")).extend(plan);
        fork.extend(generate("tip").max_tokens(2));
    }
    let tip = forks[1].var("tip");
    s.join(forks);
    s.extend(tip).extend(select("best", ["a", "b"]));
}

#[tokio::test]
async fn a_graph_runs_as_the_program_does() {
    let graph = trace(program);
    assert_eq!((graph.states(), graph.prefix().as_str()), (3, "q#"));
    let frontend = Frontend::new(Fake::default());
    let mut direct = frontend.state();
    program(&mut direct);
    let mut ends = graph.run(&frontend).unwrap();
    assert_eq!(ends[0].text().await, direct.text().await);
    let names: Vec<_> = ends[0].variables.iter().map(|v| v.name()).collect();
    assert_eq!(names, ["best", "plan", "tip"]);
    for var in &ends[0].variables {
        let expected = direct.var(var.name()).outcome().await.unwrap();
        assert_eq!(var.outcome().await.unwrap().value, expected.value);
    }
}

#[test]
fn a_graph_is_checked_and_printed() {
    let graph = trace(program);
    assert_eq!(graph.check(&["best", "tip"]), []);
    // The tip of the first fork is not read, and that of the second is.
    let unused = |node: usize, name: &str| Warning::Unused {
        node,
        name: name.to_owned(),
    };
    let last = graph.nodes.len() - 1;
    assert_eq!(graph.check(&[]), [unused(5, "tip"), unused(last, "best")]);
    let wrong = trace(|s| {
        let nothing = s.var("nothing");
        s.extend(nothing);
        s.extend(generate("x")).extend(generate("x"));
    });
    let warnings: Vec<String> = wrong
        .check(&["x"])
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(warnings[0].contains("\"nothing\""), "{warnings:?}");
    assert!(warnings[1].contains("again"), "{warnings:?}");
    let dot = graph.dot();
    assert!(
        dot.starts_with("digraph") && dot.contains("fork into 2"),
        "{dot}"
    );
    assert!(dot.contains("style=dashed"), "{dot}");
}

#[test]
fn a_graph_is_json() {
    let graph = trace(|s| {
        s.extend("a").extend(generate("x").max_tokens(3).stop("\n"));
        let x = s.var("x");
        s.extend(x);
    });
    let expected = json!({"nodes": [
        {"state": 0, "op": "text", "text": ["a"]},
        {"state": 0, "op": "gen", "name": "x", "max_tokens": 3, "stop": ["\n"]},
        {"state": 0, "op": "text", "text": [{"var": "x", "state": 0}]},
    ]});
    assert_eq!(json!(graph), expected);
}

#[test]
fn constant_texts_move_to_the_front_only_where_order_does_not_matter() {
    let prefix = |question: &'static str| {
        let moved = trace(|s| {
            s.extend(unordered([varying(question), constant("rules")]));
        });
        let kept = trace(|s| {
            s.extend(question).extend("rules");
        });
        (moved.prefix(), kept.prefix())
    };
    assert_eq!(
        prefix("why?"),
        ("ruleswhy?".to_owned(), "why?rules".to_owned())
    );
}
