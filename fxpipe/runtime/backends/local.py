"""A thread per rank, alive from the first step until the backend is closed or dropped."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from fxpipe import interrupts
from fxpipe.errors import ExecutionError, InternalError
from fxpipe.runtime.backend import Cancelled, RankMain, Route, Surroundings, Transport
from fxpipe.runtime.backends.inline import InlineTransport, run_in_turn

_Commands: TypeAlias = "SimpleQueue[Callable[[], None] | None]"

_POLL: Final = 0.1
"""Seconds after which whoever waits for the workers looks whether they are alive."""


class LocalTransport:
    """A queue per route. The queues belong to one step: a step that fails leaves nothing behind."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.failed = False
        self._queues: list[SimpleQueue[tuple[int | None, Any]]] = [SimpleQueue() for _ in routes]
        self._early: list[dict[int, Any]] = [{} for _ in routes]
        self._handles: list[RemovableHandle] = []

    def send(self, route: int, micro_batch: int, value: Any) -> None:
        """Put a value on its way."""
        self._queues[route].put((micro_batch, value))

    def can_receive(self, route: int, micro_batch: int) -> bool:
        """True: `receive` waits."""
        return True

    def receive(self, route: int, micro_batch: int) -> Any:
        """The value of that micro-batch, as soon as it is there.

        Raises:
            Cancelled: if another rank has failed.
        """
        early = self._early[route]
        if early and micro_batch in early:
            return early.pop(micro_batch)
        queue = self._queues[route]
        arrived, value = queue.get()
        while arrived != micro_batch:
            if arrived is None:
                queue.put((None, None))  # for whoever asks next
                raise Cancelled
            early[arrived] = value
            arrived, value = queue.get()
        return value

    def cancel(self) -> None:
        """Wake everyone who waits for a value; forwards end at their next call of a module."""
        self.failed = True
        self._handles.append(register_module_forward_pre_hook(_end_early))
        for queue in self._queues:
            queue.put((None, None))

    def end(self) -> None:
        """All ranks have ended."""
        while self._handles:
            self._handles.pop().remove()


class _Running(threading.local):
    """What the thread runs for."""

    transport: LocalTransport | None = None


_RUNNING: Final = _Running()


def _end_early(module: nn.Module, args: Any) -> None:
    """A hook before every call of a module, from a failure of a step to its end.

    Raises:
        Cancelled: on the workers of a step that has failed.
    """
    transport = _RUNNING.transport
    if transport is not None and transport.failed:
        raise Cancelled


class LocalBackend:
    """Runs each rank on a worker thread of its own; all on one where their actions are brief.

    The workers hold no reference to the backend or to what it runs, so they end with it: by `close`,
    or when it is garbage collected. In a forked child there are no threads: they are started anew.

    Args:
        threads_per_rank: intra-op threads of each worker; None: the caller's count
            (`torch.get_num_threads`) shared out among the ranks, at least one each.
    """

    def __init__(self, threads_per_rank: int | None = None) -> None:
        self._threads_per_rank = threads_per_rank
        self._workers: list[_Worker] = []
        self._intra_op: int | None = None
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._is_closed = False
        self._finalizer = weakref.finalize(self, _stop, self._workers)

    @property
    def turn(self) -> threading.RLock:
        """Held by the thread whose step is being run.

        Raises:
            ExecutionError: in a worker, which would wait for itself.
        """
        if self._process != os.getpid():
            self._forget_threads()
        if any(worker.thread is threading.current_thread() for worker in self._workers):
            raise ExecutionError(
                "a pipeline cannot be called from inside a step on the same backend: give each of "
                "them a backend of its own"
            )
        return self._turn

    def transport(
        self, routes: Sequence[Route], *, brief: bool = False
    ) -> LocalTransport | InlineTransport:
        """New, empty queues for one step; none where one worker will run all ranks in turn."""
        return InlineTransport(routes) if brief else LocalTransport(routes)

    def launch(
        self, mains: Sequence[RankMain], transport: Transport, surroundings: Surroundings
    ) -> None:
        """Run one main per rank to their ends, each on its worker.

        Raises:
            ExecutionError: if the backend is closed.
            BaseException: the first failure of a rank, when all ranks have ended.
        """
        with self.turn:
            workers = self._ready(len(mains))
            done: SimpleQueue[None] = SimpleQueue()
            failures: list[BaseException] = []
            if isinstance(transport, InlineTransport):
                runs = [partial(run_in_turn, mains, transport, surroundings)]
            else:
                runs = [partial(_run_rank, main, transport, surroundings) for main in mains]
            # Each worker in a copy of the caller's context variables: its own, as one cannot be entered
            # twice.
            tasks = [
                _Task(partial(copy_context().run, run), transport, done, failures) for run in runs
            ]
            try:
                _run_all(tasks, workers, done, transport)
            finally:
                if isinstance(transport, LocalTransport):
                    transport.end()
        if failures:
            failure = failures[0]
            failures.clear()
            try:
                raise failure
            finally:
                del failure  # the traceback holds this frame: no cycle

    def close(self) -> None:
        """End the workers."""
        self._is_closed = True
        workers = list(self._workers)
        _stop(self._workers)
        for worker in workers:
            if worker.thread is not threading.current_thread():
                worker.thread.join()

    def _forget_threads(self) -> None:
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._workers.clear()
        self._intra_op = None

    def _ready(self, ranks: int) -> Sequence[_Worker]:
        """The workers, in a list of their own: another thread may close the backend meanwhile."""
        if self._is_closed:
            raise ExecutionError("this pipeline is closed: make a new one with fxpipe.compile")
        intra_op = self._threads_per_rank or max(1, torch.get_num_threads() // ranks)
        if not all(worker.thread.is_alive() for worker in self._workers):
            _stop(self._workers)  # an exception was thrown into one: all begin anew
        workers = list(self._workers)
        if len(workers) >= ranks and intra_op == self._intra_op:
            return workers
        while len(workers) < ranks:
            workers.append(_Worker(len(workers)))
            self._workers.append(workers[-1])
        self._intra_op = None
        _set_intra_op_threads(workers, intra_op)
        self._intra_op = intra_op
        return workers


class _Worker:
    """A thread and the queue it takes its work from."""

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


def _run_rank(main: RankMain, transport: Transport, surroundings: Surroundings) -> None:
    """Run one rank to its end; its transport waits itself."""
    _RUNNING.transport = transport if isinstance(transport, LocalTransport) else None
    try:
        with surroundings():
            for action in main():
                raise InternalError(f"{action} was given up instead of waited for")
    finally:
        _RUNNING.transport = None


class _Task:
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


def _run_all(
    tasks: Sequence[_Task],
    workers: Sequence[_Worker],
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
    tasks: Sequence[_Task],
    workers: Sequence[_Worker],
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


def _give_up_dead(tasks: Sequence[_Task], workers: Sequence[_Worker]) -> bool:
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


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.commands.put(None)
    workers.clear()


def _set_intra_op_threads(workers: Sequence[_Worker], count: int) -> None:
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
