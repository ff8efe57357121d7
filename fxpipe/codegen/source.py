"""The source file of one stage."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator

import torch.fx

from fxpipe import ops
from fxpipe.codegen import reroll
from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.bindings import Bindings
from fxpipe.codegen.deferred import Deferred
from fxpipe.codegen.devices import Home
from fxpipe.codegen.emit import deferred_expression, expression
from fxpipe.codegen.imports import Imports
from fxpipe.codegen.names import Names, quoted
from fxpipe.codegen.objects import Objects
from fxpipe.codegen.random import is_drawing_module, random_scopes
from fxpipe.codegen.split import StagePart
from fxpipe.codegen.statements import Statement, write_body
from fxpipe.codegen.writer import Writer
from fxpipe.ir.capture import Capture
from fxpipe.ir.stage import StageProgram
from fxpipe.portals.calls import ModuleCall
from fxpipe.portals.steps import Step, reads


class StageSource:
    """Writes one stage: first its statements, then the file around them."""

    def __init__(
        self,
        part: StagePart,
        capture: Capture,
        home: Home,
        reserved: set[str],
        put_off: Deferred = Deferred(),  # noqa: B008 - it is frozen
    ) -> None:
        self.part = part
        self.put_off = put_off
        self.capture = capture
        self.imports = Imports()
        self.bindings = Bindings()
        self.names = Names(reserved)
        self.locals: dict[torch.fx.Node, str] = {}
        self.write = Arguments(self.value, self.imports, self.bindings, home)
        self.objects = Objects(self.write, self.names)
        for node in part.inputs:
            self.value(node)
        self.popped: list[str] = []
        self.stashed: list[str] = []
        self.statements = tuple(self._statements())
        for node in part.outputs:  # a class among the results asks for its import
            self.value(node)

    def value(self, node: torch.fx.Node) -> str:
        """The expression for a node's value: a local variable, or what ``get_attr`` is bound to."""
        if node.op == "get_attr":
            return self._bound(str(node.target), node)
        if node not in self.locals:
            self.locals[node] = self.names.take(node.name)
        return self.locals[node]

    def _bound(self, target: str, node: torch.fx.Node) -> str:
        if target not in self.capture.constants:
            return self.bindings.tensor(target)
        constant = self.capture.constants[target]
        if isinstance(constant, torch.nn.Module):
            path = _path_in(self.capture.recorded_from(), constant)
            if path is not None:
                return self.bindings.module(path, is_called=not self._only_keeps_in(node))
        if isinstance(constant, type) or inspect.isroutine(constant):
            return self.imports.name_of(constant) or self.bindings.constant(target)
        return self.bindings.constant(target)

    def _only_keeps_in(self, module: torch.fx.Node) -> bool:
        """Whether the stage uses a module for nothing but to keep something in it.

        A call that the module is handed to reads it too, though none of the graph's nodes does.
        """
        readers = [step for step in self.part.steps if module in reads(step)]
        return bool(readers) and all(_keeps_in(module, step) for step in readers)

    def _statements(self) -> Iterator[Statement]:
        waiting = dict.fromkeys(self.part.pops)
        stashed = set(self.part.stashes)
        for step in self.part.steps:
            yield from self._popped(reads(step), waiting)
            for statement in self._computed(step):
                yield statement
                for node in statement.writes:
                    if node in stashed:
                        self.stashed.append(node.name)
                        text = f"stash({quoted(node.name)}, {self.value(node)})"
                        yield Statement(text, reads=(node,), origin=statement.origin)
        yield from self._popped(self.part.outputs, waiting)

    def _popped(
        self, needed: tuple[torch.fx.Node, ...], waiting: dict[torch.fx.Node, None]
    ) -> Iterator[Statement]:
        for node in needed:
            if node in waiting:
                del waiting[node]
                self.popped.append(node.name)
                yield Statement(f"pop({quoted(node.name)})", writes=(node,))

    def _computed(self, step: Step) -> Iterator[Statement]:
        if isinstance(step, ModuleCall):
            parent = step.span.parent
            section = "" if parent is None else self.capture.spans[parent].path
            yield from reroll.statements(step, section, self.write, self.objects, self.names)
            return
        path, source = step.meta["path"], " ".join(step.meta["source"].split())
        place = str(step.target) if step.op == "call_module" else path
        keyed = None
        if step.meta.get("draws") and not is_drawing_module(step):
            keyed = step.meta["rng"]
        yield Statement(
            self._expression(step),
            writes=(step,),
            reads=reads(step),
            section=path,
            comment=source,
            origin=", ".join(filter(None, (place or "the model", source))),
            keyed=keyed,
        )

    def _expression(self, node: torch.fx.Node) -> str:
        if node in self.put_off.nodes:
            return deferred_expression(node, self.write)
        return expression(node, self.write)

    def program(self, head: Iterable[str], parameters: Collection[str]) -> StageProgram:
        """The stage as text, with all that belongs to it.

        Args:
            head: lines of the comment at the top.
            parameters: names of the model's parameters; other tensors are buffers.
        """
        part = self.part
        out = Writer()
        for line in head:
            out.line(f"# {line}".rstrip())
        for line in ("", *self.imports.lines) if self.imports.lines else ():
            out.line(line)
        out.line()
        out.line()
        class_name = f"Stage{part.stage}"
        with out.block(f"class {class_name}:"):
            self._write_init(out, parameters)
            arguments = ["self", "stash", "pop", *map(self.value, part.inputs)]
            with out.block(f"def forward({', '.join(arguments)}):"):
                write_body(self.statements, part.outputs, self.value, out)
        changed = (name for node in part.nodes for name in node.meta.get("buffers", ()))
        return StageProgram(
            stage=part.stage,
            source=out.text,
            class_name=class_name,
            inputs=tuple(node.name for node in part.inputs),
            pops=tuple(self.popped),
            outputs=tuple(node.name for node in part.outputs),
            stashes=tuple(self.stashed),
            modules=self.bindings.modules,
            holders=self.bindings.holders,
            tensors=self.bindings.tensors,
            constants=self.bindings.constants,
            random=random_scopes(part.steps),
            buffers=tuple(dict.fromkeys(changed)),
            needs_keys=self.needs_keys,
            draws_python=any(node.meta.get("python_random") for node in part.nodes),
            needs_device=self.write.names_device,
            needs_deferring=bool(self.put_off.nodes),
            split_layers=self.put_off.layers,
            split_scopes=self.put_off.scopes,
            lines=out.origins,
        )

    @property
    def needs_keys(self) -> bool:
        """Whether a statement draws random numbers itself."""
        return any(statement.keyed is not None for statement in self.statements)

    def _write_init(self, out: Writer, parameters: Collection[str]) -> None:
        """How the stage is bound to a model by hand; `fxpipe.codegen.load` binds the same names."""
        bound = self.bindings
        lines = [
            f"self.{a} = model.get_submodule({quoted(path)})" for a, path in bound.modules.items()
        ]
        for attribute, name in bound.tensors.items():
            kind = "parameter" if name in parameters else "buffer"
            lines.append(f"self.{attribute} = model.get_{kind}({quoted(name)})")
        lines += [f"self.{a} = constants[{quoted(a)}]" for a in bound.constants]
        wanted = {
            "model": bool(bound.modules or bound.tensors),
            "constants": bool(bound.constants),
            "keyed": self.needs_keys,
            "device": self.write.names_device,
            "deferring": bool(self.put_off.nodes),
        }
        further = ("keyed", "device", "deferring")
        lines += [f"self.{name} = {name}" for name in further if wanted[name]]
        if not lines:
            return
        with out.block(f"def __init__({', '.join(['self', *filter(wanted.get, wanted)])}):"):
            for line in lines:
                out.line(line)
        out.line()


def _keeps_in(module: torch.fx.Node, step: Step) -> bool:
    """Whether a step uses a module for nothing but to keep something in it."""
    if isinstance(step, ModuleCall):
        return False
    stores = step.target in (ops.set_attribute, ops.register_buffer)
    return stores and step.args[0] is module and module not in step.args[1:]


def _path_in(model: torch.nn.Module | None, module: torch.nn.Module) -> str | None:
    """The path of a module that is handed to another one, so that it is bound like one called."""
    modules = () if model is None else model.named_modules()
    return next((path for path, found in modules if found is module), None)
