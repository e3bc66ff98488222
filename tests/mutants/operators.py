"""Small faults for source text: each is one change of one node, named so that it is found again."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

Path: TypeAlias = tuple[tuple[str, int | None], ...]

COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. ``name``: function, change and, where the same stands twice in a function, which of them."""

    module: str
    name: str
    first_line: int
    last_line: int
    is_at_import: bool
    source: str
    path: Path
    change: ast.AST

    def tree(self) -> ast.Module:
        """The module with the fault in it."""
        tree = ast.parse(self.source)
        _put(tree, self.path, self.change)
        return ast.fix_missing_locations(tree)

    @property
    def key(self) -> str:
        return f"{self.module}: {self.name}"


@dataclass(frozen=True, slots=True)
class _Site:
    """A node that may be changed: ``path`` leads to it; ``scope`` is the function or class."""

    path: Path
    scope: str
    is_in_function: bool
    statement: ast.stmt


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Every fault of a module, in the order of its text."""
    seen: Counter[str] = Counter()
    tree = ast.parse(source)
    for site in _walk(tree, _Site((), "", False, ast.Pass())):
        for before, after, change in _changes(_at(tree, site.path)):
            name = f"{site.scope}: {before} => {after}"
            seen[name] += 1
            yield Mutant(
                module,
                name if seen[name] == 1 else f"{name} #{seen[name]}",
                site.statement.lineno,
                site.statement.end_lineno or site.statement.lineno,
                not site.is_in_function,
                source,
                site.path,
                change,
            )


def _walk(node: ast.AST, site: _Site) -> Iterator[_Site]:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.arguments):
        return  # an assertion is there in case; nothing has to reach it
    if isinstance(node, ast.stmt):
        site = replace(site, statement=node)
    if isinstance(node, ast.stmt | ast.expr | ast.match_case):
        yield site
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scope = f"{site.scope}.{node.name}" if site.scope else node.name
        is_function = isinstance(node, ast.FunctionDef)
        site = replace(site, scope=scope, is_in_function=site.is_in_function or is_function)
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list"}:
            continue
        parts = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, part in parts:
            if isinstance(part, ast.AST) and not _is_docstring(part):
                yield from _walk(part, replace(site, path=(*site.path, (field, index))))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


Change: TypeAlias = tuple[str, str, ast.AST]


def _changes(node: ast.AST) -> Sequence[Change]:
    """(before, after, node in its place)."""
    match node:
        case ast.Compare():
            return list(_compared(node))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return [_swap(node, ast.BoolOp(other, node.values))]
        case ast.UnaryOp(op=ast.Not()):
            return [_swap(node, node.operand)]
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            return [_swap(node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))]
        case ast.If() | ast.IfExp() | ast.While():
            return [("if " + _text(node.test), "if not", _with(node, "test", _negated(node.test)))]
        case ast.match_case(guard=ast.expr() as guard):
            return [("case if " + _text(guard), "if not", _with(node, "guard", _negated(guard)))]
        case ast.Constant():
            return [_swap(node, ast.Constant(value)) for value in _other_values(node.value)]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [(f"return {_text(value)}", "None", ast.Return(ast.Constant(None)))]
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            return [(_text(node), "pass", ast.Pass())]
        case ast.Set(elts=[_, _, *_]):
            rest = [ast.Set([each for each in node.elts if each is not one]) for one in node.elts]
            return [(_text(one), "out of the set", less) for one, less in zip(node.elts, rest, strict=True)]
        case ast.Call(func=ast.Name(id="replace")):
            return [
                (f"replace {_text(one)}", "left", _without(node, one)) for one in node.keywords if one.arg
            ]
        case _:
            return []


def _compared(node: ast.Compare) -> Iterator[Change]:
    for index, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield _swap(node, ast.Compare(node.left, operators, node.comparators))


def _other_values(value: object) -> Sequence[bool | int | str | bytes]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1] if value else [1]
        case str() if value and " " not in value:  # words for people are not counted
            return [f"{value}~"]
        case bytes() if value:
            return [value + b"~"]
        case _:
            return []


def _swap(before: ast.AST, after: ast.AST) -> Change:
    return _text(before), _text(after), after


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _with(node: ast.AST, field: str, value: ast.AST) -> ast.AST:
    fields = dict(ast.iter_fields(node)) | {field: value}
    return type(node)(**fields)


def _without(node: ast.Call, keyword: ast.keyword) -> ast.Call:
    return ast.Call(node.func, node.args, [each for each in node.keywords if each is not keyword])


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def _at(node: ast.AST, path: Path) -> ast.AST:
    for field, index in path:
        value = getattr(node, field)
        node = value if index is None else value[index]
    return node


def _put(tree: ast.AST, path: Path, change: ast.AST) -> None:
    *way, (field, index) = path
    holder = _at(tree, tuple(way))
    if index is None:
        setattr(holder, field, change)
    else:
        getattr(holder, field)[index] = change
