"""A program that is interrupted at random moments of its steps; it ends with 0 if all is well.

python -m tests.conformance.interrupted BACKEND SCHEDULE RECOMPUTE TIMES
"""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch

from tests.conformance.harness import differences, state_of
from tests.conformance.test_recovery import compiled, network, step


def main(backend: str, schedule: str, recompute: str, times: int) -> None:
    torch.set_num_threads(1)
    options = {"backend": backend, "schedule": schedule, "recompute": recompute, "seed": 1}
    fresh, model = network(), network()
    with compiled(fresh, **options) as other:
        expected = step(other)
    for probe in model.probes:
        probe.register_forward_hook(lambda *_: time.sleep(2e-3))
    start = copy.deepcopy(model.state_dict())
    done = {name: buffer.clone() for name, buffer in fresh.named_buffers()}
    pipe = compiled(model, **options)
    step(pipe)
    begun = time.perf_counter()
    step(pipe)
    lasts = time.perf_counter() - begun
    draws, threads = random.Random(0), threading.active_count()
    came = 0
    for _ in range(times):
        model.load_state_dict(start)
        model.zero_grad()
        pipe.steps_done = 0
        mode = torch.get_rng_state()
        came += interrupted(lambda: step(pipe), draws.random() * lasts)
        buffers = dict(model.named_buffers())
        before = {name: start[name] for name in buffers}
        # It may come when all is done, and before the caller has been told.
        assert differences(buffers, done if pipe.steps_done else before) == [], pipe.steps_done
        assert torch.equal(torch.get_rng_state(), mode)
        assert torch.is_grad_enabled()
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
        model.load_state_dict(start)
        model.zero_grad()
        pipe.steps_done = 0
        assert torch.equal(step(pipe), expected)
        assert differences(state_of(model), state_of(fresh)) == []
        assert threading.active_count() <= threads
    assert came > 0
    pipe.close()


def interrupted(run: Callable[[], object], after: float) -> bool:
    """Run something, with Ctrl-C after so many seconds; whether it came in the middle."""
    begin = threading.Event()

    def press() -> None:
        begin.wait()
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    over = False
    try:
        begin.set()
        run()
        over = True
        thread.join()
        time.sleep(1)  # for the one that came late
    except KeyboardInterrupt:
        thread.join()
        return not over
    raise AssertionError("it never came")


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
