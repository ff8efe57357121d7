"""Device constants: what the recording put on the model's device belongs on the stage's."""

from __future__ import annotations

from typing import Any

import torch


class Home:
    """The devices a model lay on when it was recorded.

    A device that the user's code takes from a tensor (``torch.arange(n, device=x.device)``) is a
    constant of the recording. In a stage it has to be the stage's device; any other device (a table
    kept on the host of a model that is not there) stays what it is.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self.devices = {tensor.device for tensor in tensors}

    def covers(self, device: Any) -> bool:
        """Whether a ``torch.device``, or its text, is one of the model's.

        A model without parameters and buffers may lie anywhere: then every device is.
        """
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError):
            return False
        if not self.devices or found in self.devices:
            return True
        return found == torch.device(found.type) and self.covers_type(found.type)

    def covers_type(self, device_type: str) -> bool:
        """The same for a kind of device, ``"cpu"`` or ``"cuda"``."""
        return not self.devices or any(device.type == device_type for device in self.devices)
