"""What Python decides on data while recording: a guard, a check, or a reason for a leaf."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from fxpipe import ops
from fxpipe.capture import functions, remedies
from fxpipe.capture.comparisons import Comparison, passing
from fxpipe.capture.fallback import FallbackError, GuardSizesError
from fxpipe.capture.leaves import is_small
from fxpipe.capture.shadows import Sizes
from fxpipe.capture.values import Dependence

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder


class Deciding:
    """The decisions on data of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._script, self._values = recorder.script, recorder.values
        self._could_guard_sizes = False

    def _is_small(self) -> bool:
        return is_small(self._recorder.model, self._script.frame.path)

    # -- values ------------------------------------------------------------------------------------

    def value(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on: Dependence
    ) -> Any:
        """The value that Python takes out of a tensor, with a node that checks it in later runs.

        Raises:
            KeepWholeError: if the module is small enough to decide for itself, or nobody else can know,
                or it takes a number that differs from input to input.
            RefusedError: if the model itself takes such a number.
        """
        self._values.refuse_state((args, kwargs))
        checkable = on <= Dependence.INPUTS and functions.is_checkable(func)
        frame = sys._getframe(3)
        passes = None if checkable else functions.passes_if(func, frame)
        if passes is not None:
            return self._checked(func, args, kwargs, passes)
        compared = functions.comparisons_of(func, frame, self._may_ask)
        if not checkable and compared and all(each.passes is not None for each in compared):
            return self._checked_number(func, args, kwargs, compared)
        if not checkable or self._is_small():
            reason = "its Python code depends on values of tensors"
            remedy = remedies.VALUES
            if not functions.is_condition(func):
                remedy += f"; {remedies.LOOKED_AT}"
            raise self._recorder.keep_whole(reason, func, remedy=remedy)
        node = self._read(func, args, kwargs)
        value = self._recorder.value_of(node, lambda: func(*args, **kwargs))
        node.meta["spec"] = value if isinstance(value, bool | int | float) else None
        if compared:
            self._guard_outcomes(node, value, compared)
            return value
        if on is Dependence.INPUTS and functions.is_fractional(value):
            raise self._takes_number(func)
        self._script.emit("call_function", ops.check_value, (node, value))
        return value

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
        form = functions.as_node(func, args, kwargs)
        return self._script.emit(form.op, form.target, *self._recorder.arguments(form))

    def _may_ask(self, tensor: torch.Tensor) -> bool:
        return not self._values.is_sized_by_data(tensor)

    def _guard_outcomes(
        self, node: torch.fx.Node, value: float, compared: Sequence[Comparison]
    ) -> None:
        """Check in later runs what a number's comparisons say, whatever the number is."""
        for each in compared:
            outcome = each.outcome(value)
            made = self._script.emit("call_function", each.compare, each.sides(node), value=outcome)
            self._script.emit("call_function", ops.check_value, (made, outcome))

    def _takes_number(self, func: Any) -> FallbackError:
        reason = "its Python code takes a fractional number out of an input"
        if self._script.frame.path:
            return self._recorder.keep_whole(reason, func, remedy=remedies.FRACTION)
        reason += ", so that nearly every micro-batch would need a recording of its own"
        return self._recorder.refuse(reason, func, remedy=remedies.FRACTION)

    # -- conditions that only raise ------------------------------------------------------------------

    def _checked(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], passes: bool
    ) -> bool:
        """The outcome of a condition that does nothing but raise: the graph checks it as well."""
        found = passes if self._recorder.is_fake(args[0]) else bool(func(*args, **kwargs))
        if found == passes:
            self._check(self._values.node(args[0]), passes)
        return found

    def _checked_number(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        compared: Sequence[Comparison],
    ) -> Any:
        """A number of which nothing but conditions that only raise are asked: the graph checks them."""
        is_fake = self._recorder.is_fake(args[0])
        value = passing(compared) if is_fake else func(*args, **kwargs)
        if all(each.outcome(value) == each.passes for each in compared):
            node = self._read(func, args, kwargs)
            node.meta["spec"] = value
            for each in compared:
                sides = each.sides(node)
                made = self._script.emit("call_function", each.compare, sides, value=each.passes)
                self._check(made, each.passes)
        return value

    def _check(self, condition: torch.fx.Node, passes: bool | None) -> None:
        given = (condition, passes, self._script.sources.here())
        self._script.emit("call_function", ops.check_passes, given)

    # -- sizes -------------------------------------------------------------------------------------

    def sizes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call says of a tensor of which some sizes depend on data; None: let it run.

        Raises:
            KeepWholeError: if it asks for those.
            GuardSizesError: if those can be guarded.
        """
        fixed = self._recorder.shadows.fixed(args[0])
        if functions.read_dimension(func, args, kwargs) in fixed:
            return None if functions.takes_apart(func) else func(*args, **kwargs)

        def refuse() -> FallbackError:
            return self._refuse_size(func)

        if fixed and functions.reads_shape(func, args, kwargs):
            return Sizes.of(args[0].shape, fixed, refuse)
        raise refuse()

    def _refuse_size(self, func: Any) -> FallbackError:
        reason = "its Python code depends on a size that depends on data"
        refused = self._recorder.keep_whole(reason, func, remedy=remedies.SHAPES)
        if self._could_guard_sizes and not self._is_small():
            self._recorder.failure = GuardSizesError(reason, refused.path, refused.source)
            return self._recorder.failure
        return refused

    def sized(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on: Dependence
    ) -> bool:
        """Whether the result's shape depends on data.

        Raises:
            KeepWholeError: if it does, in a module small enough to be one node.
        """
        if on is not Dependence.NOTHING and functions.is_sized_by_data(func, args, kwargs):
            if self._is_small():
                reason = "the shape of a result depends on values of tensors"
                raise self._recorder.keep_whole(reason, func, remedy=remedies.SHAPES)
            if not self._counts_guarded(functions.counted(func, args)):
                return True
        if args and functions.is_shaped_as_first(func):
            return self._values.is_sized_by_data(args[0])
        return self._values.is_sized_by_data((args, kwargs))

    def _counts_guarded(self, masks: Sequence[torch.Tensor]) -> bool:
        """Whether guards see to it that as many elements of masks are set as now.

        They are made once something was found to depend on such a size.
        """
        if not masks or any(self._values.dependence(m) > Dependence.INPUTS for m in masks):
            return False
        if not self._recorder.decisions.guard_sizes:
            self._could_guard_sizes = True
            return False
        for mask in masks:
            self._guard_count(mask)
        return True

    def _guard_count(self, mask: torch.Tensor) -> None:
        count = self._script.emit("call_function", torch.count_nonzero, (self._values.node(mask),))
        found = self._number(count, lambda: int(torch.count_nonzero(mask)))
        self._script.emit("call_function", ops.check_value, found)

    def _number(self, count: torch.fx.Node, run: Callable[[], int]) -> tuple[torch.fx.Node, int]:
        node = self._script.emit("call_method", "item", (count,))
        value = int(self._recorder.value_of(node, run))
        node.meta["spec"] = value
        return node, value
