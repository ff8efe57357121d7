"""Pipeline parallelism for unmodified PyTorch modules.

``pipe = fxpipe.compile(model, devices=["cpu", "cpu"], chunks=8)`` is the whole line; each of its steps
is a function of its own. Names are loaded on first use, so that importing a schedule loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fxpipe.analysis.estimate import estimate as estimate
    from fxpipe.analysis.profile import profile as profile
    from fxpipe.capture.trace import trace as trace
    from fxpipe.codegen.generate import generate as generate
    from fxpipe.compiler import compile as compile
    from fxpipe.errors import CaptureError as CaptureError
    from fxpipe.errors import CodegenError as CodegenError
    from fxpipe.errors import DeadlockError as DeadlockError
    from fxpipe.errors import ExecutionError as ExecutionError
    from fxpipe.errors import FormatError as FormatError
    from fxpipe.errors import FxPipeError as FxPipeError
    from fxpipe.errors import IllegalPlanError as IllegalPlanError
    from fxpipe.errors import IllegalScheduleError as IllegalScheduleError
    from fxpipe.errors import InfeasiblePlanError as InfeasiblePlanError
    from fxpipe.errors import InternalError as InternalError
    from fxpipe.errors import PartitionError as PartitionError
    from fxpipe.errors import ScheduleError as ScheduleError
    from fxpipe.errors import TransportError as TransportError
    from fxpipe.errors import UnsupportedCountsError as UnsupportedCountsError
    from fxpipe.execution import StepResult as StepResult
    from fxpipe.execution import run as run
    from fxpipe.findings.examine import examine as examine
    from fxpipe.ir.action import Compute as Compute
    from fxpipe.ir.action import Fused as Fused
    from fxpipe.ir.action import Kind as Kind
    from fxpipe.ir.action import Update as Update
    from fxpipe.ir.capture import Capture as Capture
    from fxpipe.ir.cluster import Cluster as Cluster
    from fxpipe.ir.cost import CostProfile as CostProfile
    from fxpipe.ir.cost import StageCost as StageCost
    from fxpipe.ir.findings import Findings as Findings
    from fxpipe.ir.plan import PartitionPlan as PartitionPlan
    from fxpipe.ir.plan import Placement as Placement
    from fxpipe.ir.program import RankProgram as RankProgram
    from fxpipe.ir.schedule import Schedule as Schedule
    from fxpipe.ir.serial import from_json as from_json
    from fxpipe.ir.serial import to_json as to_json
    from fxpipe.ir.split import Replicate as Replicate
    from fxpipe.ir.split import Split as Split
    from fxpipe.ir.stage import Edge as Edge
    from fxpipe.ir.stage import StageGraph as StageGraph
    from fxpipe.ir.stage import StageProgram as StageProgram
    from fxpipe.ir.timeline import Timeline as Timeline
    from fxpipe.optim.clip import clip_grad_norm_ as clip_grad_norm_
    from fxpipe.partitioners.partition import partition as partition
    from fxpipe.pipeline import Pipeline as Pipeline
    from fxpipe.planner.search.result import SearchResult as SearchResult
    from fxpipe.planner.search.search_schedule import search_schedule as search_schedule
    from fxpipe.portals.edges import link as link
    from fxpipe.schedules.lower import lower as lower
    from fxpipe.simulator.engine import simulate as simulate
    from fxpipe.viz.render import render as render

__version__ = "0.1.0"

_HOME: Final = {
    "fxpipe.compiler": ("compile",),
    "fxpipe.pipeline": ("Pipeline",),
    "fxpipe.capture.trace": ("trace",),
    "fxpipe.analysis.profile": ("profile",),
    "fxpipe.analysis.estimate": ("estimate",),
    "fxpipe.partitioners.partition": ("partition",),
    "fxpipe.portals.edges": ("link",),
    "fxpipe.codegen.generate": ("generate",),
    "fxpipe.findings.examine": ("examine",),
    "fxpipe.schedules.lower": ("lower",),
    "fxpipe.simulator.engine": ("simulate",),
    "fxpipe.planner.search.search_schedule": ("search_schedule",),
    "fxpipe.planner.search.result": ("SearchResult",),
    "fxpipe.optim.clip": ("clip_grad_norm_",),
    "fxpipe.execution": ("StepResult", "run"),
    "fxpipe.viz.render": ("render",),
    "fxpipe.ir.action": ("Compute", "Fused", "Kind", "Update"),
    "fxpipe.ir.capture": ("Capture",),
    "fxpipe.ir.cluster": ("Cluster",),
    "fxpipe.ir.cost": ("CostProfile", "StageCost"),
    "fxpipe.ir.findings": ("Findings",),
    "fxpipe.ir.plan": ("PartitionPlan", "Placement"),
    "fxpipe.ir.program": ("RankProgram",),
    "fxpipe.ir.schedule": ("Schedule",),
    "fxpipe.ir.serial": ("from_json", "to_json"),
    "fxpipe.ir.split": ("Replicate", "Split"),
    "fxpipe.ir.stage": ("Edge", "StageGraph", "StageProgram"),
    "fxpipe.ir.timeline": ("Timeline",),
    "fxpipe.errors": (
        "CaptureError",
        "CodegenError",
        "DeadlockError",
        "ExecutionError",
        "FormatError",
        "FxPipeError",
        "IllegalPlanError",
        "IllegalScheduleError",
        "InfeasiblePlanError",
        "InternalError",
        "PartitionError",
        "ScheduleError",
        "TransportError",
        "UnsupportedCountsError",
    ),
}

_MODULE_OF: Final = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'fxpipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
