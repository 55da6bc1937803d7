//! A template's syntax tree with every operation that makes values replaced by a bounded one:
//! `a ~ b` becomes a call of the filter for `~`, and a list becomes a call of the filter that
//! measures it. minijinja counts instructions alone.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Call, CallArg, CallBlock, Compare, CompareOp, Const, Do,
    EmitExpr, Expr, Extends, Filter, FilterBlock, ForLoop, FromImport, GetAttr, GetItem, IfCond,
    IfExpr, Import, Include, List, Macro, Map, Set, SetBlock, Slice, Spanned, Stmt, Template, Test,
    Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::machinery::ast::{Break, Continue};

use super::filters::{ADD, CONCATENATE, MADE, MULTIPLY, STORED};

/// Functions whose calls stay as they are: minijinja compiles some of them in their own way, and
/// the results of the others are small.
const OWN_CALLS: [&str; 6] = [
    "loop",
    "super",
    "caller",
    "range",
    "raise_exception",
    "strftime_now",
];

/// A rewritten template.
pub(super) struct Rewritten<'a> {
    pub tree: Stmt<'a>,
    /// True if rendering it may recurse on the stack: it has macros or blocks.
    pub recurses: bool,
}

/// Rewrites `tree`.
pub(super) fn rewrite<'a>(tree: &Stmt<'a>) -> Rewritten<'a> {
    let mut rewriter = Rewriter { recurses: false };
    Rewritten {
        tree: rewriter.statement(tree),
        recurses: rewriter.recurses,
    }
}

struct Rewriter {
    recurses: bool,
}

fn filter<'a>(name: &'static str, first: Expr<'a>, more: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let filter = Filter {
        name,
        expr: Some(first),
        args: more.into_iter().map(CallArg::Pos).collect(),
    };
    Expr::Filter(Spanned::new(filter, span))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(Const { value }, span))
}

/// Raw text is written by the formatter too, which counts it.
fn emit<'a>(text: &str, span: Span) -> Stmt<'a> {
    let expr = constant(Value::from(text), span);
    Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, span))
}

