"""Names of places in a recorded run, as users write them in `cuts`.

A place is a node of the body, by position, named by

- ``"decoder.block"``: the first node of the first call of that module;
- ``"decoder.block@2"``: of its call number 2, counted from 0 like everything here, so its third;
- ``"add_3"`` or ``"%add_3"``: the node of that name (the sign is needed where a module has the name).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from fxpipe.errors import PartitionError

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.capture import Capture


class Places:
    """The names of a capture's places, both ways."""

    def __init__(self, capture: Capture) -> None:
        body = capture.body
        self._nodes = {node.name: index for index, node in enumerate(body)}
        self._calls: dict[str, dict[int, int | None]] = {}
        for span in capture.spans:
            if span.path:
                inside = [self._nodes[name] for name in span.nodes if name in self._nodes]
                first = min(inside, default=None)
                self._calls.setdefault(span.path, {})[span.call] = first
        for index, (path, call) in enumerate(leaf_calls(body)):
            if path is not None:
                self._calls.setdefault(path, {})[call] = index
        self._outermost: dict[int, str] = {}
        for path, calls in sorted(self._calls.items(), key=lambda item: item[0].count(".")):
            for call, position in calls.items():
                if position is not None:
                    self._outermost.setdefault(position, f"{path}@{call}" if call else path)
        self._names = [node.name for node in body]

    def position(self, name: str) -> int:
        """Position of the node that a name means.

        Raises:
            PartitionError: if there is no such module call or node; it offers names that come close.
        """
        path, at, number = name.rpartition("@")
        if name.startswith("%") or name not in self._calls:
            node = self._nodes.get(name.removeprefix("%"))
            if node is not None:
                return node
        if not at:
            path, number = name, "0"
        calls = self._calls.get(path)
        if calls is None:
            raise PartitionError(self._unknown(name, path))
        if not number.isdecimal() or int(number) not in calls:
            known = ", ".join(f"{path}@{call}" for call in sorted(calls))
            raise PartitionError(
                f"{name!r} names no call of {path!r}: calls are counted from 0, and it has {known}"
            )
        position = calls[int(number)]
        if position is None:
            raise PartitionError(f"{name!r} computes nothing: a stage cannot start there")
        return position

    def name(self, position: int) -> str:
        """A name of a place that `position` turns back: the outermost module call that starts there."""
        module_call = self._outermost.get(position)
        if module_call is not None:
            return module_call
        node = self._names[position]
        return f"%{node}" if node in self._calls else node

    def _unknown(self, name: str, path: str) -> str:
        known = [*self._calls, *self._nodes]
        close = get_close_matches(path, known, n=5, cutoff=0.5)
        close += [k for k in self._calls if k.endswith("." + path) and k not in close][:3]
        hint = f"did you mean {', '.join(map(repr, close))}?" if close else self._examples()
        return f"{name!r} is no module that ran when the model was recorded, and no node; {hint}"

    def _examples(self) -> str:
        some = ", ".join(repr(path) for path in list(self._calls)[:8])
        return f"modules that ran are {some} …" if some else "no module ran"


def leaf_calls(body: tuple[torch.fx.Node, ...]) -> list[tuple[str | None, int]]:
    """For each node, the module it calls whole and which call of it this is; (None, 0) for others."""
    counts: dict[str, int] = {}
    found: list[tuple[str | None, int]] = []
    for node in body:
        if node.op != "call_module":
            found.append((None, 0))
            continue
        path = str(node.target)
        found.append((path, counts.get(path, 0)))
        counts[path] = counts.get(path, 0) + 1
    return found
