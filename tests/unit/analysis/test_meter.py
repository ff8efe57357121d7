import time

import pytest
import torch
from torch import nn

from fxpipe.analysis.meter import Device, NominalClock, WallClock

PLAIN = Device(flops_per_second=1e3, bytes_per_second=1e9, start=0.0)


def count(clock: NominalClock, run: object) -> tuple[int, float]:
    flops, seconds = clock.flops(), clock.now()
    assert callable(run)
    with clock:
        run()
    return clock.flops() - flops, clock.now() - seconds


def test_a_wall_clock_goes_on_and_counts_no_operations() -> None:
    clock = WallClock()
    before = clock.now()
    time.sleep(0.002)
    assert clock.now() > before
    assert clock.flops() == 0


def test_a_device_takes_the_longer_of_arithmetic_and_traffic() -> None:
    device = Device(flops_per_second=10, bytes_per_second=100, start=0.5)
    assert device.seconds(20, 100) == 2.5
    assert device.seconds(1, 300) == 3.5


def test_matrix_products_and_convolutions_are_counted_by_formula() -> None:
    a, b = torch.empty(2, 3), torch.empty(3, 5)
    assert count(NominalClock(PLAIN), lambda: a @ b) == (2 * 2 * 3 * 5, pytest.approx(0.06))
    image, conv = torch.empty(2, 3, 8, 8), nn.Conv2d(3, 4, 3, padding=1, bias=False)
    assert count(NominalClock(PLAIN), lambda: conv(image))[0] == 2 * 2 * 4 * 64 * 27


def test_attention_is_two_products_forward_and_five_backward() -> None:
    q, k, v = (torch.empty(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    clock = NominalClock(PLAIN)
    one = 2 * 2 * 4 * 6 * 6 * 8
    with clock:
        out = nn.functional.scaled_dot_product_attention(q, k, v)
    assert clock.flops() == 2 * one
    before = clock.flops()
    with clock:
        torch.autograd.grad(out, (q, k, v), torch.empty_like(out))
    assert clock.flops() - before == 5 * one


def test_a_recurrent_layer_multiplies_by_all_its_matrices() -> None:
    lstm = nn.LSTM(3, 5)
    flops, _ = count(NominalClock(PLAIN), lambda: lstm(torch.empty(7, 2, 3)))
    products = 2 * 7 * 2 * 4 * (3 * 5 + 5 * 5)
    assert products <= flops < 1.2 * products + 400


def test_elementwise_operators_cost_an_operation_per_element_and_views_nothing() -> None:
    x = torch.empty(10, 10)
    assert count(NominalClock(PLAIN), lambda: x + x)[0] == 100
    assert count(NominalClock(PLAIN), lambda: x.view(100).unsqueeze(0).t()) == (0, 0.0)


def test_every_operator_takes_a_moment_to_start() -> None:
    clock = NominalClock(Device(1e12, 1e12, start=1.0))
    x = torch.empty(2)
    assert count(clock, lambda: x.exp().sin())[1] == pytest.approx(2.0)


def test_work_can_be_added_by_hand() -> None:
    clock = NominalClock(PLAIN)
    clock.add(500, 0)
    assert (clock.flops(), clock.now()) == (500, 0.5)