impl Rewriter {
    fn statements<'a>(&mut self, statements: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
        statements.iter().map(|one| self.statement(one)).collect()
    }

    /// A body that may run many times writes an empty text first, by which it is counted.
    fn repeated<'a>(&mut self, statements: &[Stmt<'a>], span: Span) -> Vec<Stmt<'a>> {
        let mut body = vec![emit("", span)];
        body.extend(self.statements(statements));
        body
    }

    fn statement<'a>(&mut self, statement: &Stmt<'a>) -> Stmt<'a> {
        match statement {
            Stmt::Template(node) => {
                let children = self.statements(&node.children);
                Stmt::Template(Spanned::new(Template { children }, node.span()))
            }
            Stmt::EmitExpr(node) => {
                let expr = self.expression(&node.expr);
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, node.span()))
            }
            Stmt::EmitRaw(node) => emit(node.raw, node.span()),
            Stmt::ForLoop(node) => {
                let new = ForLoop {
                    target: self.target(&node.target),
                    iter: self.expression(&node.iter),
                    filter_expr: node.filter_expr.as_ref().map(|expr| self.expression(expr)),
                    recursive: node.recursive,
                    body: self.repeated(&node.body, node.span()),
                    else_body: self.statements(&node.else_body),
                };
                Stmt::ForLoop(Spanned::new(new, node.span()))
            }
            Stmt::IfCond(node) => {
                let new = IfCond {
                    expr: self.expression(&node.expr),
                    true_body: self.statements(&node.true_body),
                    false_body: self.statements(&node.false_body),
                };
                Stmt::IfCond(Spanned::new(new, node.span()))
            }
            Stmt::WithBlock(node) => {
                let assignments = node.assignments.iter();
                let new = WithBlock {
                    assignments: assignments
                        .map(|(target, expr)| (self.target(target), self.expression(expr)))
                        .collect(),
                    body: self.statements(&node.body),
                };
                Stmt::WithBlock(Spanned::new(new, node.span()))
            }
            Stmt::Set(node) => {
                let span = node.span();
                let expr = self.expression(&node.expr);
                let new = Set {
                    target: self.target(&node.target),
                    expr: match stores(&node.target) {
                        true => filter(STORED, expr, Vec::new(), span),
                        false => expr,
                    },
                };
                Stmt::Set(Spanned::new(new, span))
            }
            Stmt::SetBlock(node) => {
                let new = SetBlock {
                    target: self.target(&node.target),
                    filter: node.filter.as_ref().map(|expr| self.expression(expr)),
                    body: self.statements(&node.body),
                };
                Stmt::SetBlock(Spanned::new(new, node.span()))
            }
            Stmt::AutoEscape(node) => {
                let new = AutoEscape {
                    enabled: self.expression(&node.enabled),
                    body: self.statements(&node.body),
                };
                Stmt::AutoEscape(Spanned::new(new, node.span()))
            }
            Stmt::FilterBlock(node) => {
                let new = FilterBlock {
                    filter: self.expression(&node.filter),
                    body: self.statements(&node.body),
                };
                Stmt::FilterBlock(Spanned::new(new, node.span()))
            }
            Stmt::Block(node) => {
                self.recurses = true;
                let new = Block {
                    name: node.name,
                    required: node.required,
                    body: self.repeated(&node.body, node.span()),
                };
                Stmt::Block(Spanned::new(new, node.span()))
            }
            Stmt::Import(node) => {
                let new = Import {
                    expr: self.expression(&node.expr),
                    name: self.target(&node.name),
                };
                Stmt::Import(Spanned::new(new, node.span()))
            }
            Stmt::FromImport(node) => {
                let names = node.names.iter();
                let new = FromImport {
                    expr: self.expression(&node.expr),
                    names: names
                        .map(|(name, alias)| {
                            let alias = alias.as_ref().map(|alias| self.target(alias));
                            (self.target(name), alias)
                        })
                        .collect(),
                };
                Stmt::FromImport(Spanned::new(new, node.span()))
            }
            Stmt::Extends(node) => {
                let name = self.expression(&node.name);
                Stmt::Extends(Spanned::new(Extends { name }, node.span()))
            }
            Stmt::Include(node) => {
                let new = Include {
                    name: self.expression(&node.name),
                    ignore_missing: node.ignore_missing,
                };
                Stmt::Include(Spanned::new(new, node.span()))
            }
            Stmt::Macro(node) => Stmt::Macro(Spanned::new(self.definition(node), node.span())),
            Stmt::CallBlock(node) => {
                let declared = &node.macro_decl;
                let new = CallBlock {
                    call: Spanned::new(self.call(&node.call), node.call.span()),
                    macro_decl: Spanned::new(self.definition(declared), declared.span()),
                };
                Stmt::CallBlock(Spanned::new(new, node.span()))
            }
            Stmt::Continue(node) => Stmt::Continue(Spanned::new(Continue, node.span())),
            Stmt::Break(node) => Stmt::Break(Spanned::new(Break, node.span())),
            Stmt::Do(node) => {
                let call = Spanned::new(self.call(&node.call), node.call.span());
                Stmt::Do(Spanned::new(Do { call }, node.span()))
            }
        }
    }

    fn definition<'a>(&mut self, node: &Spanned<Macro<'a>>) -> Macro<'a> {
        self.recurses = true;
        Macro {
            name: node.name,
            args: node.args.iter().map(|arg| self.target(arg)).collect(),
            defaults: node
                .defaults
                .iter()
                .map(|expr| self.expression(expr))
                .collect(),
            body: self.repeated(&node.body, node.span()),
        }
    }

    fn call<'a>(&mut self, node: &Call<'a>) -> Call<'a> {
        Call {
            expr: self.called(&node.expr),
            args: self.arguments(&node.args),
        }
    }

    /// A called expression keeps its form, by which functions and methods are told apart.
    fn called<'a>(&mut self, expr: &Expr<'a>) -> Expr<'a> {
        match expr {
            Expr::GetAttr(node) => {
                let new = GetAttr {
                    expr: self.expression(&node.expr),
                    name: node.name,
                };
                Expr::GetAttr(Spanned::new(new, node.span()))
            }
            other => self.expression(other),
        }
    }

    fn arguments<'a>(&mut self, arguments: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
        let argument = |argument: &CallArg<'a>| match argument {
            CallArg::Pos(expr) => CallArg::Pos(self.expression(expr)),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, self.expression(expr)),
            CallArg::PosSplat(expr) => CallArg::PosSplat(self.expression(expr)),
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(self.expression(expr)),
        };
        arguments.iter().map(argument).collect()
    }

    fn optional<'a>(&mut self, expr: Option<&Expr<'a>>) -> Option<Expr<'a>> {
        expr.map(|expr| self.expression(expr))
    }

    fn expressions<'a>(&mut self, list: &[Expr<'a>]) -> Vec<Expr<'a>> {
        list.iter().map(|expr| self.expression(expr)).collect()
    }

    /// A variable, or several, that are assigned.
    fn target<'a>(&mut self, expr: &Expr<'a>) -> Expr<'a> {
        match expr {
            Expr::List(node) => {
                let items = node.items.iter().map(|item| self.target(item)).collect();
                Expr::List(Spanned::new(List { items }, node.span()))
            }
            Expr::Tuple(node) => {
                let items = node.items.iter().map(|item| self.target(item)).collect();
                Expr::Tuple(Spanned::new(Tuple { items }, node.span()))
            }
            Expr::GetAttr(node) => {
                let new = GetAttr {
                    expr: self.target(&node.expr),
                    name: node.name,
                };
                Expr::GetAttr(Spanned::new(new, node.span()))
            }
            other => self.expression(other),
        }
    }

    fn expression<'a>(&mut self, expr: &Expr<'a>) -> Expr<'a> {
        let span = expr.span();
        match expr {
            Expr::Var(node) => Expr::Var(Spanned::new(Var { id: node.id }, span)),
            Expr::Const(node) => constant(node.value.clone(), span),
            Expr::Slice(node) => {
                let new = Slice {
                    expr: self.expression(&node.expr),
                    start: self.optional(node.start.as_ref()),
                    stop: self.optional(node.stop.as_ref()),
                    step: self.optional(node.step.as_ref()),
                };
                filter(MADE, Expr::Slice(Spanned::new(new, span)), Vec::new(), span)
            }
            Expr::UnaryOp(node) => {
                let new = UnaryOp {
                    op: match node.op {
                        UnaryOpKind::Not => UnaryOpKind::Not,
                        UnaryOpKind::Neg => UnaryOpKind::Neg,
                    },
                    expr: self.expression(&node.expr),
                };
                Expr::UnaryOp(Spanned::new(new, span))
            }
            Expr::BinOp(node) => {
                let left = self.expression(&node.left);
                let right = self.expression(&node.right);
                let name = match node.op {
                    BinOpKind::Concat => CONCATENATE,
                    BinOpKind::Add => ADD,
                    BinOpKind::Mul => MULTIPLY,
                    op => {
                        return Expr::BinOp(Spanned::new(BinOp { op, left, right }, span));
                    }
                };
                filter(name, left, vec![right], span)
            }
            Expr::Compare(node) => {
                let ops = node.ops.iter();
                let new = Compare {
                    expr: self.expression(&node.expr),
                    ops: ops
                        .map(|one| CompareOp {
                            op: one.op,
                            expr: self.expression(&one.expr),
                        })
                        .collect(),
                };
                Expr::Compare(Spanned::new(new, span))
            }
            Expr::IfExpr(node) => {
                let new = IfExpr {
                    test_expr: self.expression(&node.test_expr),
                    true_expr: self.expression(&node.true_expr),
                    false_expr: self.optional(node.false_expr.as_ref()),
                };
                Expr::IfExpr(Spanned::new(new, span))
            }
            Expr::Filter(node) => {
                let new = Filter {
                    name: node.name,
                    expr: self.optional(node.expr.as_ref()),
                    args: self.arguments(&node.args),
                };
                filter(
                    MADE,
                    Expr::Filter(Spanned::new(new, span)),
                    Vec::new(),
                    span,
                )
            }
            Expr::Test(node) => {
                let new = Test {
                    name: node.name,
                    expr: self.expression(&node.expr),
                    args: self.arguments(&node.args),
                };
                Expr::Test(Spanned::new(new, span))
            }
            Expr::GetAttr(node) => {
                let new = GetAttr {
                    expr: self.expression(&node.expr),
                    name: node.name,
                };
                Expr::GetAttr(Spanned::new(new, span))
            }
            Expr::GetItem(node) => {
                let new = GetItem {
                    expr: self.expression(&node.expr),
                    subscript_expr: self.expression(&node.subscript_expr),
                };
                Expr::GetItem(Spanned::new(new, span))
            }
            Expr::Call(node) => {
                let call = Expr::Call(Spanned::new(self.call(node), span));
                match &node.expr {
                    Expr::Var(name) if OWN_CALLS.contains(&name.id) => call,
                    Expr::GetAttr(attribute) if is_self(&attribute.expr) => call,
                    _ => filter(MADE, call, Vec::new(), span),
                }
            }
            Expr::List(node) => {
                let items = self.expressions(&node.items);
                let list = Expr::List(Spanned::new(List { items }, span));
                filter(MADE, list, Vec::new(), span)
            }
            Expr::Tuple(node) => {
                let items = self.expressions(&node.items);
                let tuple = Expr::Tuple(Spanned::new(Tuple { items }, span));
                filter(MADE, tuple, Vec::new(), span)
            }
            Expr::Map(node) => {
                let new = Map {
                    keys: self.expressions(&node.keys),
                    values: self.expressions(&node.values),
                };
                filter(MADE, Expr::Map(Spanned::new(new, span)), Vec::new(), span)
            }
        }
    }
}

fn is_self(expr: &Expr<'_>) -> bool {
    matches!(expr, Expr::Var(name) if name.id == "self")
}

/// True if an assignment to `target` changes a namespace.
fn stores(target: &Expr<'_>) -> bool {
    match target {
        Expr::GetAttr(_) => true,
        Expr::List(node) => node.items.iter().any(stores),
        Expr::Tuple(node) => node.items.iter().any(stores),
        _ => false,
    }
}
