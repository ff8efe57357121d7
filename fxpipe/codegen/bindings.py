"""What a stage reads through ``self``: modules, parameters, buffers, constants."""

from __future__ import annotations

from fxpipe.codegen.names import ATTRIBUTES, Names


class Bindings:
    """Attributes of one stage, named in the order in which its source first asks for them."""

    def __init__(self) -> None:
        self._names = Names(ATTRIBUTES)
        self._modules: dict[str, str] = {}
        self._called: set[str] = set()
        self._tensors: dict[str, str] = {}
        self._named: dict[str, str] = {}
        self._objects: dict[int, tuple[str, object]] = {}

    def module(self, path: str, *, is_called: bool = True) -> str:
        """The expression for a module of the model; "" is the model itself.

        Args:
            path: of the module.
            is_called: whether the stage may call it; if not, it only keeps something in it.
        """
        if is_called:
            self._called.add(path)
        if path not in self._modules:
            self._modules[path] = self._names.take(path or "model")
        return f"self.{self._modules[path]}"

    def tensor(self, name: str) -> str:
        """The expression for a parameter or buffer of the model."""
        if name not in self._tensors:
            self._tensors[name] = self._names.take(name)
        return f"self.{self._tensors[name]}"

    def constant(self, name: str) -> str:
        """The expression for an entry of ``Capture.constants``."""
        if name not in self._named:
            self._named[name] = self._names.take(name.removeprefix("_fxpipe_"))
        return f"self.{self._named[name]}"

    def unwritten(self, found: object, wish: str | None = None) -> str:
        """The expression for an object that has no text; without a `wish` named by its own name."""
        if id(found) not in self._objects:
            wish = wish or getattr(found, "__name__", None)
            if not isinstance(wish, str):
                wish = type(found).__name__
            if not any(letter.isalnum() for letter in wish) or "<" in wish:  # "<lambda>"
                wish = wish.strip("<>") or "constant"
            self._objects[id(found)] = (self._names.take(wish), found)
        return f"self.{self._objects[id(found)][0]}"

    @property
    def modules(self) -> dict[str, str]:
        """Local name → path."""
        return {local: path for path, local in self._modules.items()}

    @property
    def holders(self) -> tuple[str, ...]:
        """Local names of the modules that are not called."""
        return tuple(name for path, name in self._modules.items() if path not in self._called)

    @property
    def tensors(self) -> dict[str, str]:
        """Local name → name of the parameter or buffer."""
        return {local: name for name, local in self._tensors.items()}

    @property
    def constants(self) -> dict[str, object]:
        """Local name → name in ``Capture.constants``, or the object itself."""
        named: dict[str, object] = {local: name for name, local in self._named.items()}
        return {**named, **dict(self._objects.values())}
