"""Numbers that Python does nothing with but compare: ``if lengths.max().item() > self.limit:``.

Which way a model goes depends on the outcome then, and on nothing else of the number. It is told by the
text of the code that runs; where that is in doubt, the number counts as used otherwise.
"""

from __future__ import annotations

import ast
import dis
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

import torch

from fxpipe.capture.syntax import Function, Text, call_in_progress, span_of

_OPERATORS: Final[dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class _NotToldError(Exception):
    """What a text means is in doubt."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a number.

    Attributes:
        compare: the function of both sides.
        other: the value on the other side.
        is_left: whether the number is on the left.
        passes: for which outcome the code goes on, if it just raises otherwise; else None.
    """

    compare: Callable[[Any, Any], Any]
    other: bool | int | float
    is_left: bool
    passes: bool | None

    def sides(self, number: Any) -> tuple[Any, Any]:
        """Left and right side, with something in place of the number."""
        return (number, self.other) if self.is_left else (self.other, number)

    def outcome(self, number: float) -> bool:
        """What comes out for a number."""
        return bool(self.compare(*self.sides(number)))


def comparisons_of(
    frame: FrameType,
    is_meant: Callable[[ast.Call], bool],
    may_ask: Callable[[torch.Tensor], bool] = lambda tensor: True,
) -> tuple[Comparison, ...]:
    """All that a frame does with the number that it calls for now; empty if that is more than comparing.

    Args:
        frame: it makes a call that returns the number.
        is_meant: whether a call is the one that returns it.
        may_ask: whether the sizes of a tensor may be read.
    """
    found = call_in_progress(frame)
    if found is None or not is_meant(found[1]):
        return ()
    try:
        return tuple(_Reading(frame, found[0], may_ask).uses(found[1]))
    except _NotToldError:
        return ()


def passing(compared: Sequence[Comparison]) -> float:
    """A number for which conditions that only raise pass; any, if there is none next to their bounds."""
    bounds = [each.other for each in compared]
    tried = [bound + step for bound in bounds for step in (0, 1, -1)]
    fits = [n for n in tried if all(each.outcome(n) == each.passes for each in compared)]
    return fits[0] if fits else bounds[0]


def reads_number(call: ast.Call) -> bool:
    """Whether a call is ``x.item()``, ``int(x)`` or ``float(x)``."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == "item" and not call.args and not call.keywords
    is_cast = isinstance(call.func, ast.Name) and call.func.id in ("int", "float")
    return is_cast and len(call.args) == 1 and not call.keywords


class _Reading:
    """What the text of a running function says of one number."""

    def __init__(
        self, frame: FrameType, text: Text, may_ask: Callable[[torch.Tensor], bool]
    ) -> None:
        self._frame, self._text, self._may_ask = frame, text, may_ask
        self._stored: frozenset[str] = frozenset()

    def uses(self, call: ast.Call) -> Iterator[Comparison]:
        """The comparisons of what a call returns, be it by a name."""
        around = self._text.around[call]
        if isinstance(around, ast.Compare):
            yield from self._compared(call, around)
            return
        if not isinstance(around, ast.Assign) or around.value is not call:
            raise _NotToldError
        function = self._text.function(call)
        if function is None or len(around.targets) != 1:
            raise _NotToldError
        name = around.targets[0]
        if not isinstance(name, ast.Name):
            raise _NotToldError
        yield from self._named(name, function)

    def _named(self, name: ast.Name, function: Function) -> Iterator[Comparison]:
        """The comparisons of a local variable that is set once."""
        self._stored = frozenset(_stored(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Global | ast.Nonlocal | ast.arg) and name.id in _names(node):
                raise _NotToldError
            if not isinstance(node, ast.Name) or node.id != name.id or node is name:
                continue
            if not isinstance(node.ctx, ast.Load) or self._text.function(node) is not function:
                raise _NotToldError
            if self._is_in_message(node):
                continue
            around = self._text.around[node]
            if not isinstance(around, ast.Compare):
                raise _NotToldError
            yield from self._compared(node, around)

    def _is_in_message(self, node: ast.AST) -> bool:
        """Whether an expression only makes up what is raised."""
        inner = node
        for around in self._text.outwards(node):
            if isinstance(around, ast.Raise) or (
                isinstance(around, ast.Assert) and inner is around.msg
            ):
                return not self._is_caught(around)
            inner = around
        return False

    def _compared(self, number: ast.expr, compare: ast.Compare) -> Iterator[Comparison]:
        sides = [compare.left, *compare.comparators]
        if not _is_compiled(compare, self._frame.f_code):
            raise _NotToldError
        passes = self._passes(compare) if len(sides) == 2 else None
        for at, kind in enumerate(compare.ops):
            pair = sides[at : at + 2]
            if number in pair:
                if type(kind) not in _OPERATORS:
                    raise _NotToldError
                is_left = pair[0] is number
                other = self._value(pair[is_left])
                if type(other) not in (bool, int, float):
                    raise _NotToldError
                yield Comparison(_OPERATORS[type(kind)][1], other, is_left, passes)

    # -- what comes of a comparison ----------------------------------------------------------------

    def _passes(self, compare: ast.Compare) -> bool | None:
        """For which outcome of a comparison the code goes on; None if it does not just raise."""
        way: list[ast.AST] = []
        for around in self._text.outwards(compare):
            if isinstance(around, ast.UnaryOp | ast.BoolOp):
                way.append(around)
                continue
            wanted = _wanted(around, (way or [compare])[-1])
            if wanted is None or self._is_caught(around):
                return None
            return _down(wanted, way)
        return None

    def _is_caught(self, statement: ast.AST) -> bool:
        return any(
            isinstance(each, ast.Try | ast.TryStar) for each in self._text.outwards(statement)
        )

    # -- the other side ------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression that is simple enough to be evaluated once more."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._variable(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._number(left), self._number(right))
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=index):
                return self._size(owner, index)
            case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[index], keywords=[]):
                return self._size(owner, index)
            case ast.Attribute(value=owner, attr=attribute) if attribute not in self._stored:
                return getattr(self._plain(owner), attribute, None)
        raise _NotToldError

    def _variable(self, name: str) -> Any:
        if name in self._stored:
            raise _NotToldError
        for held in (self._frame.f_locals, self._frame.f_globals):
            if name in held:
                return held[name]
        raise _NotToldError

    def _plain(self, node: ast.expr) -> Any:
        """An owner of attributes: none of a tensor's are read."""
        found = self._value(node)
        if isinstance(found, torch.Tensor):
            raise _NotToldError
        return found

    def _number(self, node: ast.expr) -> Any:
        found = self._value(node)
        if type(found) not in (int, float):
            raise _NotToldError
        return found

    def _size(self, owner: ast.expr, index: ast.expr) -> int:
        tensor, dim = self._value(owner), self._value(index)
        if not isinstance(tensor, torch.Tensor) or type(dim) is not int:
            raise _NotToldError
        if not self._may_ask(tensor) or not -tensor.dim() <= dim < tensor.dim():
            raise _NotToldError
        return tensor.size(dim)


def _is_compiled(compare: ast.Compare, code: CodeType) -> bool:
    """Whether the running code has a comparison of these kinds there: the text may be a newer one."""
    if any(type(kind) not in _OPERATORS for kind in compare.ops):
        return False
    wanted = sorted(_OPERATORS[type(kind)][0] for kind in compare.ops)
    found = [
        step.argrepr.removeprefix("bool(").removesuffix(")")
        for step in dis.get_instructions(code)
        if step.opname == "COMPARE_OP"
        and step.positions is not None
        and tuple(step.positions) == span_of(compare)
    ]
    return sorted(set(found)) == sorted(set(wanted))


def _wanted(statement: ast.AST, condition: ast.AST) -> bool | None:
    """What a statement's condition must be for it to do nothing; None if it does not just raise."""
    if isinstance(statement, ast.Assert) and condition is statement.test:
        return True
    if isinstance(statement, ast.If) and condition is statement.test and not statement.orelse:
        *before, last = statement.body
        return False if not before and isinstance(last, ast.Raise) else None
    return None


def _down(wanted: bool, way: list[ast.AST]) -> bool | None:
    """What a part of a condition must be, if the whole must be `wanted`; `way`: from the part on."""
    for each in reversed(way):
        if isinstance(each, ast.UnaryOp):
            if not isinstance(each.op, ast.Not):
                return None
            wanted = not wanted
        elif isinstance(each, ast.BoolOp) and isinstance(each.op, ast.And) is not wanted:
            return None
    return wanted


def _stored(function: Function) -> Iterator[str]:
    """Names of variables and attributes that a function sets."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.attr
        elif node is not function and isinstance(node, _SCOPES) and hasattr(node, "name"):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def _names(node: ast.Global | ast.Nonlocal | ast.arg) -> list[str]:
    return [node.arg] if isinstance(node, ast.arg) else node.names
