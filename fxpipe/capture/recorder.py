"""`Recorder`: sees every torch function and module call of one run, and writes the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from fxpipe import ops
from fxpipe.capture import functions
from fxpipe.capture.containers import PLAIN, holds_tensors, tensors
from fxpipe.capture.fallback import Decisions, KeepWhole, LookInside
from fxpipe.capture.leaves import leaf_reason
from fxpipe.capture.naming import tensor_names
from fxpipe.capture.script import Script
from fxpipe.capture.spans import Frame, changed_argument, mutable_arguments, outputs_of
from fxpipe.capture.values import Values
from fxpipe.capture.watch import Watch, storage_key
from fxpipe.ir.capture import Span

Run = Callable[..., Any]


class Recorder(TorchFunctionMode):
    """One recording.

    Attributes:
        script: the graph being written.
        values: which node made which object.
        watch: the dispatch mode that measures effects; active while recording.
        spans: finished and unfinished module calls, in order of their start.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        decisions: Decisions,
        is_fake: Callable[[torch.Tensor], bool] = lambda tensor: False,
    ) -> None:
        super().__init__()
        self.model = model
        self.decisions = decisions
        buffers = {storage_key(b): name for name, b in model.named_buffers() if b is not None}
        self.script = Script(tensor_names(model), buffers)
        self.values = Values(self.script, is_fake)
        self.watch = Watch()
        self.spans: list[Span | None] = []
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.leaf: str | None = None
        self._calls: dict[str, int] = {}
        self._paused = 0
        self._contexts: list[tuple[torch.autocast, torch.fx.Node]] = []
        self._grad_mode = torch.is_grad_enabled()
        self._grad_region: int | None = None
        self._next_region = 0

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
                torch.overrides._push_mode(self)
            self._paused -= 1

    # -- functions ---------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        self._paused += 1
        try:
            return self._function(func, args, kwargs)
        finally:
            self._paused -= 1

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._are_functorch_transforms_active():
            raise self.keep_whole("it uses a transform of torch.func", func)
        if func is torch._C._set_grad_enabled:
            return self._set_grad_enabled(bool(args[0]))
        if functions.reads_data(func, args, kwargs) and self.values.depends_on_data((args, kwargs)):
            return self.decide(func, args, kwargs)
        if functions.is_iteration(func):
            rows = self._call(torch.Tensor.unbind, (args[0],), {})
            return iter(rows)
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.watch.measure() as effects:
            if not functions.may_record(func):
                return func(*args, **kwargs)
            on_data = self.values.depends_on_data((args, kwargs))
            form = functions.as_node(func, args, kwargs)
            prepared: tuple[Any, Any] | None = None
            if effects_before_call(func, args, kwargs):
                prepared = self._arguments(form)
            result = func(*args, **kwargs)
        value = form.result(result)
        if not holds_tensors(value):
            return result
        arguments, keywords = prepared or self._arguments(form)
        if form.target is ops.call:
            arguments = (self.script.constant(func), *arguments)
        node = self.script.emit(form.op, form.target, arguments, keywords, value, effects)
        self.values.bind(value, node, on_data or effects.draws > 0)
        return result

    def _arguments(self, form: functions.Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = tuple(self.values.argument(value) for value in form.args)
        return args, {name: self.values.argument(value) for name, value in form.kwargs.items()}

    def decide(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value that a decision in Python takes out of a tensor.

        Raises:
            KeepWhole: always so far: the innermost module keeps the decision to itself.
        """
        raise self.keep_whole("its Python code depends on values of tensors", func)

    def keep_whole(self, reason: str, func: Any = None) -> KeepWhole:
        """The fallback for something in the module call in progress."""
        operation = "" if func is None else str(getattr(func, "__name__", func))
        return KeepWhole(reason, self.script.frame.path, self.script.sources.here(), operation)

    # -- opaque functions ----------------------------------------------------------------------------

    def apply(self, function: type[Any], run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A hand-written autograd function as one node."""
        with self.paused():
            on_data = self.values.depends_on_data((args, kwargs))
            given = tuple(self.values.argument(value) for value in args)
            named = {name: self.values.argument(value) for name, value in kwargs.items()}
            with self.watch.measure() as effects:
                result = run(*args, **kwargs)
            given = (self.script.constant(function), *given)
            node = self.script.emit(
                "call_function", ops.apply_function, given, named, result, effects
            )
            self.values.bind(result, node, on_data or effects.draws > 0)
        return result

    # -- autocast and grad mode ----------------------------------------------------------------------

    def enter_autocast(self, context: torch.autocast) -> None:
        """An autocast region begins."""
        self._next_region += 1
        self.script.regions.append(self._next_region)
        settings = (
            context.device, context.fast_dtype, context._enabled, context._cache_enabled
        )  # fmt: skip
        node = self.script.emit("call_function", ops.enter_autocast, settings, value=context)
        self._contexts.append((context, node))

    def exit_autocast(self, context: torch.autocast) -> None:
        """An autocast region ends."""
        if not self._contexts or self._contexts[-1][0] is not context:
            return  # entered before recording began
        _, node = self._contexts.pop()
        self.script.emit("call_function", ops.exit_autocast, (node,))
        self.script.regions.pop()

    def _set_grad_enabled(self, enabled: bool) -> None:
        changed = enabled != torch.is_grad_enabled()
        torch._C._set_grad_enabled(enabled)
        if not changed:
            return
        if enabled != self._grad_mode and self._grad_region is None:
            self._next_region += 1
            self._grad_region = self._next_region
            self.script.regions.append(self._grad_region)
        self.script.emit("call_function", ops.set_grad_enabled, (enabled,))
        if enabled == self._grad_mode and self._grad_region is not None:
            self.script.regions.remove(self._grad_region)
            self._grad_region = None

    # -- modules -------------------------------------------------------------------------------------

    def module(
        self, module: torch.nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], via: str
    ) -> Any:
        """A module call: one node if the module is a leaf, a span otherwise."""
        path = self.paths.get(id(module))
        if path is None:  # not part of the model: its code belongs to the module that calls it
            return run(*args, **kwargs)
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        if self._is_leaf(module, path):
            with self.paused():
                return self._leaf(path, call, run, args, kwargs, via)
        return self._span(Frame(path, call, module, via), run, args, kwargs)

    def _is_leaf(self, module: torch.nn.Module, path: str) -> bool:
        if path in self.decisions.inside:
            return False
        if path in self.decisions.leaves:
            return True
        return bool(path) and leaf_reason(module) is not None

    def begins_forward(self, module: torch.nn.Module) -> bool:
        """Whether `module.forward` runs because the call in progress calls it, for the first time."""
        frame = self.script.frames[-1] if self.script.frames else None
        if frame is None or frame.module is not module or not frame.awaits_forward:
            return False
        frame.awaits_forward = False
        return True

    def _leaf(
        self, path: str, call: int, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], via: str
    ) -> Any:
        given = tuple(self.values.argument(value, path) for value in args)
        named = {name: self.values.argument(value, path) for name, value in kwargs.items()}
        objects = mutable_arguments((args, kwargs))
        self.leaf = path
        try:
            with self.watch.measure() as effects:
                result = run(*args, **kwargs)
        finally:
            self.leaf = None
        changed = changed_argument(objects)
        if changed is not None:
            reason = f"it changes a {type(changed).__name__} that it is handed"
            raise LookInside(reason, path, self.script.sources.here())
        scope = f"{path}#{call}"
        node = self.script.emit("call_module", path, given, named, result, effects, scope)
        node.meta["via"] = via
        self.values.bind(result, node, True)
        return result

    def hide(self, result: Any, leaf: str) -> None:
        """Remember tensors that a module inside a leaf returned: a hook may leak them."""
        for tensor in tensors(result):
            self.values.hidden.setdefault(id(tensor), (tensor, leaf))

    def _span(self, frame: Frame, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.paused():
            self._open(frame, args, kwargs)
        self.script.frames.append(frame)
        try:
            result = run(*args, **kwargs)
        finally:
            self.script.frames.pop()
        with self.paused():
            self._close(frame, result)
        return result

    def _open(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame.objects = mutable_arguments((args, kwargs))
        frame.args = tuple(self._template(frame, value) for value in args)
        frame.kwargs = {name: self._template(frame, value) for name, value in kwargs.items()}
        frame.index = len(self.spans)
        frame.parent = self.script.frames[-1].index if self.script.frames else None
        frame.start = len(self.script.body)
        self.spans.append(None)

    def _template(self, frame: Frame, value: Any) -> Any:
        """An argument as the caller passed it; no node that computes is written for it."""
        special = next(iter(special_containers(value)), None)
        if special is None:
            return self.values.argument(value)
        if self.values.known(special) is None:
            frame.fixed = f"it is handed a {type(special).__name__} that holds tensors"
            return None
        return self.values.argument(value)

    def _close(self, frame: Frame, result: Any) -> None:
        changed = changed_argument(frame.objects)
        if changed is not None:
            frame.fixed = f"it changes a {type(changed).__name__} that it is handed"
        outputs = outputs_of(result, self._output_node)
        self.values.restore_aliases(frame.aliases, outputs)
        self.spans[frame.index] = frame.finish(self.script.body, outputs)

    def _output_node(self, tensor: torch.Tensor) -> torch.fx.Node | None:
        return self.values.known(tensor)


def special_containers(value: Any) -> Iterator[Any]:
    """Containers inside a value that hold tensors and are no plain list, tuple or dict."""
    from fxpipe.capture.containers import take_apart

    if isinstance(value, torch.Tensor) or isinstance(value, PLAIN):
        return
    apart = take_apart(value)
    if apart is None or not holds_tensors(value):
        return
    parts, children = apart
    if not parts.is_plain:
        yield value
        return
    for inner in children:
        yield from special_containers(inner)


def effects_before_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether arguments must be looked up before the call, which may rebind them."""
    return functions.may_write(func, kwargs)


def _pop_if_on_top(mode: TorchFunctionMode) -> bool:
    stack = torch.overrides._get_current_function_mode_stack()
    if stack and stack[-1] is mode:
        torch.overrides._pop_mode()
        return True
    return False
