"""`load`: a stage's source becomes an object that computes."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from fxpipe.errors import CodegenError
from fxpipe.ir.stage import StageProgram


class StageModule(Protocol):
    """One stage, bound to its modules, parameters and constants."""

    def forward(
        self, stash: Callable[[str, Any], None], pop: Callable[[str], Any], *inputs: Any
    ) -> tuple[Any, ...]:
        """The values of ``StageProgram.outputs`` for those of ``StageProgram.inputs``."""
        ...


def load(program: StageProgram, bindings: Mapping[str, Any]) -> StageModule:
    """The stage of a program, each local name bound to its object.

    Tracebacks and debuggers show the source, under the name that `file_name` gives.

    Args:
        program: the stage.
        bindings: local name → object, for every name in ``program.modules``, ``program.tensors`` and
            ``program.constants``; ``"keyed"`` where ``program.needs_keys``, ``"device"`` where
            ``program.needs_device``, ``"deferring"`` where ``program.needs_deferring``.

    Raises:
        CodegenError: if a binding is missing, or the source does not compile or define its class.
    """
    wanted = needed(program)
    missing = [name for name in wanted if name not in bindings]
    if missing:
        raise CodegenError(f"stage {program.stage} is not bound to {', '.join(missing)}")
    made = cast(Any, _class_of(program))
    stage = made.__new__(made)
    for name in wanted:
        setattr(stage, name, bindings[name])
    return cast(StageModule, stage)


def needed(program: StageProgram) -> tuple[str, ...]:
    """The names that `load` binds."""
    further = {
        "keyed": program.needs_keys,
        "device": program.needs_device,
        "deferring": program.needs_deferring,
    }
    names = (*program.modules, *program.tensors, *program.constants)
    return (*names, *(name for name, wanted in further.items() if wanted))


def file_name(program: StageProgram) -> str:
    """The name of a program's source in tracebacks; equal sources share it."""
    digest = hashlib.sha256(program.source.encode()).hexdigest()[:8]
    return f"<fxpipe stage_{program.stage}.py {digest}>"


def _class_of(program: StageProgram) -> object:
    name = file_name(program)
    try:
        code = compile(program.source, name, "exec")
    except SyntaxError as error:
        raise CodegenError(
            f"the source of stage {program.stage} does not compile: {error}"
        ) from error
    # Without a time of last change, linecache keeps the lines although there is no such file.
    lines = program.source.splitlines(keepends=True)
    linecache.cache[name] = (len(program.source), None, lines, name)
    module: dict[str, Any] = {"__name__": f"fxpipe.stages.stage_{program.stage}"}
    exec(code, module)
    if not isinstance(module.get(program.class_name), type):
        raise CodegenError(
            f"the source of stage {program.stage} defines no class {program.class_name}"
        )
    return module[program.class_name]
