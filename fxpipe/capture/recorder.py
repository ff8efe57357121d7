"""`Recorder`: sees every torch function of one run, and writes the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.fx
from torch import nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode

from fxpipe import ops
from fxpipe.capture import functions, remedies
from fxpipe.capture.containers import holds_tensors
from fxpipe.capture.decide import Deciding
from fxpipe.capture.fallback import Decisions, FallbackError, KeepWholeError, RefusedError
from fxpipe.capture.functions import Form
from fxpipe.capture.leaf_calls import LeafCalls
from fxpipe.capture.lifted import LiftedCall, callables, is_alone, lift
from fxpipe.capture.modules import Modules, Run
from fxpipe.capture.mutations import Mutations
from fxpipe.capture.naming import function_name, tensor_names
from fxpipe.capture.parts import taken_apart
from fxpipe.capture.regions import Regions
from fxpipe.capture.script import Script
from fxpipe.capture.settings import Settings, context_around
from fxpipe.capture.shadows import Shadows
from fxpipe.capture.spans import changed_argument, mutable_arguments
from fxpipe.capture.values import Dependence, Values
from fxpipe.capture.watch import Watch, storage_key
from fxpipe.interrupts import Interrupts
from fxpipe.originals import Originals


class Recorder(TorchFunctionMode):
    """One recording.

    Attributes:
        script: the graph being written.
        values: which node made which object.
        shadows: which sizes depend on data.
        watch: the dispatch mode that measures effects; active while recording.
        modules: the module calls.
        leaf_calls: those of modules that are not looked into.
        mutations: what forwards do to modules besides.
        regions: the autocast and grad-mode regions.
        settings: of torch, when the run began.
        interrupts: asked at every call that the model makes.
    """

    def __init__(
        self, model: nn.Module, decisions: Decisions, originals: Originals | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.decisions = decisions
        state = (*model.named_parameters(), *model.named_buffers())
        self.script = Script(tensor_names(model), {storage_key(held): name for name, held in state})
        self.values = Values(self.script, self.is_fake)
        self.shadows = Shadows(self.values.is_sized_by_data)
        self.watch = Watch(self._unseen, (originals or Originals(model)).about_to_write)
        self.modules = Modules(self)
        self.leaf_calls = LeafCalls(self)
        self.mutations = Mutations(self)
        self.regions = Regions(self.script)
        self.settings = Settings()
        self.failure: FallbackError | None = None
        self.interrupts = Interrupts()
        self._deciding = Deciding(self)
        self._paused = 0

    # -- what a run on fake tensors does otherwise ------------------------------------------------------

    def is_fake(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has no data, so that it can be no constant of the graph."""
        return False

    def run_leaf(
        self, module: nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a module that is not looked into."""
        return run(*args, **kwargs)

    def value_of(self, node: torch.fx.Node, run: Callable[[], Any]) -> Any:
        """The Python value that `run` takes out of a tensor; `node` computes the same."""
        return run()

    # -- whether to record -------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether calls are written down now (not while a function or a leaf runs)."""
        return not self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing inside is recorded, and code inside sees no function mode of ours."""
        self._paused += 1
        popped = _pop_if_on_top(self)
        try:
            yield
        finally:
            if popped:
                torch.overrides._push_mode(self)  # type: ignore[no-untyped-call]
            self._paused -= 1

    def keep_whole(self, reason: str, func: Any = None, *, remedy: str) -> KeepWholeError:
        """The fallback for something in the module call in progress."""
        operation = "" if func is None else function_name(func)
        self.failure = KeepWholeError(
            reason, self.script.frame.path, self.script.sources.here(), operation, remedy=remedy
        )
        return self.failure

    def refuse(self, reason: str, func: Any, *, remedy: str) -> RefusedError:
        """The refusal of something in the module call in progress: keeping it whole is no help."""
        operation = function_name(func)
        path, here = self.script.frame.path, self.script.sources.here()
        self.failure = RefusedError(reason, path, here, operation, remedy=remedy)
        return self.failure

    def transformed(self, func: Any) -> KeepWholeError:
        """The fallback for code under ``vmap``, ``grad`` and the like."""
        return self.keep_whole("it uses a transform of torch.func", func, remedy=remedies.TRANSFORM)

    def accumulates(self, func: Any) -> KeepWholeError:
        """The fallback for a backward inside of forward."""
        reason = "it accumulates gradients, which no graph node shows"
        return self.keep_whole(reason, func, remedy=remedies.GRADIENTS)

    def check_settings(self) -> None:
        """See that torch computes by the settings that the run began with.

        Raises:
            KeepWholeError: if not: the module in progress has set others, and sets them again if it
                is called as it is.
        """
        changed = self.settings.changed()
        if changed is not None:
            self.failure = KeepWholeError(
                f"it computes under other settings of torch, which no graph node shows: {changed}",
                self.script.frame.path,
                self.script.sources.here(),
                context_around(self.script.sources),
                remedy=remedies.SETTINGS,
            )
            raise self.failure

    # -- functions ---------------------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        self.interrupts.check()
        self._paused += 1
        try:
            return self._function(func, args, kwargs)
        except FallbackError as reason:
            self.failure = reason
            raise
        finally:
            self._paused -= 1

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._are_functorch_transforms_active():
            raise self.transformed(func)
        if func is torch._C._set_grad_enabled:
            return self.regions.set_grad_enabled(bool(args[0]))
        if func is torch.Tensor.backward:
            raise self.accumulates(func)
        if functions.freezes(func, args) and id(args[0]) in self.script.tensor_names:
            reason = "it switches requires_grad of a parameter"
            raise self.keep_whole(reason, func, remedy=remedies.FROZEN)
        if not functions.may_record(func):
            return func(*args, **kwargs)
        on = self.values.dependence((args, kwargs))
        if functions.reads_size(func, args, kwargs) and self.values.is_sized_by_data(args[:1]):
            sizes = self._deciding.sizes(func, args, kwargs)
            if sizes is not None:
                return sizes
        if on is not Dependence.NOTHING and functions.reads_data(func):
            return self._deciding.value(func, args, kwargs, on)
        if func is torch.Tensor.__iter__:
            return iter(self._call(torch.Tensor.unbind, (args[0],), {}, on))
        return self._call(func, args, kwargs, on)

    def _call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on: Dependence
    ) -> Any:
        self.check_settings()
        if isinstance(func, HigherOrderOperator) and not all(
            map(is_alone, callables(args, kwargs))
        ):
            reason = f"it hands functions with values of their own to {func.__name__}"
            raise self.keep_whole(reason, func, remedy=remedies.FUNCTIONS)
        sized = self._deciding.sized(func, args, kwargs, on)
        form = functions.as_node(func, args, kwargs)
        prepared = self.arguments(form) if functions.may_write(func, kwargs) else None
        with self.watch.measure() as effects:
            if form.target is ops.set_attribute and form.args[1] == "data":
                self.watch.replaces(args[0])
            result = self.run_function(func, args, kwargs)
        value = form.result(result)
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise self.keep_whole("it makes nested tensors", func, remedy=remedies.NESTED)
        if not holds_tensors(value) and not self.script.storages.known(effects.writes):
            return result
        arguments, keywords = prepared or self.arguments(form)
        if form.target is ops.call:
            arguments = (self.script.constant(func), *arguments)
        node = self.script.emit(form.op, form.target, arguments, keywords, value, effects)
        on = Dependence.WEIGHTS if effects.draws else on
        self.values.bind(value, node, on, sized)
        if sized:
            self._shade(func, args, kwargs, value)
        return result

    def _shade(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        dims = functions.sized_dimensions(func, args, value)
        if dims is None:
            self.shadows.follow(func, args, kwargs, value)
        else:
            self.shadows.begin(value, dims)

    def run_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a torch function."""
        return func(*args, **kwargs)

    def arguments(self, form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a call, as those of a node."""
        args = tuple(map(self._argument, form.args))
        return args, {name: self._argument(value) for name, value in form.kwargs.items()}

    def _argument(self, value: Any) -> Any:
        parts = taken_apart(value, self.values.known)
        return self.values.argument(value) if parts is None else parts

    # -- what no function mode sees -------------------------------------------------------------------

    def _unseen(self, operator: Any, arguments: Any) -> AbstractContextManager[None] | None:
        """The context for an operator that compiled code runs on constants; None if it was seen.

        Raises:
            KeepWholeError: if it runs on anything else: what it computes would be lost.
        """
        if self._paused:
            return None
        if torch._C._are_functorch_transforms_active():
            raise self.transformed(operator)
        if self.values.dependence(arguments) is not Dependence.NOTHING:
            reason = "compiled code computes what fxpipe cannot see"
            raise self.keep_whole(reason, operator, remedy=remedies.COMPILED)
        return self.paused()

    def transform(
        self,
        implementation: Callable[..., Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a transform of a function by torch.func: one node, if the function allows it.

        In a submodule it goes on as it would: the module stays whole.
        """
        found = lift(function)
        if self.script.frame.path or found is None or torch._C._are_functorch_transforms_active():
            return implementation(function, *args, **kwargs)
        lifted, held = found
        call = LiftedCall(implementation, lifted)
        return self.opaque(ops.call, call, call, (tuple(held), *args), kwargs)

    # -- opaque functions ----------------------------------------------------------------------------

    def opaque(
        self,
        target: Callable[..., Any],
        function: Any,
        run: Run,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a function that is not looked into: one node ``target(function, …)``."""
        with self.paused():
            sized = self.values.is_sized_by_data((args, kwargs))
            leading = (self.script.constant(function),)
            return self._opaque(target, leading, run, args, kwargs, sized)

    def whole(
        self,
        function: Callable[..., Any],
        run: Run,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sized: bool,
        dims: Sequence[int] = (),
    ) -> Any:
        """The result of an importable function that is not looked into: one node.

        `sized`: whether the shapes of its results depend on values of tensors; `dims`: those
        dimensions of its first result whose sizes do.
        """
        with self.paused():
            result = self._opaque(function, (), run, args, kwargs, sized)
            if dims:
                self.shadows.begin(result[0], dims)
            return result

    def _opaque(
        self,
        target: Callable[..., Any],
        leading: tuple[Any, ...],
        run: Run,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sized: bool,
    ) -> Any:
        self.check_settings()
        on = self.values.dependence((args, kwargs))
        given = tuple(self.values.argument(value) for value in args)
        named = {name: self.values.argument(value) for name, value in kwargs.items()}
        objects = mutable_arguments((args, kwargs))
        with self.watch.measure() as effects:
            result = self.run_function(run, args, kwargs)
        changed = changed_argument(objects)
        if changed is not None:
            reason = f"a function that is not looked into changes a {type(changed).__name__}"
            raise self.keep_whole(reason, run, remedy=remedies.ARGUMENT)
        given = (*leading, *given)
        node = self.script.emit("call_function", target, given, named, result, effects)
        self.values.bind(result, node, Dependence.WEIGHTS if effects.draws else on, sized)
        return result


def _pop_if_on_top(mode: TorchFunctionMode) -> bool:
    stack = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if stack and stack[-1] is mode:
        torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
        return True
    return False
