"""What torch keeps of a backward that has failed."""

from __future__ import annotations

import threading

import torch
from torch import Tensor


def forget_unfinished() -> None:
    """Let go of the nodes that a failed backward of this thread had still to run, with their graphs.

    They stay in the queue of torch's engine, where a later backward of the thread comes upon them and
    throws them away. It runs what was made last first, so a node that comes last must be the oldest:
    one made on a new thread, whose count of nodes begins at zero.
    """
    made: list[tuple[Tensor, Tensor]] = []

    def make() -> None:
        leaf = torch.zeros((), requires_grad=True)
        made.append((leaf, leaf * 1))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    for leaf, root in made:
        torch.autograd.grad(root, leaf)
