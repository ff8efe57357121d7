"""Each host thread has a clock of its own, and hand-overs carry it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.hazards import Kind


@pytest.fixture
def accelerator() -> Iterator[VirtualAccelerator]:
    with VirtualAccelerator(1).watch() as virtual:
        yield virtual


def run(*bodies: Callable[[], None]) -> None:
    """Run all at once; an exception in one is raised here."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_a_queue_carries_the_clock(accelerator) -> None:
    device = accelerator.devices[0]
    first, second = accelerator.open(device), accelerator.open(device)
    handed: queue.SimpleQueue[tuple[torch.Tensor, object]] = queue.SimpleQueue()

    def make() -> None:
        with accelerator.use(first):
            made = torch.zeros(2, device=device)
        handed.put((made, accelerator.record(first)))

    def read() -> None:
        made, event = handed.get()
        accelerator.wait(second, event)
        accelerator.keep(made, second)
        with accelerator.use(second):
            made.neg()

    run(make, read)
    assert not accelerator.report


def test_an_event_that_went_another_way_races(accelerator) -> None:
    device = accelerator.devices[0]
    first, second = accelerator.open(device), accelerator.open(device)
    handed: list[object] = []
    is_there = threading.Event()

    def make() -> None:
        handed.append(accelerator.record(first))
        is_there.set()

    def wait() -> None:
        is_there.wait()
        accelerator.wait(second, handed[0])

    run(make, wait)
    assert accelerator.report.kinds == {Kind.RACING_THREADS}


def test_two_threads_on_one_stream_race(accelerator) -> None:
    device = accelerator.devices[0]
    stream = accelerator.open(device)
    barrier = threading.Barrier(2)

    def work() -> None:
        barrier.wait()
        with accelerator.use(stream):
            torch.zeros(2, device=device)

    run(work, work)
    assert accelerator.report.kinds == {Kind.RACING_THREADS}


def test_one_thread_after_another_does_not(accelerator) -> None:
    device = accelerator.devices[0]
    stream = accelerator.open(device)

    def work() -> None:
        with accelerator.use(stream):
            torch.zeros(2, device=device)

    work()
    run(work)
    run(work)
    work()
    assert not accelerator.report


def test_host_memory_of_two_threads(accelerator) -> None:
    shared = torch.zeros(2)
    barrier = threading.Barrier(2)

    def work() -> None:
        barrier.wait()
        shared.add_(1)

    run(work, work)
    assert accelerator.report.kinds == {Kind.WRITE_BEFORE_READ}


def test_what_a_thread_waited_for_only_it_knows(accelerator) -> None:
    device = accelerator.devices[0]
    stream = accelerator.open(device)
    with accelerator.use(stream):
        made = torch.zeros(2, device=device)

    run(lambda: accelerator.synchronize(stream))
    accelerator.read(made)  # joining the thread has told this one
    assert not accelerator.report

    with accelerator.use(stream):
        made.add_(1)
    barrier = threading.Barrier(2)

    def synchronise() -> None:
        accelerator.synchronize(stream)
        barrier.wait()

    thread = threading.Thread(target=synchronise)
    thread.start()
    barrier.wait()
    accelerator.read(made)
    thread.join()
    assert accelerator.report.kinds == {Kind.HOST_READ}


def test_current_streams_are_a_threads_own(accelerator) -> None:
    device = accelerator.devices[0]
    default = accelerator.current(device)
    seen: list[object] = []
    with accelerator.use(accelerator.open(device)):
        run(lambda: seen.append(accelerator.current(device)))
    assert seen == [default]


def test_threads_and_queues_are_plain_again() -> None:
    plain = (queue.SimpleQueue, threading.Thread.start, threading.Thread.run, threading.Thread.join)
    with VirtualAccelerator(1).watch():
        assert queue.SimpleQueue is not plain[0]
    assert plain == (
        queue.SimpleQueue,
        threading.Thread.start,
        threading.Thread.run,
        threading.Thread.join,
    )
