"""What a user can change so that a module need not stay whole, or can be recorded at all.

Each text reads on from "What to do:" and has no full stop: others are put after it.
"""

from __future__ import annotations

from typing import Final

MOVE: Final = (
    "move this part of forward into a submodule of its own (a module that cannot be looked into "
    "stays whole)"
)
"""For what happens in the model's own forward, whatever it is."""

VALUES: Final = (
    "compute with tensors where Python decides now (torch.where, a mask), or decide in a smaller "
    "submodule"
)
LOOKED_AT: Final = (
    "or, if the number is only looked at, keep the tensor (self.last = loss.detach()) and take the "
    "number out after the call"
)
"""For numbers that are taken out."""
FRACTION: Final = (
    "compute with the tensor itself (x * s instead of x * s.item()); decide on a comparison "
    "(if s > 1: instead of if s.item() > 1:); or move this part of forward into a small submodule of "
    "its own, which then stays whole"
)
SHAPES: Final = (
    "keep the shape of results fixed (a mask, torch.where or topk in place of nonzero or x[mask]), "
    "or do this in a smaller submodule"
)
TRANSFORM: Final = (
    "use batched operations in place of torch.func transforms, or call those in a smaller submodule"
)
FUNCTIONS: Final = (
    "give the functions what they need as arguments: a graph would keep what is in them"
)
COMPILED: Final = "use the function or module as it is before torch.compile or torch.jit"
GRADIENTS: Final = (
    "take gradients with torch.autograd.grad, which is recorded, in place of backward()"
)
INFERENCE: Final = "use torch.no_grad() in place of torch.inference_mode()"
RANDOM: Final = (
    "switch this off by an option of the model (layerdrop=0, apply_spec_augment=False), or draw "
    "with torch"
)
DRAWS_ANYHOW: Final = (
    "{} is off, yet a number is drawn: draw only if the option is on, or compare the number with it at "
    "once (if random.random() < self.layerdrop:), or draw with torch"
)
"""For options that are off."""
SEED: Final = (
    "seed before the call, or draw from a torch.Generator of the model's own (generator=...), or switch "
    "this off by an option of the model"
)
GENERATOR: Final = (
    "make the generator once, outside of forward, or make its numbers a buffer of the model"
)
STATE: Final = (
    "return the tensor, or keep it on the model itself, in place of keeping it on a submodule"
)
FLAG: Final = (
    "call the model once in this mode beforehand, if it does so once only; or keep what it counts in a "
    "buffer, which decisions may be made on"
)
"""For numbers and flags in attributes."""
CARRIED: Final = (
    "make a buffer of it that has a value from the beginning (self.register_buffer('state', "
    "torch.zeros(...)) in __init__; forward may replace it: self.state = ...); or move this part of "
    "forward into a small submodule of its own, which then stays whole"
)
"""For tensors that a run leaves for the next one."""
CACHED: Final = "use torch.nn.utils.parametrize.cached() in a smaller submodule"
SWAPPED: Final = (
    "compute with the tensors themselves (F.linear(x, weight)) in place of functional_call"
)
MODES: Final = (
    "set the modes before the call, or by a train() of the model's own that leaves them as they are"
)
SETTINGS: Final = "set this before the model is called, or in a smaller submodule"
FROZEN: Final = "set requires_grad before the call (or detach() and torch.no_grad() in it)"
BACKWARD_HOOKS: Final = "set the hooks on modules further inside, or on tensors"
ROWS: Final = (
    "take the same steps for every number of rows, and compute numbers from the sizes of tensors "
    "(x.shape[0])"
)
POINTER: Final = (
    "move a position that a tensor holds on as a tensor (self.pointer.copy_((self.pointer + rows) % "
    "size)), not as a number taken out of it"
)
"""For numbers that follow both rows and data."""
ITERATOR: Final = "return a list or a tuple"
META: Final = (
    "give all inputs on the meta device as well, which records without data, or load the weights "
    "first"
)
RESULT: Final = (
    "return one tensor with all rows in place of a list of them (torch.stack), or leave the list out "
    "(by an option, or by a module around the model that returns the rest)"
)
ORIGIN: Final = (
    "compute the tensor inside forward with torch functions, or make it a parameter or a buffer of "
    "the model"
)
KEYS: Final = "use strings, numbers or tuples of them as keys"
ESCAPES: Final = (
    "let the module return the tensor in place of handing it out by a hook or an attribute"
)
OBJECT: Final = "hand over tensors, or tuples, lists, dicts and dataclasses of them"
UNREGISTERED: Final = (
    "register it, as with nn.ModuleList in place of a list of modules; or, if forward makes it when it "
    "runs first, call the model once beforehand"
)
ENCLOSED: Final = (
    "hand tensors over as arguments and results of their own, or in lists, tuples, dicts and "
    "dataclasses"
)
SHARED: Final = "hand the tensor over as an argument in place of an object that both modules hold"
ARGUMENT: Final = "return what is new in place of adding it to an argument"
NESTED: Final = "use padded tensors and masks"
NO_DATA: Final = 'record a run on data (mode="real")'
FAST_PATH: Final = "switch the fast path off (enable_nested_tensor=False)"
UNWRAP: Final = "use the module inside of the wrapper"
