"""A thread per rank, alive from the first step until the backend is closed or dropped."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue

import torch

from fxpipe.errors import ExecutionError, InternalError
from fxpipe.runtime.backend import RankMain, Route, Surroundings, Transport
from fxpipe.runtime.backends.inline import InlineTransport, run_in_turn
from fxpipe.runtime.backends.queues import LocalTransport, end_early_with
from fxpipe.runtime.backends.workers import Task, Worker, run_all, set_intra_op_threads, stop


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
        self._workers: list[Worker] = []
        self._intra_op: int | None = None
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._is_closed = False
        self._finalizer = weakref.finalize(self, stop, self._workers)

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
                Task(partial(copy_context().run, run), transport, done, failures) for run in runs
            ]
            local = transport if isinstance(transport, LocalTransport) else None
            if local is not None:
                local.begin()
            try:
                run_all(tasks, workers, done, transport)
            finally:
                if local is not None:
                    local.end()
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
        stop(self._workers)
        for worker in workers:
            if worker.thread is not threading.current_thread():
                worker.thread.join()

    def _forget_threads(self) -> None:
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._workers.clear()
        self._intra_op = None

    def _ready(self, ranks: int) -> Sequence[Worker]:
        """The workers, in a list of their own: another thread may close the backend meanwhile."""
        if self._is_closed:
            raise ExecutionError("this pipeline is closed: make a new one with fxpipe.compile")
        intra_op = self._threads_per_rank or max(1, torch.get_num_threads() // ranks)
        if not all(worker.thread.is_alive() for worker in self._workers):
            stop(self._workers)  # an exception was thrown into one: all begin anew
        workers = list(self._workers)
        if len(workers) >= ranks and intra_op == self._intra_op:
            return workers
        while len(workers) < ranks:
            workers.append(Worker(len(workers)))
            self._workers.append(workers[-1])
        self._intra_op = None
        set_intra_op_threads(workers, intra_op)
        self._intra_op = intra_op
        return workers


def _run_rank(main: RankMain, transport: Transport, surroundings: Surroundings) -> None:
    """Run one rank to its end; its transport waits itself."""
    end_early_with(transport if isinstance(transport, LocalTransport) else None)
    try:
        with surroundings():
            for action in main():
                raise InternalError(f"{action} was given up instead of waited for")
    finally:
        end_early_with(None)
