"""What the recorder cannot write down, and which module stays whole because of it.

Recording stops with a `FallbackError`; the decisions grow by one module and recording starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fxpipe.capture.remedies import MOVE
from fxpipe.errors import CaptureError


class FallbackError(Exception):
    """Recording cannot go on like this.

    Attributes:
        reason: why, as a sentence about the module.
        path: of the innermost module around the place.
        source: the user's line.
        operation: what was called there.
        remedy: what the user can change (see `fxpipe.capture.remedies`).
    """

    def __init__(
        self, reason: str, path: str, source: str, operation: str = "", *, remedy: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.source = source
        self.operation = operation
        self.remedy = remedy


class KeepWholeError(FallbackError):
    """The module at `path` must become a leaf."""


class StoresError(KeepWholeError):
    """The module at `path` keeps a tensor: it becomes a leaf, until the tensor is read elsewhere.

    Attributes:
        as_buffer: whether it is a buffer, which all calls of the module share anyhow.
    """

    as_buffer = False


class DecidesOtherwiseError(KeepWholeError):
    """A decision on data that is checked came out otherwise in another recording."""


class LookInsideError(FallbackError):
    """The leaf at `path` must be looked into: tensors get past its arguments and results."""


class GuardSizesError(FallbackError):
    """Sizes that depend on inputs are needed: they are to be guarded."""


class CountDrawsError(FallbackError):
    """Draws that change nothing are made beside draws of a module that stays whole: they count."""


class RefusedError(FallbackError):
    """No module is kept whole for this: the model cannot be recorded."""


@dataclass
class Decisions:
    """Which modules are treated otherwise than the leaf policy says.

    Attributes:
        leaves: path → why, for modules kept whole.
        inside: path → why, for leaves that are looked into.
        whole_root: whether the model itself may become a leaf (it is a layer of torch.nn).
        guard_sizes: whether sizes that masks among the inputs decide on are guarded.
        count_draws: whether draws from ``random`` or NumPy count that are only compared, and always
            with the same outcome.
        watch_random: whether to find out which module draws from ``random`` or NumPy.
    """

    leaves: dict[str, FallbackError] = field(default_factory=dict)
    inside: dict[str, FallbackError] = field(default_factory=dict)
    whole_root: bool = False
    guard_sizes: bool = False
    count_draws: bool = False
    watch_random: bool = False

    def learn(self, reason: FallbackError, is_layer: bool) -> None:
        """Take a `FallbackError` into account.

        `is_layer`: whether the module at its path is a layer of torch.nn, which is never looked into.

        Raises:
            CaptureError: if nothing but the whole model could be kept whole, or nothing should be.
        """
        if isinstance(reason, RefusedError):
            raise root_error(reason)
        if isinstance(reason, GuardSizesError):
            self.guard_sizes = True
            return
        if isinstance(reason, CountDrawsError):
            self.count_draws = True
            return
        path = reason.path
        if isinstance(reason, LookInsideError) and self._can_be_opened(path) and not is_layer:
            self.leaves.pop(path, None)
            self.inside[path] = reason
            return
        if isinstance(reason, LookInsideError):  # looking inside was tried, or is of no use
            before = self.leaves.pop(path, None)
            if before is not None:
                reason.reason += f" (and it would have to stay whole, because {before.reason})"
            path = _parent(path, reason)
        while path in self.leaves or path in self.inside:
            path = _parent(path, reason)
        if not path and not self.whole_root:
            raise root_error(reason)
        self.leaves[path] = reason

    def _can_be_opened(self, path: str) -> bool:
        """Whether a leaf is one by its class alone, or because it keeps tensors."""
        return path not in self.leaves or isinstance(self.leaves[path], StoresError)

    @property
    def state(self) -> object:
        """What recordings under the same decisions have in common."""
        return tuple(self.leaves), tuple(self.inside), self.guard_sizes, self.count_draws


def _parent(path: str, reason: FallbackError) -> str:
    if not path:
        raise root_error(reason)
    return path.rpartition(".")[0]


def root_error(reason: FallbackError) -> CaptureError:
    """The error for something that only the whole model as one unit could do."""
    where = f"module {reason.path!r}" if reason.path else "the model's own forward"
    line = f"\n  at: {reason.source}" if reason.source else ""
    operation = f"\n  operation: {reason.operation}" if reason.operation else ""
    remedies = [reason.remedy] if reason.remedy else []
    if not isinstance(reason, RefusedError):
        remedies.append(f"or {MOVE}" if remedies else MOVE)
    return CaptureError(
        f"the model cannot be recorded: {reason.reason}\n  in: {where}{line}{operation}"
        f"\n  What to do: {'; '.join(remedies)}."
    )
