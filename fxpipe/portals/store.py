"""`PortalStore`: portal values from where they are stashed to where they are popped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fxpipe.errors import ExecutionError
from fxpipe.ir.stage import Edge


class PortalStore:
    """Holds each portal's value for every stage that has yet to read it.

    The life of a value read by stages 2 and 4::

        stash("skip", micro_batch, value)     held for 2 and 4
        pop("skip", 2, micro_batch)           held for 4
        pop("skip", 4, micro_batch)           no longer held: this was the last reference

    Stashing and popping are single dictionary operations and may happen in different threads.
    """

    def __init__(self, edges: Iterable[Edge]) -> None:
        self._consumers = {edge.value: edge.consumers for edge in edges}
        self._held: dict[tuple[str, int, int], Any] = {}
        self._popped: set[tuple[str, int, int]] = set()

    def stash(self, value: str, micro_batch: int, held: Any) -> None:
        """Keeps a value for all stages that read it.

        Raises:
            ExecutionError: if `value` is no portal, or was stashed before for this micro-batch.
        """
        if value not in self._consumers:
            raise ExecutionError(f"{value!r} was stashed, but no stage reads it")
        for stage in self._consumers[value]:
            key = (value, stage, micro_batch)
            if key in self._held or key in self._popped:
                raise ExecutionError(
                    f"portal {value!r} was stashed twice for micro-batch {micro_batch}"
                )
            self._held[key] = held

    def pop(self, value: str, stage: int, micro_batch: int) -> Any:
        """The value stashed for a stage, which is no longer held for it afterwards.

        Raises:
            ExecutionError: if it was popped before, or never stashed.
        """
        key = (value, stage, micro_batch)
        try:
            held = self._held.pop(key)
        except KeyError:
            what = "was popped twice by" if key in self._popped else "was never stashed for"
            raise ExecutionError(
                f"portal {value!r} {what} stage {stage}, micro-batch {micro_batch}"
            ) from None
        self._popped.add(key)
        return held

    def reset(self) -> None:
        """Forgets everything: the next step begins with an empty store."""
        self._held.clear()
        self._popped.clear()

    def __len__(self) -> int:
        """How many values are held, counted once per reader to come."""
        return len(self._held)
