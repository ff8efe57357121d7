from __future__ import annotations

import threading

import torch
from torch import nn

import fxpipe
from fxpipe.capture.alone import alone


def test_another_thread_waits_for_a_module_in_common() -> None:
    shared, other = nn.Linear(2, 2), nn.Linear(2, 2)
    order: list[str] = []
    came = threading.Event()

    def second() -> None:
        with alone([other]):
            came.set()
        with alone([shared, other]):
            order.append("second")

    thread = threading.Thread(target=second)
    with alone([shared]), alone([shared]):  # the same thread may come again
        thread.start()
        assert came.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_one_model_recorded_in_several_threads_is_left_as_it_was() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x) + layer.forward(x)
            return x

    model, x = Twice(), torch.randn(4, 4)
    before = [dict(vars(module)) for module in model.modules()]
    found: list[int] = []

    def record() -> None:
        found.append(len(fxpipe.trace(model, (x,)).body))

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [20] * 4
    assert [dict(vars(module)) for module in model.modules()] == before
