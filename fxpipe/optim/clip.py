"""`clip_grad_norm_`: one norm over the gradients of all stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all gradients together, which are scaled in place so that it is at most `max_norm`.

    It is `torch.nn.utils.clip_grad_norm_` for parameters wherever they are: one that is given twice
    (tied, or in two parameter groups) counts once; norms are added up in the order of the parameters,
    so that the result does not depend on how stages are spread over devices; a sparse gradient has the
    norm of the dense one it stands for.

    Args:
        parameters: a pipeline or another module, or parameters, on any devices.
        max_norm: the norm that the gradients have at most, after.
        norm_type: of the p-norm; may be ``inf``.
        error_if_nonfinite: whether a norm that is no number, or infinite, is an error.
        foreach: whether the operations that take lists of tensors are used; None: yes.

    Returns:
        The norm before, on the device of the first gradient.

    Raises:
        RuntimeError: if the norm is not finite and `error_if_nonfinite` is set.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    elif isinstance(parameters, Tensor):
        parameters = [parameters]
    grads = [p.grad for p in dict.fromkeys(parameters) if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    norms = _norms(list(map(_values, grads)), float(norm_type), foreach is not False)
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([one.to(grads[0].device) for one in norms]), float(norm_type)
    )
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(
            f"the norm of the gradients is {norm.item()}: they cannot be clipped. With "
            "error_if_nonfinite=False they would be scaled all the same"
        )
    _scale(grads, (float(max_norm) / (norm + 1e-6)).clamp(max=1.0), foreach is not False)
    return norm


def _values(grad: Tensor) -> Tensor:
    """The numbers that a gradient consists of; those of a sparse one once for each place."""
    if grad.layout is torch.strided:
        return grad
    return grad.coalesce().values() if grad.layout is torch.sparse_coo else grad.values()


def _norms(tensors: Sequence[Tensor], norm_type: float, foreach: bool) -> list[Tensor]:
    """The norm of each tensor, in order."""
    if not foreach:
        return [torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors]
    found: dict[int, Tensor] = {}
    for group in _groups(tensors):
        norms = torch._foreach_norm([tensors[at] for at in group], norm_type)
        found.update(zip(group, norms, strict=True))
    return [found[at] for at in range(len(tensors))]


def _scale(grads: Sequence[Tensor], factor: Tensor, foreach: bool) -> None:
    dense = [grad for grad in grads if foreach and grad.layout is torch.strided]
    for group in _groups(dense):
        device = dense[group[0]].device
        torch._foreach_mul_([dense[at] for at in group], factor.to(device))
    for grad in grads:
        if not foreach or grad.layout is not torch.strided:
            grad.mul_(factor.to(grad.device))


def _groups(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Positions of the tensors that can be worked on together: of one device and type."""
    found: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, tensor in enumerate(tensors):
        found.setdefault((tensor.device, tensor.dtype), []).append(at)
    return list(found.values())
