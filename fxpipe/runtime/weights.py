"""What a stage is bound to: the user's modules, parameters, buffers and constants.

A stage reads the user's own objects, with two exceptions. Modules that hold something to be swapped
(`fxpipe.runtime.swaps`) are called through shells. And a parameter that several stages read is, in
each of them, a leaf of its own (`fxpipe.runtime.leaves`).

A second copy of a stage shares nothing but memory: it calls all modules through shells of its own and
reads leaves in place of all parameters, and of buffers where it is on another device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from fxpipe.generators import Generators
from fxpipe.held import generators_in
from fxpipe.ir.stage import StageProgram
from fxpipe.runtime.attributes import StageAttributes
from fxpipe.runtime.batch_norm import StageNorms, Statistics, can_defer
from fxpipe.runtime.keyed import KeyedMode
from fxpipe.runtime.leaves import NO_LEAVES, Leaves, leaf_for, leaf_of
from fxpipe.runtime.recompute import ChangedBuffers, Found
from fxpipe.runtime.rng import StageKeys, one_at_a_time
from fxpipe.runtime.shells import Shells, Swap
from fxpipe.runtime.split_swaps import weight_swaps
from fxpipe.runtime.swaps import random_swaps
from fxpipe.runtime.weight_pass import Deferring
from fxpipe.runtime.weight_queue import WeightQueue

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

Load: TypeAlias = Callable[[StageProgram, Mapping[str, Any]], Any]
"""`fxpipe.codegen.load.load`: a program and its bindings → an object with a ``forward``."""


class StageWeights:
    """Everything one stage is bound to.

    Attributes:
        module: the stage itself.
        changed: the buffers its forward changes.
        place: stage and rank.
        generators: those without keys that its forward may draw from: the user's own.
        attributes: where its forward leaves tensors.
        is_copy: whether the user's tensors belong to another rank, which runs the stage too.
    """

    def __init__(
        self,
        model: nn.Module,
        program: StageProgram,
        constants: Mapping[str, Any],
        load: Load,
        *,
        device: torch.device,
        tied: frozenset[Tensor] = frozenset(),
        defers_norms: bool = True,
        rank: int = 0,
        is_copy: bool = False,
    ) -> None:
        self._model = model
        self._program = program
        self._device = device
        self._tied = tied
        self.place = (program.stage, rank)
        self.is_copy = is_copy
        self._keys = StageKeys()
        self._norms = StageNorms()
        self._draws = bool(program.random) or program.needs_keys
        self._deferring = Deferring()
        self._splits = bool(program.split_layers or program.split_scopes or program.needs_deferring)
        called = [model.get_submodule(path) for path in program.called]
        holders = [model.get_submodule(program.modules[local]) for local in program.holders]
        self._deferred = _deferred_norms(called) if defers_norms else []
        self._shells = Shells(self._swaps(called, holders, device), hooks_see_users=not is_copy)
        bindings = self._bindings(constants, device)
        self.module = load(program, bindings)
        self._attributes: MutableMapping[str, Any] = self.module.__dict__
        self._tensors = {local: owner_of(model, name) for local, name in program.tensors.items()}
        names = () if is_copy else program.buffers
        self.changing = [name for name in names if not _is_trained(model, name)]
        self.modules = [] if is_copy else _buffers_of(called, holders, self._deferred)
        self.use(shared_changes([self]))
        self._leaves: Leaves = NO_LEAVES
        holding = [program.modules[local] for local in program.holders]
        self.attributes = StageAttributes(model, program.called, holding, self._shells, self.place)
        held = generators_in(called, (bindings[local] for local in program.constants))
        self.generators = Generators(held, python=program.draws_python)

    # ---- made once -------------------------------------------------------------------------------

    def _swaps(
        self, called: Sequence[nn.Module], holders: Sequence[nn.Module], device: torch.device
    ) -> dict[nn.Module, Swap]:
        swaps = {norm: Swap(self._norms.defer(norm)) for norm in self._deferred}
        swaps.update(random_swaps(self._model, self._program.random, self._keys, device))
        split = weight_swaps(self._model, self._program, self._deferring, self._current)
        for module, make in split.items():
            swaps[module] = swaps.get(module, Swap()).around(make)
        inner = [module for root in called for module in root.modules()]
        for module in dict.fromkeys([*inner, *holders]):
            shares = any(parameter in self._tied for parameter in module._parameters.values())
            if shares or self.is_copy:
                swap = swaps.get(module, Swap())
                swaps[module] = replace(swap, own_parameters=True, own_buffers=self.is_copy)
        return swaps

    def _bindings(self, constants: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
        program, model = self._program, self._model
        found: dict[str, Any] = {
            "keyed": self._keyed,
            "device": device,
            "deferring": self._deferring,
        }
        for local, path in program.modules.items():
            found[local] = self._shells.of(model.get_submodule(path))
        for local, name in program.tensors.items():
            holder, key = owner_of(model, name)
            found[local] = holder[key]
        for local, constant in program.constants.items():
            named = isinstance(constant, str) and constant in constants
            value = constants[constant] if named else constant  # type: ignore[index]
            found[local] = value.to(device) if isinstance(value, Tensor) else value
        return found

    def _current(self, name: str) -> Any:
        holder, key = owner_of(self._model, name)
        return leaf_of(self._leaves, holder[key])

    def _keyed(self, scope: str, first_draw: int) -> KeyedMode:
        return KeyedMode(self._keys.scope(scope), first_draw)

    def changed_places(
        self, names: Iterable[str]
    ) -> Iterator[list[tuple[MutableMapping[str, Any], str]]]:
        """Where the model and this stage hold buffers of these names, but for deferred statistics."""
        deferred = {id(norm._buffers) for norm in self._deferred}
        for name in names:
            holder, key = owner_of(self._model, name)
            if id(holder) not in deferred:
                here = [local for local, read in self._program.tensors.items() if read == name]
                yield [(holder, key), *((self._attributes, local) for local in here)]

    def use(self, changes: Changes) -> None:
        """Let forwards change the buffers that way: by themselves, or in turn with a sibling's."""
        self.changed = changes.buffers
        tensors = self._program.tensors.items()
        self._replaced = [local for local, name in tensors if name in changes.names]

    # ---- per step --------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take over what the user has changed since the last step."""
        for shell in self._shells:
            shell.follow()
        self._read(NO_LEAVES)
        self.attributes.begin()

    def write_back(self) -> None:
        """Give the user's modules what forwards have written on shells."""
        for shell in self._shells:
            shell.write_back()
        if self._leaves is not NO_LEAVES:
            self._read(NO_LEAVES)

    def new_leaves(self, keeps_graph: bool) -> Leaves:
        """A leaf for each tensor that others read too: with the same memory, if it is here."""
        shared = self.tensors() if self.is_copy else self._tied
        made = ((t, leaf_for(t, self._device, keeps_graph=keeps_graph)) for t in shared)
        return {tensor: leaf for tensor, leaf in made if leaf is not None} or NO_LEAVES

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers that the stage reads."""
        found: dict[Tensor, None] = {}
        for path in self._program.called:
            module = self._model.get_submodule(path)
            found.update(dict.fromkeys((*module.parameters(), *module.buffers())))
        for holder, key in self._tensors.values():
            found[holder[key]] = None
        return list(found)

    def _read(self, leaves: Leaves) -> None:
        """Let the stage read these leaves in place of their parameters."""
        self._leaves = leaves
        for shell in self._shells:
            shell.read(leaves)
        for local, (holder, key) in self._tensors.items():
            self._attributes[local] = leaf_of(leaves, holder[key])

    # ---- per micro-batch -------------------------------------------------------------------------

    def undisturbed(self) -> AbstractContextManager[None]:
        """Around `begin` and the forward after it: what it draws is not disturbed by other threads."""
        return one_at_a_time() if self._program.draws_python else nullcontext()

    def begin(self, step: Step, micro_batch: int, *, reruns: bool) -> Found | None:
        """Set keys, statistics, leaves and buffers for a forward.

        Returns:
            What `again` needs if it `reruns`, and what `in_backward` needs if buffers change; or None.
        """
        graph = step.keeps(micro_batch) and not reruns
        self._prepare(step, micro_batch, step.statistics, keeps_graph=graph)
        for local in self._replaced:
            holder, key = self._tensors[local]
            self._attributes[local] = holder[key]
        kept = reruns or (graph and self.changed.are_there)
        found = self.changed.found() if kept else None
        self.changed.fork()
        if found is not None and reruns and self.generators:
            return replace(found, random=self.generators.states())
        return found

    @contextmanager
    def again(self, step: Step, micro_batch: int, buffers: Found) -> Iterator[None]:
        """The same for running a forward again: its buffers as `begin` gave them, no new statistics."""
        random = buffers.random
        draws = nullcontext() if random is None else self.generators.replayed(random)
        with self.undisturbed(), self.changed.as_in(buffers), draws:
            self._prepare(step, micro_batch, None, keeps_graph=True)
            yield

    @contextmanager
    def in_backward(self, step: Step, micro_batch: int, buffers: Found | None) -> Iterator[None]:
        """The same for a backward: in it the user's own checkpoints run parts of the forward again."""
        self._follow_leaves(step)
        self._deferring.queue = None  # what a checkpoint runs again is not put off
        if self._draws:
            self._keys.begin_backward(step.key, micro_batch)
        if self._deferred:
            self._norms.begin(None, micro_batch)
        if buffers is None or not self.changed.are_there:
            yield
        else:
            with self.changed.as_in(buffers):
                yield

    def _prepare(
        self, step: Step, micro_batch: int, statistics: Statistics | None, *, keeps_graph: bool
    ) -> None:
        self._follow_leaves(step)
        if self._splits:
            queue = WeightQueue() if keeps_graph else None
            self._deferring.queue = queue
            step.frames[self._program.stage][micro_batch].weights_due = queue
        if self._draws:
            self._keys.begin(step.key, micro_batch, keeps_graph=keeps_graph)
        if self._deferred:
            self._norms.begin(statistics, micro_batch)

    def _follow_leaves(self, step: Step) -> None:
        leaves = step.leaves.get(self.place, NO_LEAVES)
        if leaves is not self._leaves:
            self._read(leaves)


