"""`ModelWrapper`: a module that has another one's parameters, buffers, names and modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from torch import Tensor, nn


class ModelWrapper(nn.Module):
    """Stands in for a model: optimisers, checkpoints and ``train()``/``eval()`` work as with it."""

    def __init__(self, model: nn.Module) -> None:
        # Set before nn.Module.__init__, which writes `training`, a property over the model's flag.
        self.__dict__["_model"] = model
        super().__init__()

    @property
    def module(self) -> nn.Module:
        """The user's model."""
        model: nn.Module = self.__dict__["_model"]
        return model

    @property
    def training(self) -> bool:
        """The model's training flag."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        """Ignored: `train` and `eval` set the model's flag."""

    def train(self, mode: bool = True) -> Self:
        """Set the model's training mode."""
        self.module.train(mode)
        return self

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's parameters under the model's names."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """The model's buffers under the model's names."""
        return self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """The model's modules under the model's names."""
        modules: Iterator[tuple[str, nn.Module]] = self.module.named_modules(*args, **kwargs)
        return modules

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The model's direct children."""
        return self.module.named_children()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The model's state, loadable into the plain model and into any other partition of it."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the model's state."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the model's part of the state of a module that holds this pipeline."""
        own = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
        try:
            found = self.module.load_state_dict(own, strict=False)
        except RuntimeError as error:
            error_msgs.append(str(error))
            return
        missing_keys += [prefix + key for key in found.missing_keys]
        unexpected_keys += [prefix + key for key in found.unexpected_keys]

    def get_submodule(self, target: str) -> nn.Module:
        """The model's submodule of that name."""
        return self.module.get_submodule(target)

    def get_parameter(self, target: str) -> nn.Parameter:
        """The model's parameter of that name."""
        return self.module.get_parameter(target)

    def get_buffer(self, target: str) -> Tensor:
        """The model's buffer of that name."""
        return self.module.get_buffer(target)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self
