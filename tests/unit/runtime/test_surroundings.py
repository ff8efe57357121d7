from __future__ import annotations

import threading

import pytest
import torch

from fxpipe.runtime.surroundings import CallerState


def on_another_thread(state: CallerState) -> tuple[bool, bool, bool, torch.dtype]:
    found: list[tuple[bool, bool, bool, torch.dtype]] = []

    def look() -> None:
        with state.enter(), state.autocast(reuses=True):
            found.append(
                (
                    torch.is_grad_enabled(),
                    torch.is_inference_mode_enabled(),
                    torch.is_autocast_enabled("cpu"),
                    torch.get_autocast_dtype("cpu"),
                )
            )

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("grad", [True, False])
def test_grad_mode(grad: bool) -> None:
    state = CallerState.now(["cpu"], grad=grad)
    assert on_another_thread(state)[:3] == (grad, False, False)


def test_inference_mode() -> None:
    with torch.inference_mode():
        state = CallerState.now(["cpu"], grad=False)
    assert on_another_thread(state)[:3] == (False, True, False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype):
        state = CallerState.now(["cpu"], grad=True)
    assert on_another_thread(state) == (True, False, True, dtype)
    assert not torch.is_autocast_enabled("cpu")


def test_default_device() -> None:
    found: list[torch.device] = []

    def look(state: CallerState) -> None:
        with state.enter():
            found.append(torch.ones(1).device)

    states = [CallerState.now(["cpu"], grad=True)]
    with torch.device("meta"):
        states.append(CallerState.now(["cpu"], grad=True))
    for state in states:
        thread = threading.Thread(target=look, args=(state,))
        thread.start()
        thread.join()
    assert [device.type for device in found] == ["cpu", "meta"]


def test_autocast_is_off_between_the_forwards_on_the_callers_own_thread() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        state = CallerState.now(["cpu"], grad=True)
        with state.enter():
            assert not torch.is_autocast_enabled("cpu")
            with state.autocast(reuses=True):
                assert torch.is_autocast_enabled("cpu")
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_casts_of_weights_are_not_kept_from_one_forward_to_the_next() -> None:
    """A graph through a kept cast would be freed by the first backward and missed by the second."""
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        state = CallerState.now(["cpu"], grad=True)
        with state.enter():
            for _ in range(2):
                with state.autocast(reuses=True):
                    loss = (layer(torch.ones(2, 4)) ** 2).sum()
                loss.backward()
    assert layer.weight.grad is not None


def test_the_callers_state_is_left_as_it_was() -> None:
    state = CallerState.now(["cpu"], grad=False)
    with state.enter():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
