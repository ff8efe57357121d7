from __future__ import annotations

import torch
from torch import nn

from fxpipe.codegen.devices import Home


def test_the_devices_of_the_model_are_home() -> None:
    home = Home(nn.Linear(1, 1, device="meta"))
    assert home.covers("meta")
    assert home.covers(torch.device("meta"))
    assert not home.covers("cpu")
    assert home.covers_type("meta")
    assert not home.covers_type("cuda")


def test_a_kind_without_an_index_is_home_too() -> None:
    home = Home(nn.Linear(1, 1))
    home.devices = {torch.device("cuda", 1)}
    assert home.covers("cuda:1")
    assert home.covers("cuda")
    assert not home.covers("cuda:0")


def test_a_model_without_tensors_is_at_home_anywhere() -> None:
    home = Home(nn.ReLU())
    assert home.covers("cuda:3")
    assert home.covers_type("cuda")


def test_what_is_no_device() -> None:
    home = Home(nn.ReLU())
    assert not home.covers("float32")
    assert not home.covers([1])
