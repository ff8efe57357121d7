"""What every test may rely on: one intra-op thread, fixed seeds, no network, reproducible Hypothesis."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

# Before torch or transformers are imported: sums depend on the thread count, and nothing is downloaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import hypothesis
import pytest

GOLDEN = Path(__file__).parent / "golden"

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
}
hypothesis.settings.register_profile("ci", derandomize=True, database=None, **_COMMON)
hypothesis.settings.register_profile("explore", max_examples=1000, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files under tests/golden"
    )


@pytest.fixture(autouse=True)
def pinned_surroundings() -> None:
    """Every test starts from the same seeds and one thread; torch is not loaded for those without it."""
    random.seed(0)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(0)
    if torch is not None:
        torch.set_num_threads(1)
        torch.manual_seed(0)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(update_golden: bool) -> Callable[[str, str], None]:
    """``golden("schedules/1f1b_3_4.txt", text)`` compares `text` with that file under tests/golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing: run pytest with --update-golden and review it"
        assert text == path.read_text(encoding="utf-8")

    return check


ONE_FAST = ("cases", "conformance", "equivalence", "kinds", "streams", "zoo")
"""Folders of whole pipelines: of every parametrized test there, the first combination is fast.

So are those of real models, ``test_models.py``, wherever they are.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks further combinations of whole pipelines slow; skips tests marked `cuda` without a device."""
    seen: set[tuple[Path, str]] = set()
    for item in items:
        if item.path.parent.name in ONE_FAST or item.path.name == "test_models.py":
            test = (item.path, getattr(item, "originalname", item.name))
            if test in seen:
                item.add_marker(pytest.mark.slow)
            elif not item.get_closest_marker("slow"):
                seen.add(test)
    _skip_without_cuda(items)


def _skip_without_cuda(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in marked:
            item.add_marker(skip)
