"""`Runtime`: a model's stages made ready to run, under any schedule.

runtime = Runtime(model, capture, programs, graph, placement, lanes, backend, load)
executable = runtime.prepare(lower(schedule, graph, placement))
batches = scatter(capture.signature, tensors, chunks)

outcome = runtime.run_step(executable, batches, loss, seed=0, step=0)

call = runtime.forward(forward_executable, batches, seed=0, step=1, keeps_graph=True)
input_grads = call.backward(backward_executable, output_grads)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from fxpipe import interrupts
from fxpipe.errors import ExecutionError, ScheduleError
from fxpipe.generators import Generators
from fxpipe.held import generators_in
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram, homes_of
from fxpipe.ir.signature import CallSignature
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.runtime.backend import Backend, Stopped
from fxpipe.runtime.call import Call
from fxpipe.runtime.copies import bring_together, require_no_hooks_on_sums
from fxpipe.runtime.instructions import Executable, micro_batches_of, prepare
from fxpipe.runtime.interpreter import run_rank
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.leaves import add_up
from fxpipe.runtime.loss import LossTask
from fxpipe.runtime.micro_batch import MicroBatches
from fxpipe.runtime.notes import note_updated
from fxpipe.runtime.outcome import Outcome, outcome_of
from fxpipe.runtime.overlaps import require_apart
from fxpipe.runtime.recompute import Recompute
from fxpipe.runtime.record import Record
from fxpipe.runtime.rng import step_key
from fxpipe.runtime.runners import Runners
from fxpipe.runtime.step import Step
from fxpipe.runtime.surroundings import CallerState
from fxpipe.runtime.updates import Updates, own_parameters
from fxpipe.runtime.values import tensors_in
from fxpipe.runtime.weights import Load

_BRIEF: Final = 150e-6
"""Seconds. Python's lock goes from thread to thread, and waking one takes some 50 µs: where actions
take less than a few times that, two threads are slower than one."""


class Runtime:
    """The stages of one situation of a model.

    Args:
        model: the user's; its parameters and buffers are moved to the devices of their stages.
        capture: the recording; its signature, constants and output specs are used.
        programs: one per stage.
        graph: the values between the stages.
        placement: stage → rank, where the user's tensors are. (Programs may run a stage on other ranks,
            too: it is copied there.)
        lanes: one per rank.
        backend: runs the ranks.
        load: `fxpipe.codegen.load.load`.
        recompute: which forwards are rerun at backward: ``"never"``, ``"except_last"``, ``"always"``.
        batch_norm: ``"deferred"`` or ``"per_micro_batch"``.
    """

    def __init__(
        self,
        model: nn.Module,
        capture: Capture,
        programs: Sequence[StageProgram],
        graph: StageGraph,
        placement: Placement,
        lanes: Sequence[Lane],
        backend: Backend,
        load: Load,
        *,
        recompute: str = "never",
        batch_norm: str = "deferred",
    ) -> None:
        self._backend = backend
        self._lanes = lanes
        self._generators = generators_in([model], capture.constants.values())
        self._runners = Runners(
            model,
            capture,
            programs,
            graph,
            placement,
            lanes,
            load,
            recompute=Recompute(recompute),
            defers_norms=batch_norm == "deferred",
        )

    @property
    def signature(self) -> CallSignature:
        """The shape of a call."""
        return self._runners.layout.signature

    def prepare(
        self, programs: Sequence[RankProgram], variants: Sequence[Runtime] | None = None
    ) -> Executable:
        """Rank programs ready to run on these stages; worth keeping.

        Args:
            programs: one per rank.
            variants: per micro-batch, the runtime whose stages it runs through, where a model decides
                on its data. They have the same placement and backend. None: this one for all.

        Raises:
            ScheduleError: if the stages cannot do what the programs say.
        """
        if variants is None:
            variants = [self] * micro_batches_of(programs)
        homes = homes_of(programs)
        return prepare(
            programs,
            [
                [
                    variant._runners.on(stage, homes.get((stage, m), owner.weights.place[1]))
                    for stage, owner in enumerate(variant._runners.owners)
                ]
                for m, variant in enumerate(variants)
            ],
        )

    def run_step(
        self,
        executable: Executable,
        batches: MicroBatches,
        loss: LossTask,
        *,
        seed: int,
        step: int,
        keep_output: bool = True,
        updates: Updates | None = None,
        then: Callable[[Outcome], None] | None = None,
    ) -> Outcome:
        """Forward, loss and backward of a batch; parameters accumulate their gradients.

        With `updates` some parameters have made the optimiser's step when this returns; the others,
        whose gradients are complete only now, are for the caller to update. If the step fails, a note
        in the exception names the stages that have been updated.

        Args:
            executable: from `prepare`, for as many micro-batches as there are.
            batches: the inputs.
            loss: what to differentiate.
            seed: base of the random numbers.
            step: number of the step; with `seed` it decides the random numbers.
            keep_output: whether the outputs are kept.
            updates: what runs the programs' updates.
            then: what is still to be done with the outcome; if it fails, the step has failed.

        Raises:
            ScheduleError: if the programs are for another number of micro-batches, update stages
                and there are no `updates`, or if a hook waits for a gradient that is added up at the
                end.
            ExecutionError: if grad mode is off.
            ValueError: if the loss is no scalar that requires grad.
        """
        keeps_graph = executable.has_backward
        if keeps_graph and not torch.is_grad_enabled():
            raise ExecutionError("a step with backward needs grad mode: it is off (torch.no_grad)")
        if executable.updates and updates is None:
            raise ScheduleError(
                "the schedule updates stages, and there is no optimiser to do it: pass optimizer= to "
                "the step, or take the updates (such as 0U) out of the schedule"
            )
        state = self._begin(
            executable, batches, seed, step, keeps_graph=keeps_graph, loss=loss, keep=keep_output
        )
        if updates is not None:
            state.updates, state.parameters = updates, own_parameters(executable.distinct)
        outcomes: list[Outcome] = []

        def note() -> None:
            outcome = outcome_of(state)
            if then is not None:
                then(outcome)
            outcomes.append(outcome)

        try:
            self.launch(executable, state, note)
            return outcomes.pop()
        except BaseException as error:
            note_updated(error, state.updated)
            raise
        finally:
            state.drop()

    def forward(
        self,
        executable: Executable,
        batches: MicroBatches,
        *,
        seed: int,
        step: int,
        keeps_graph: bool,
        then: Callable[[Call], None] | None = None,
    ) -> Call:
        """The forwards of a batch.

        Args:
            executable: forwards only.
            batches: the inputs.
            seed: base of the random numbers.
            step: number of the step; with `seed` it decides the random numbers.
            keeps_graph: whether `Call.backward` will follow.
            then: what is still to be done with the call; if it fails, the call has failed.

        Raises:
            ScheduleError: if the programs are for another number of micro-batches, or if a hook waits
                for a gradient that is added up at the end.
        """
        state = self._begin(
            executable, batches, seed, step, keeps_graph=keeps_graph, loss=None, keep=True
        )
        calls: list[Call] = []

        def note() -> None:
            call = Call(self, state)
            if then is not None:
                then(call)
            calls.append(call)

        try:
            self.launch(executable, state, note)
        except BaseException:
            state.drop()
            raise
        return calls.pop()

    def _begin(
        self,
        executable: Executable,
        batches: MicroBatches,
        seed: int,
        step: int,
        *,
        keeps_graph: bool,
        loss: LossTask | None,
        keep: bool,
    ) -> Step:
        if executable.micro_batches != batches.count:
            raise ScheduleError(
                f"the schedule is for {executable.micro_batches} micro-batches, "
                f"the batch is cut into {batches.count}"
            )
        if self._runners.written:
            require_apart(self._runners.names, batches.inputs, self._runners.written)
        leaves = executable.new_leaves(keeps_graph)
        if keeps_graph:
            require_no_hooks_on_sums(self._runners.layout.model, leaves)
        caller = CallerState.now({lane.device.type for lane in self._lanes}, grad=keeps_graph)
        return Step(
            [stages[0].layout for stages in executable.runners],
            executable.runners,
            batches.inputs,
            caller,
            leaves,
            key=step_key(seed, step),
            keeps_graph=keeps_graph,
            loss=loss,
            keeps_output=keep,
            originals=self._originals(batches),
            recomputed=executable.recomputed,
        )

    def _originals(self, batches: MicroBatches) -> dict[int, Tensor]:
        """Copies of what the micro-batches share and write into: each begins with its first values."""
        first, last = batches.inputs[0], batches.inputs[-1]
        return {
            at: first[at].detach().clone()
            for at in self._runners.written
            if batches.count > 1 and first[at] is last[at]
        }

    def launch(
        self, executable: Executable, state: Step, then: Callable[[], None] | None = None
    ) -> None:
        """Run all ranks, with the stages bound to the user's modules as they are now.

        One thread at a time: others come before the stages are bound, or after everything has been
        given back to the user's modules. Buffers get their last values when nothing can fail any more;
        in between, Ctrl-C waits.

        Args:
            executable: the programs.
            state: of the step.
            then: what is still to be done; if it fails, the step has failed.
        """
        with (
            interrupts.held() as interrupt,
            self._backend.turn,
            self._undrawn_if_it_fails(executable),
        ):
            executable.bind()
            succeeded = False
            try:
                with interrupt.allowed():
                    self._run_ranks(executable, state)
                    self._gather(executable, state)
                    if then is not None:
                        then()
                succeeded = True
            finally:
                executable.release(keep=succeeded)
            state.statistics.commit()

    def _undrawn_if_it_fails(self, executable: Executable) -> AbstractContextManager[None]:
        python = any(runner.program.draws_python for runner in executable.distinct)
        return Generators(self._generators, python=python).as_before_if_it_fails()

    def _gather(self, executable: Executable, state: Step) -> None:
        """Add up what the stages, and copies of them, have each for themselves."""
        if executable.has_backward and not state.inputs_only:
            add_up(state.leaves.values())
        last, first = executable.devices(-1), executable.devices(0)
        if len(set(last)) > 1 or len(set(first)) > 1:
            bring_together(state, last[0], first[0])

    def _run_ranks(self, executable: Executable, state: Step) -> None:
        brief = executable.pace.brief
        state.transport = self._backend.transport(executable.routes, brief=brief)
        state.record = Record(len(executable.ranks))
        mains = [partial(run_rank, r, ran, state) for r, ran in enumerate(executable.ranks)]
        waits = [lane for lane in self._lanes if not lane.is_synchronous]
        given = tensors_in(state.given()) if waits else []
        for lane in waits:
            lane.begin(given)
        try:
            self._backend.launch(mains, state.transport, state.caller.enter)
        except Stopped as stopped:
            raise stopped.error from None
        finally:
            for lane in waits:
                lane.finish(state.handed_out())
        executable.pace.brief = not waits and state.record.shortest() < _BRIEF
