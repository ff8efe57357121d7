"""``pack_padded_sequence`` and ``pad_packed_sequence`` as single nodes of a recording.

Both read lengths in Python, which a recording of what they call would freeze.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch.nn.utils import rnn

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder


def _copy(function: Any) -> Callable[..., Any]:
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_pack_original: Final = _copy(rnn.pack_padded_sequence)
_pad_original: Final = _copy(rnn.pad_packed_sequence)


def _pack(*args: Any, **kwargs: Any) -> Any:
    from fxpipe.capture.packing import pack

    return pack(*args, **kwargs)


def _pad(*args: Any, **kwargs: Any) -> Any:
    from fxpipe.capture.packing import pad

    return pad(*args, **kwargs)


def install() -> Callable[[], None]:
    """Put the recording versions in place; gives the function that undoes it.

    The code objects are exchanged, not the names: most models hold the functions by names of their
    own, and what stands in the graph must be the functions that anybody can import.
    """
    codes = [(f, f.__code__) for f in (rnn.pack_padded_sequence, rnn.pad_packed_sequence)]
    rnn.pack_padded_sequence.__code__ = _pack.__code__
    rnn.pad_packed_sequence.__code__ = _pad.__code__

    def undo() -> None:
        for function, code in codes:
            function.__code__ = code

    return undo


def pack(*args: Any, **kwargs: Any) -> Any:
    """``pack_padded_sequence``, recorded if this thread is recording."""
    recorder = _active()
    if recorder is None:
        return _pack_original(*args, **kwargs)
    return recorder.whole(rnn.pack_padded_sequence, _pack_original, args, kwargs, sized=True)


def pad(*args: Any, **kwargs: Any) -> Any:
    """``pad_packed_sequence``, recorded if this thread is recording.

    Without ``total_length`` the result is as long as the longest sequence.
    """
    recorder = _active()
    if recorder is None:
        return _pad_original(*args, **kwargs)
    total_length = args[3] if len(args) > 3 else kwargs.get("total_length")
    batch_first = args[1] if len(args) > 1 else kwargs.get("batch_first", False)
    sized = total_length is None
    dims = (int(bool(batch_first)),) if sized else ()
    return recorder.whole(rnn.pad_packed_sequence, _pad_original, args, kwargs, sized, dims)


def _active() -> Recorder | None:
    from fxpipe.capture import patches

    return patches.active()
