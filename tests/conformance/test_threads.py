"""Worker threads: how many intra-op threads they use, when they end, what a fork does to them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from fxpipe.errors import ExecutionError
from fxpipe.runtime.backends.local import LocalBackend
from tests.conformance.harness import Rig, build, loss_task
from tests.conformance.networks import Chain
from tests.conformance.test_step import mean_square, vectors

ROOT = Path(__file__).parents[2]


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("fxpipe-rank-")}


def wait_until_ended(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)


def in_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize(("told", "callers", "each"), [(3, 1, 3), (None, 4, 2), (None, 1, 1)])
def test_intra_op_threads(told: int | None, callers: int, each: int) -> None:
    """Workers get the count they are told, or a share of the caller's; nobody else notices."""
    model = Chain()
    backend = LocalBackend(threads_per_rank=told)
    rig = build(model, *vectors(8), stages=2, backend=backend)
    seen: set[int] = set()
    model.layers[0].register_forward_hook(lambda *_: seen.add(torch.get_num_threads()))
    model.layers[6].register_forward_hook(lambda *_: seen.add(torch.get_num_threads()))
    default = in_new_thread()
    torch.set_num_threads(callers)
    new = in_new_thread()
    rig.step(*vectors(8), loss_fn=mean_square)
    assert seen == {each}
    assert torch.get_num_threads() == callers
    assert in_new_thread() == new
    torch.set_num_threads(default)
    backend.close()


def test_shares_follow_the_callers_count() -> None:
    model = Chain()
    rig = build(model, *vectors(8), stages=2, backend=LocalBackend())
    seen: list[int] = []
    model.layers[0].register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    rig.step(*vectors(8), chunks=1, loss_fn=mean_square)
    torch.set_num_threads(6)
    rig.step(*vectors(8), chunks=1, loss_fn=mean_square)
    torch.set_num_threads(1)
    assert seen == [1, 3]
    rig.backend.close()


def test_close_ends_the_threads() -> None:
    before = workers()
    rig = build(Chain(), *vectors(8), stages=2, backend=LocalBackend())
    rig.step(*vectors(8), loss_fn=mean_square)
    mine = workers() - before
    assert len(mine) == 2
    assert all(thread.daemon for thread in mine)
    rig.backend.close()
    assert not any(thread.is_alive() for thread in mine)
    with pytest.raises(ExecutionError, match="closed"):
        rig.step(*vectors(8), loss_fn=mean_square)
    rig.backend.close()


def test_threads_end_with_a_dropped_pipeline() -> None:
    before = workers()
    rig: Rig | None = build(Chain(), *vectors(8), stages=2, backend=LocalBackend())
    assert rig is not None
    rig.step(*vectors(8), loss_fn=mean_square)
    mine = workers() - before
    dropped = weakref.ref(rig.runtime)
    rig = None
    gc.collect()
    assert dropped() is None
    wait_until_ended(mine)


def test_steps_from_two_threads_of_the_caller() -> None:
    """They take turns."""
    model = Chain()
    rig = build(model, *vectors(8), stages=2, backend=LocalBackend())
    calls = [rig.forward(*vectors(8), keeps_graph=False).outputs for _ in range(1)]
    found: list[bool] = []

    def run() -> None:
        for _ in range(5):
            outputs = rig.forward(*vectors(8), keeps_graph=False).outputs
            found.append(all(map(torch.equal, outputs[3], calls[0][3])))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [True] * 15
    rig.backend.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.multiprocess
def test_a_forked_child_starts_its_own_threads() -> None:
    script = """
        import os, sys, torch
        from tests.conformance.harness import build
        from tests.conformance.networks import Chain
        from tests.conformance.test_step import mean_square, vectors
        from fxpipe.runtime.backends.local import LocalBackend
        torch.set_num_threads(1)
        rig = build(Chain(), *vectors(8), stages=2, backend=LocalBackend(1))
        first = rig.step(*vectors(8), loss_fn=mean_square).loss.item()
        child = os.fork()
        if child == 0:
            again = rig.step(*vectors(8), loss_fn=mean_square).loss.item()
            os._exit(0 if again == first else 1)
        _, status = os.waitpid(child, 0)
        again = rig.step(*vectors(8), loss_fn=mean_square).loss.item()
        sys.exit(os.waitstatus_to_exitcode(status) or again != first)
    """
    assert _run(script).returncode == 0


@pytest.mark.multiprocess
def test_ctrl_c_interrupts_a_step_and_the_next_one_works() -> None:
    script = """
        import os, signal, sys, threading, time, torch
        from torch import nn
        from tests.conformance.harness import build
        from tests.conformance.networks import Chain
        from tests.conformance.test_step import mean_square, vectors
        from fxpipe.runtime.backends.local import LocalBackend
        torch.set_num_threads(1)
        model = Chain()
        rig = build(model, *vectors(8), stages=2, backend=LocalBackend(1))
        first = rig.step(*vectors(8), loss_fn=mean_square).loss.item()
        slow = model.layers[6].register_forward_hook(lambda *_: time.sleep(0.2))
        begun = threading.Event()
        model.layers[0].register_forward_hook(lambda *_: begun.set())
        def interrupt():
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            rig.step(*vectors(64), chunks=64, loss_fn=mean_square)
        except KeyboardInterrupt:
            slow.remove()
            again = rig.step(*vectors(8), loss_fn=mean_square).loss.item()
            sys.exit(0 if again == first else 2)
        sys.exit(3)
    """
    begun = time.monotonic()
    assert _run(script).returncode == 0
    assert time.monotonic() - begun < 60


def _run(script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, timeout=120, check=False
    )


def test_brief_actions_run_on_one_worker_and_longer_ones_apart() -> None:
    batch = vectors(8)
    backend = LocalBackend(1)
    rig = build(Chain(), *batch, stages=2, backend=backend)
    executable = rig.executable("1f1b", 4)
    batches = rig.batches(batch, 4)
    names: set[str] = set()
    wait = 0.0

    def note(*_: object) -> None:
        names.add(threading.current_thread().name)
        time.sleep(wait)

    for layer in rig.model.modules():
        layer.register_forward_hook(note)

    def threads_of_a_step(brief: bool, seconds: float) -> int:
        nonlocal wait
        executable.pace.brief, wait = brief, seconds
        names.clear()
        rig.runtime.run_step(executable, batches, loss_task(batches, mean_square), seed=0, step=0)
        return len(names)

    assert threads_of_a_step(brief=True, seconds=0.001) == 1
    assert not executable.pace.brief, "the actions took longer than threads cost"
    assert threads_of_a_step(brief=False, seconds=0.001) == 2
    backend.close()
