"""The threads that ranks run on, step after step; and what is done if one of them fails or dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

import torch

from fxpipe import interrupts
from fxpipe.errors import ExecutionError
from fxpipe.runtime.backend import Cancelled, Transport

_Commands: TypeAlias = "SimpleQueue[Callable[[], None] | None]"

_POLL: Final = 0.1
"""Seconds after which whoever waits for the workers looks whether they are alive."""


class Worker:
    """A thread and the queue it takes its work from.

    Args:
        rank: names the thread.
    """

    def __init__(self, rank: int) -> None:
        self.commands: _Commands = SimpleQueue()
        self.thread = threading.Thread(
            target=_work, args=(self.commands,), name=f"fxpipe-rank-{rank}", daemon=True
        )
        self.thread.start()


def _work(commands: _Commands) -> None:
    """A worker's life. It holds no command while it waits for the next."""
    while (command := commands.get()) is not None:
        command()
        del command


class Task:
    """What one worker does in a step. Asked for twice, it runs once.

    Attributes:
        ended: whether it has run.
    """

    def __init__(
        self,
        run: Callable[[], None],
        transport: Transport,
        done: SimpleQueue[None],
        failures: list[BaseException],
    ) -> None:
        self.ended = False
        self._run = run
        self._cancel = transport.cancel
        self._done = done
        self._failures = failures

    def __call__(self) -> None:
        """Run to the end, note a failure, and say that it has ended."""
        if self.ended:
            return
        run, self._run = self._run, _nothing
        try:
            run()
        except Cancelled:
            pass
        except BaseException as failure:
            self._fail(failure)
        # Whoever is told that it has ended may rely on nothing being held here any longer.
        del run
        self._cancel = _nothing
        self.ended = True
        self._done.put(None)

    def give_up(self) -> None:
        """Its worker is dead: something has thrown an exception into the thread."""
        self._fail(ExecutionError("a worker thread has ended in the middle of a step"))
        self.ended = True

    def _fail(self, failure: BaseException) -> None:
        self._failures.append(failure)
        self._cancel()


def _nothing() -> None:
    """What is left to be run of a task that has ended, and what is done while it ends early."""


def run_all(
    tasks: Sequence[Task],
    workers: Sequence[Worker],
    done: SimpleQueue[None],
    transport: Transport,
) -> None:
    """Wait until all tasks have ended; an interrupt or the death of a worker makes them end early.

    What has ended is read off the tasks. Their messages wake, and order: what a rank has issued came
    before its message was taken.
    """
    try:
        for worker, task in zip(workers, tasks, strict=False):
            worker.commands.put(task)
        _await(tasks, workers, done, interrupts.check, messages=len(tasks))
    except BaseException:
        transport.cancel()
        for worker, task in zip(workers, tasks, strict=False):
            worker.commands.put(task)
        _await(tasks, workers, done, _nothing)
        raise


def _await(
    tasks: Sequence[Task],
    workers: Sequence[Worker],
    done: SimpleQueue[None],
    meanwhile: Callable[[], None],
    messages: int = 0,
) -> None:
    """Until all have ended, and so many messages are taken if no worker is dead."""
    taken = 0
    while True:
        came = _wait(done)
        taken += came
        if not came and _give_up_dead(tasks, workers):
            messages = 0
        if all(task.ended for task in tasks) and taken >= messages:
            return
        meanwhile()


def _give_up_dead(tasks: Sequence[Task], workers: Sequence[Worker]) -> bool:
    """Whether any worker is dead; its task has ended then, without a message perhaps."""
    dead = [
        task for worker, task in zip(workers, tasks, strict=False) if not worker.thread.is_alive()
    ]
    for task in dead:
        if not task.ended:
            task.give_up()
    return bool(dead)


def _wait(done: SimpleQueue[None]) -> bool:
    """Until a message comes, or for a moment; whether one came."""
    try:
        done.get(timeout=_POLL)
    except Empty:
        return False
    return True


def stop(workers: list[Worker]) -> None:
    """Let workers end when they have done what they were given; the list is empty afterwards."""
    for worker in workers:
        worker.commands.put(None)
    workers.clear()


def set_intra_op_threads(workers: Sequence[Worker], count: int) -> None:
    """Give each worker a number of intra-op threads.

    torch keeps such a number per thread, and one for threads to come, which every change sets too:
    that one is put back, from a thread that is thrown away.
    """
    for_new_threads: list[int] = []
    _in_new_thread(lambda: for_new_threads.append(torch.get_num_threads()))
    done: SimpleQueue[None] = SimpleQueue()
    for worker in workers:
        worker.commands.put(partial(_set_and_say, count, done))
    for _ in workers:
        while not _wait(done):
            if not all(worker.thread.is_alive() for worker in workers):
                raise ExecutionError("a worker thread has ended before the step began")
    _in_new_thread(lambda: torch.set_num_threads(for_new_threads[0]))


def _set_and_say(count: int, done: SimpleQueue[None]) -> None:
    torch.get_num_threads()  # a thread's first question would set its count to the common one
    torch.set_num_threads(count)
    done.put(None)


def _in_new_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
