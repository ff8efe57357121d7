"""`estimate`: costs of every node by counting operations and bytes, without running the model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from fxpipe.analysis.grad_mode import followed
from fxpipe.analysis.meter import ACCELERATOR, CPU_CORE, Device, NominalClock
from fxpipe.analysis.metered_run import MeteredRun
from fxpipe.analysis.observe import observe_both
from fxpipe.analysis.profile import cost_profile
from fxpipe.analysis.stand_in import empty, stand_in
from fxpipe.analysis.undisturbed import undisturbed
from fxpipe.fake_model import FakeModel
from fxpipe.ir.spec import spec_bytes, tensor_specs
from fxpipe.outside_inference import outside_inference
from fxpipe.uncompiled import uncompiled

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture
    from fxpipe.ir.cost import CostProfile


def estimate(capture: Capture, model: torch.nn.Module, device: Device | None = None) -> CostProfile:
    """Costs of every node of the body, counted.

    The graph is run forward and backward on fake tensors; each operator takes the longer of its
    arithmetic and its memory traffic on a nominal device (the roofline of Williams et al., CACM 2009),
    and a moment to start.
    No memory is allocated and nothing computed, so the model may lie on the meta device. What cannot
    run without data (a node that looks at values) is counted from its sizes, two operations per
    parameter and row; a warning names such nodes.

    Args:
        capture: what to count.
        model: the module it was recorded from.
        device: the nominal device; None: `CPU_CORE` of `fxpipe.analysis.meter` if the parameters are
            on a CPU, else `ACCELERATOR`. To a plan only the ratios of its rates matter.
    """
    nominal = device or (CPU_CORE if _place(model) == "cpu" else ACCELERATOR)
    trains = followed(capture)
    guessed: dict[str, str] = {}
    clock = NominalClock(nominal)
    with (
        uncompiled(),
        outside_inference(model),
        undisturbed(model, capture.training, capture.changed_state),
        torch.set_grad_enabled(trains),
        FakeModel(model) as fakes,
        fakes.mode,
        clock,
    ):
        inputs = _fake_inputs(capture, _place(model))
        run = _FakeRun(capture, model, clock, guessed)
        full, without_weights = observe_both(capture, model, run, inputs)
    inputs_only = [without_weights] if trains and not full.failure else []
    if full.failure:  # shapes that depend on data, sparse tensors, a graph that forward has used up
        guessed[_ALL_BACKWARDS] = full.failure
        full.backward = {name: 2 * seconds for name, seconds in full.forward.items()}
    # What only takes numbers out of tensors costs next to nothing, whatever the guess.
    guessed = {
        name: why
        for name, why in guessed.items()
        if name == _ALL_BACKWARDS or spec_bytes(capture.spec(name))
    }
    if guessed:
        name, reason = next(iter(guessed.items()))
        warnings.warn(
            f"costs of {len(guessed)} nodes were guessed from their sizes, as they cannot run without "
            f"data: {', '.join(guessed)} ({name}: {reason}); measure them with fxpipe.profile",
            stacklevel=2,
        )
    return cost_profile(
        capture, model, "estimate", capture.batch_size, [full], inputs_only, full.saved
    )


_ALL_BACKWARDS: Final = "backward of all nodes"


class _FakeRun(MeteredRun):
    """A run on fake tensors; a node that fails on them is replaced by values of its recorded shapes."""

    meter: NominalClock

    def __init__(
        self,
        capture: Capture,
        model: torch.nn.Module,
        clock: NominalClock,
        guessed: dict[str, str],
    ) -> None:
        super().__init__(capture, model, clock)
        self._guessed = guessed
        self._on = _place(model)

    def evaluate(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = self.meter.flops(), self.meter.now()
        try:
            return super().evaluate(node, args, kwargs)
        except Exception as error:  # whatever user code raises on values it cannot look at
            self.meter.rewind(*before)
            if not any(True for _ in tensor_specs(node.meta.get("spec"))):
                return node.meta.get("spec")  # a number or decision: as recorded
            self._guessed.setdefault(node.name, f"{type(error).__name__}: {error}".splitlines()[0])
            return self._stand_in(node, (args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if self._on == "meta" and isinstance(value, torch.Tensor) and not value.is_meta:
            return value.to("meta")
        return value

    def _stand_in(self, node: torch.fx.Node, inputs: Any) -> Any:
        spec = node.meta.get("spec")
        whole = node.op == "call_module"
        parameters = list(self.fetch_attr(str(node.target)).parameters()) if whole else []
        made = list(tensor_specs(spec))
        rows = max((t.numel // max(t.shape[-1], 1) for t in made if t.shape), default=1)
        work = 2 * rows * sum(p.numel() for p in parameters) + sum(t.numel for t in made)
        traffic = spec_bytes(spec) + sum(p.nbytes for p in parameters)
        self.meter.add(work, traffic)
        leaves = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]
        followed = [t for t in (*parameters, *leaves) if t.requires_grad]
        return stand_in(spec, self._on, followed, lambda: self.meter.add(2 * work, 2 * traffic))


def _fake_inputs(capture: Capture, place: str) -> list[torch.Tensor]:
    specs = [leaf.spec for leaf in capture.signature.placeholders if leaf.spec is not None]
    return [empty(spec, place).requires_grad_(spec.requires_grad) for spec in specs]


def _place(model: torch.nn.Module) -> str:
    """Where fakes pretend to lie: a model's parameters must be on the same device."""
    kinds = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    return next(iter(kinds)) if len(kinds) == 1 else "cpu"