def owner_of(model: nn.Module, name: str) -> tuple[MutableMapping[str, Any], str]:
    """The dictionary that holds a parameter or buffer of the model, and its key there.

    A name that its module does not have yet is that of a buffer which forward makes.

    Raises:
        AttributeError: if the model has no such module.
    """
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    for holder in (module._parameters, module._buffers):
        if key in holder:
            return holder, key
    return (module.__dict__ if key in module.__dict__ else module._buffers), key


def _is_trained(model: nn.Module, name: str) -> bool:
    """Whether a tensor has gradients of its own: no copy can stand for it in a forward."""
    holder, key = owner_of(model, name)
    held = holder.get(key)  # a buffer may be made by forward
    return isinstance(held, nn.Parameter) and held.requires_grad


@dataclass(frozen=True)
class Changes:
    """The buffers that some stages change, by name and where they are held."""

    names: frozenset[str]
    buffers: ChangedBuffers


def shared_changes(weights: Sequence[StageWeights]) -> Changes:
    """The buffers that forwards change that run in turn: a stage's, or those of its variants.

    Where a model decides on its data, one variant may read what another one writes.
    """
    names = dict.fromkeys(name for each in weights for name in each.changing)
    groups: dict[tuple[int, str], list[tuple[MutableMapping[str, Any], str]]] = {}
    for each in weights:
        for first, *others in each.changed_places(names):
            groups.setdefault((id(first[0]), first[1]), [first]).extend(others)
    modules = {id(buffers): buffers for each in weights for buffers in each.modules}
    return Changes(frozenset(names), ChangedBuffers(list(groups.values()), list(modules.values())))


