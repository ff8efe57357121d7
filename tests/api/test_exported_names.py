"""The public surface: what is exported, that it can be loaded, and that it loads only what it needs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import fxpipe

EXPORTED = """
Capture CaptureError Cluster CodegenError Compute CostProfile DeadlockError Edge ExecutionError
Findings FormatError Fused FxPipeError IllegalPlanError IllegalScheduleError InfeasiblePlanError
InternalError Kind PartitionError PartitionPlan Pipeline Placement RankProgram Replicate Schedule
ScheduleError SearchResult Split StageCost StageGraph StageProgram StepResult Timeline TransportError
UnsupportedCountsError Update clip_grad_norm_ compile estimate examine from_json generate link lower
partition profile render run search_schedule simulate to_json
trace
""".split()


def test_exported_names_are_as_agreed() -> None:
    assert sorted(fxpipe.__all__) == EXPORTED


@pytest.mark.parametrize("name", EXPORTED)
def test_every_name_loads_and_is_documented(name: str) -> None:
    value = getattr(fxpipe, name)
    assert (value.__doc__ or "").strip()


def test_no_exported_name_is_a_subpackage() -> None:
    modules = {module.name for module in pkgutil.iter_modules(fxpipe.__path__)}
    assert modules & set(fxpipe.__all__) == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fxpipe.nothing  # noqa: B018


def _modules_under(package: str) -> list[str]:
    parent = __import__(package, fromlist=["__path__"])
    found = pkgutil.walk_packages(parent.__path__, prefix=f"{package}.")
    return [package, *(module.name for module in found)]


@pytest.mark.parametrize(
    "package",
    ["fxpipe.ir", "fxpipe.schedules", "fxpipe.simulator", "fxpipe.planner", "fxpipe.viz"],
)
def test_decisions_and_pictures_load_no_torch(package: str) -> None:
    modules = _modules_under(package)
    assert _loads_torch(f"import {', '.join(modules)}") is False


def test_importing_the_library_loads_no_torch() -> None:
    assert _loads_torch("import fxpipe; fxpipe.Schedule; fxpipe.lower; dir(fxpipe)") is False
    assert _loads_torch("import fxpipe; fxpipe.Pipeline") is True


def _loads_torch(code: str) -> bool:
    program = f"{code}\nimport sys\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return {"True": True, "False": False}[done.stdout.strip()]
