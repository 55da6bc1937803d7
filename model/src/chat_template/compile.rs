//! From a template's source to instructions that make no more than they may.
//!
//! minijinja's parser and code generator recurse where expressions are nested, so the depth is
//! bounded before they see the source, and they run on a thread whose stack is known to suffice.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use minijinja::machinery::{CodeGenerator, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::rewrite;

/// Bytes of a source. The longest template in use has about fifty thousand.
const MAX_SOURCE: usize = 1 << 20;
/// Operators, brackets and keywords of one expression or statement, which bound its depth; and
/// `elif`s of a template, each of which is nested in the one before.
const MAX_NESTING: usize = 1000;
/// A stack for [`MAX_NESTING`] levels, each of which takes up to twenty calls.
const PARSER_STACK: usize = 128 << 20;

/// Identifiers that are operators.
const WORDS: [&str; 7] = ["not", "and", "or", "in", "is", "if", "else"];

/// The reason why a template cannot be used.
#[derive(Debug)]
pub(super) enum Fault {
    Syntax(minijinja::Error),
    TooLong(usize),
    TooNested {
        line: usize,
    },
    /// No thread could be started, or the parser panicked.
    Thread(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Syntax(error) => error.fmt(f),
            Fault::TooLong(bytes) => {
                write!(f, "a template has at most {MAX_SOURCE} bytes, got {bytes}")
            }
            Fault::TooNested { .. } => write!(
                f,
                "an expression has at most {MAX_NESTING} operators, and a template as many elifs"
            ),
            Fault::Thread(reason) => f.write_str(reason),
        }
    }
}

/// A template that is ready to be rendered.
pub(super) struct Compiled {
    pub instructions: Instructions<'static>,
    pub blocks: BTreeMap<&'static str, Instructions<'static>>,
    /// True if rendering it may recurse on the stack.
    pub recurses: bool,
}

/// Compiles `source`.
pub(super) fn compile(name: &str, source: &str, syntax: &SyntaxConfig) -> Result<Compiled, Fault> {
    if source.len() > MAX_SOURCE {
        return Err(Fault::TooLong(source.len()));
    }
    check_nesting(source, syntax)?;
    let (name, source) = (forever(name), forever(source));
    let build = move || {
        let tree = parse(source, name, syntax.clone()).map_err(Fault::Syntax)?;
        let rewritten = rewrite::rewrite(&tree);
        let mut generator = CodeGenerator::new(name, source);
        generator.compile_stmt(&rewritten.tree);
        let (instructions, blocks) = generator.finish();
        Ok(Compiled {
            instructions,
            blocks,
            recurses: rewritten.recurses,
        })
    };
    on_stack(PARSER_STACK, build).unwrap_or_else(|reason| Err(Fault::Thread(reason)))
}

/// Runs `work` on a thread of its own with a stack of `bytes`.
pub(super) fn on_stack<R: Send>(
    bytes: usize,
    work: impl FnOnce() -> R + Send,
) -> Result<R, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(bytes)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread for the chat template: {error}"))?;
        thread.join().map_err(|_| PANICKED.to_owned())
    })
}

/// Runs `work`, such that a panic is an error.
///
/// # Errors
/// `work` panics.
pub(super) fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    // Nothing that a panic leaves half done is used again.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANICKED.to_owned())
}

const PANICKED: &str = "the chat template engine panicked";

/// Instructions borrow from the source. A process loads few templates, and the same ones again
/// when a lost device is opened, so each is kept once.
fn forever(text: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = kept.get(text) {
        return same;
    }
    let text: &'static str = Box::leak(text.into());
    kept.insert(text);
    text
}

/// # Errors
/// An expression may be deeper than the stack allows.
fn check_nesting(source: &str, syntax: &SyntaxConfig) -> Result<(), Fault> {
    let (mut nesting, mut elifs) = (0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        // The parser reports errors of the lexer.
        let Ok((token, span)) = token else { break };
        match token {
            Token::VariableStart | Token::BlockStart => nesting = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Ident(word) if WORDS.contains(&word) => nesting += 1,
            Token::TemplateData(_)
            | Token::Ident(_)
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
            | Token::Comma
            | Token::Colon
            | Token::Assign
            | Token::VariableEnd
            | Token::BlockEnd
            | Token::BracketClose
            | Token::ParenClose
            | Token::BraceClose => {}
            _ => nesting += 1,
        }
        if nesting > MAX_NESTING || elifs > MAX_NESTING {
            let line = usize::from(span.start_line);
            return Err(Fault::TooNested { line });
        }
    }
    Ok(())
}