def _buffers_of(
    called: Iterable[nn.Module], holders: Iterable[nn.Module], deferred: Sequence[nn.Module]
) -> list[MutableMapping[str, Any]]:
    """The buffers of all modules inside, but for norms whose buffers wait for the step's end.

    What is inside of a holder may be another stage's.
    """
    modules = dict.fromkeys(module for root in called for module in root.modules())
    modules.update(dict.fromkeys(holders))
    waiting = set(deferred)
    return [m._buffers for m in modules if m._buffers and m not in waiting]


def _deferred_norms(called: Iterable[nn.Module]) -> list[nn.Module]:
    found = {module: None for root in called for module in root.modules() if can_defer(module)}
    return list(found)


def tied_parameters(
    model: nn.Module, programs: Sequence[StageProgram]
) -> dict[Tensor, tuple[int, ...]]:
    """Parameters that more than one stage reads, with these stages."""
    readers: dict[Tensor, dict[int, None]] = {}
    for program in programs:
        for path in program.called:
            for parameter in model.get_submodule(path).parameters():
                readers.setdefault(parameter, {})[program.stage] = None
        for name in program.tensors.values():
            holder, key = owner_of(model, name)
            if isinstance(holder[key], nn.Parameter):
                readers.setdefault(holder[key], {})[program.stage] = None
    return {
        parameter: tuple(sorted(stages)) for parameter, stages in readers.items() if len(stages) > 1
    }
