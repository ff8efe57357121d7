"""Code that is transformed or compiled before it runs, operators and tensors of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention

import fxpipe
from fxpipe.errors import CaptureError
from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each


class PerSample(nn.Module):
    """`vmap` of a function, of a module, with keywords and nested."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        norms = torch.vmap(lambda row: row / (row.norm() + 1))(x)
        pairs = torch.vmap(torch.vmap(torch.mul), in_dims=(0, None))(norms, norms[0, :, None].T[0])
        return torch.vmap(self.layer, randomness="same")(norms + pairs)


class Derivatives(nn.Module):
    """`grad`, `jacrev`, `jvp` and `functional_call` of torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def energy(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x)).square().sum()

    def forward(self, x: Tensor) -> Tensor:
        force = torch.func.grad(self.energy)(x)
        weights = {name: p * 0.5 for name, p in self.inner.named_parameters()}
        y = torch.func.functional_call(self.inner, weights, (x,))
        _, moved = torch.func.jvp(torch.sin, (y,), (force,))
        return y + moved


class Ensemble(nn.Module):
    """Copies of a layer with stacked weights, run by `vmap` and `functional_call`."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        weights, _ = torch.func.stack_module_state(layers)
        self.weights = nn.ParameterDict({name.replace(".", "_"): p for name, p in weights.items()})
        self.base = [nn.Linear(WIDTH, WIDTH, device="meta")]

    def one(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(self.base[0], weights, (x,))

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.one, in_dims=(0, None))(dict(self.weights), x).mean(0)


def around(middle: nn.Module) -> nn.Module:
    return nn.Sequential(Block(), middle, Block())


@torch.jit.script
def scripted_gate(x: Tensor, factor: float = 2.0) -> Tensor:
    if x.dim() > 1:
        x = x * factor
    return torch.sigmoid(x) * x


class UsesScript(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return scripted_gate(self.layer(x)) + scripted_gate(x, factor=0.5)


class ScriptedLoop(nn.Module):
    """Compiled by `torch.jit.script`, with a loop that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        steps = 0
        while bool(x.abs().max() > 0.2) and steps < 3:
            x = torch.tanh(self.layer(x)) * 0.5
            steps += 1
        return x


def traced() -> nn.Module:
    return torch.jit.trace(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), torch.randn(2, WIDTH))


def compiled() -> nn.Module:
    return torch.compile(Block(), backend="eager")


@torch.compile(backend="eager")
def compiled_function(x: Tensor) -> Tensor:
    return torch.sin(x) * 2 + x


class UsesCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return compiled_function(self.layer(x))


@torch.library.custom_op("fxpipe_tests::shift_scale", mutates_args=())
def shift_scale(x: Tensor, shift: float, scales: Sequence[float]) -> Tensor:
    return (x + shift) * sum(scales)


@shift_scale.register_fake
def _(x: Tensor, shift: float, scales: Sequence[float]) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scales = inputs[2]


def _shift_scale_backward(ctx: Any, grad: Tensor) -> Any:
    return grad * sum(ctx.scales), None, None


shift_scale.register_autograd(_shift_scale_backward, setup_context=_keep)


@torch.library.custom_op("fxpipe_tests::add_into", mutates_args=("x",))
def add_into(x: Tensor, value: float) -> None:
    x.add_(value)


class OwnOperators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        y = shift_scale(self.one(x), 0.5, [1.0, 2.0])
        table = torch.zeros(WIDTH)
        add_into(table, 0.25)
        return self.two(torch.ops.fxpipe_tests.shift_scale(y, 1.0, [0.5]) + table)


class Operators(nn.Module):
    """ATen operators called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.aten.gelu(self.one(x), approximate="tanh")
        y, _ = torch.ops.aten.max.dim(torch.stack((y, y.neg())), 0)
        return self.two(torch._C._nn.hardtanh(y, -1.0, 1.0)) + torch.special.expit(y)


def einops_layers() -> nn.Module:
    layers = pytest.importorskip("einops.layers.torch")
    return nn.Sequential(
        layers.Rearrange("b (h w) -> b h w", h=2),
        nn.Linear(4, 4),
        layers.Reduce("b h w -> b w", "mean"),
        nn.Linear(4, 4),
        layers.EinMix("b c -> b d", weight_shape="c d", bias_shape="d", c=4, d=WIDTH),
        nn.Tanh(),
    )


class Nests(nn.Module):
    """Sequences of unequal length as a nested tensor, inside of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        offsets = torch.arange(0, x.shape[0] * x.shape[1] + 1, x.shape[1])
        ragged = torch.nested.nested_tensor_from_jagged(x.flatten(0, 1), offsets)
        return torch.tanh(self.layer(ragged)).values().view(x.shape)


class Graph(nn.Module):
    """A sparse matrix among the inputs: neighbours of nodes, in no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = Block(), Block(), Block()

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = torch.sparse.mm(edges, self.one(x))
        return self.last(edges @ self.two(x))


class EinopsFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        einops = pytest.importorskip("einops")
        q, k, v = einops.rearrange(self.qkv(x), "b t (s h d) -> s b h t d", s=3, h=2)
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        mixed = einops.einsum(weights, v, "b h i j, b h j d -> b h i d")
        mixed = self.out(einops.rearrange(mixed, "b h t d -> b t (h d)"))
        extra = einops.repeat(x.mean(1), "b d -> b t d", t=x.shape[1])
        return einops.reduce(mixed + extra, "b (t two) d -> b t d", "max", two=2)


KINDS = {
    "vmap": Kind(lambda: around(PerSample()), vectors(WIDTH)),
    "derivatives": Kind(lambda: around(Derivatives()), vectors(WIDTH)),
    "an ensemble": Kind(lambda: around(Ensemble()), vectors(WIDTH)),
    "scripted functions": Kind(lambda: around(UsesScript()), vectors(WIDTH)),
    "a scripted module": Kind(lambda: around(torch.jit.script(ScriptedLoop())), vectors(WIDTH)),
    "a traced module": Kind(lambda: around(traced()), vectors(WIDTH)),
    "a compiled module": Kind(lambda: around(compiled()), vectors(WIDTH)),
    "a compiled function": Kind(lambda: around(UsesCompiled()), vectors(WIDTH)),
    "own operators": Kind(OwnOperators, vectors(WIDTH)),
    "operators by name": Kind(Operators, vectors(WIDTH)),
    "einops layers": Kind(einops_layers, vectors(WIDTH)),
    "einops functions": Kind(EinopsFunctions, vectors(4, WIDTH)),
    "nested tensors inside": Kind(lambda: around(Nests()), vectors(3, WIDTH)),
    "a graph module": Kind(
        lambda: torch.fx.symbolic_trace(nn.Sequential(Block(), Block(), Block())), vectors(WIDTH)
    ),
}


@each(KINDS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_transformed_code_is_kept_whole_or_followed(kind: Kind) -> None:
    assert_works(kind)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_sparse_inputs(layout: torch.layout, recompute: str) -> None:
    torch.manual_seed(0)
    model = Graph()
    eager = Graph()
    eager.load_state_dict(model.state_dict())
    x, edges = torch.randn(6, WIDTH), (torch.rand(6, 6) > 0.5).float()
    edges = edges.to_sparse(layout=layout)
    with fxpipe.compile(
        model,
        ["cpu"] * 2,
        chunks=1,
        threads_per_rank=1,
        costs="estimate",
        cuts=["two"],
        recompute=recompute,
    ) as pipe:
        found = pipe.step(x, edges, loss_fn=lambda output, target: output.square().mean())
    expected = eager(x, edges)
    expected.square().mean().backward()
    assert torch.equal(found.output, expected)
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_an_exported_program_is_a_module() -> None:
    """Its parameters, its dynamic batch dimension; it stays in the mode it was exported in."""
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=1, max=64)
    plain = nn.Sequential(Block(), Block(), Block()).eval()
    program = torch.export.export(
        plain, (torch.randn(4, WIDTH),), dynamic_shapes=({0: rows},), strict=False
    )
    model, twin = program.module(), plain
    with fxpipe.compile(model, ["cpu"] * 2, chunks=3, costs="estimate", threads_per_rank=1) as pipe:
        x = torch.randn(7, WIDTH)
        result = pipe.step(x, loss_fn=lambda output, target: output.square().mean())
        expected = twin(x)
        expected.square().mean().backward()
        torch.testing.assert_close(result.output, expected)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad)


class Doubled(torch.Tensor):
    """A tensor of a class of its own."""


class Logged(torch.Tensor):
    """One that handles every function, and leaves a mark on what comes out."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, Logged):
            made.last = func.__name__
        return made


class Wrapped(torch.Tensor):
    """One that handles every operator, and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrap = torch.utils._pytree.tree_map_only
        return func(*unwrap(cls, lambda t: t.inner, args), **(kwargs or {}))


def meta_tensor(x: Tensor) -> Tensor:
    return pytest.importorskip("monai.data").MetaTensor(x)


def three_blocks() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


@pytest.mark.parametrize(
    "make",
    [lambda x: x.as_subclass(Doubled), lambda x: x.as_subclass(Logged), Wrapped, meta_tensor],
    ids=["subclass", "function", "dispatch", "MetaTensor"],
)
def test_tensors_of_other_classes_as_inputs(make: Any) -> None:
    """Results are of the class, and have the bits, that they are of in eager."""
    model, eager = three_blocks(), three_blocks()
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=1, threads_per_rank=1, costs="estimate", cuts=["1"]
    ) as pipe:
        x = torch.randn(8, WIDTH)
        result, expected = pipe(make(x)), eager(make(x))
        assert type(result) is type(expected)
        assert torch.equal(
            result.detach().as_subclass(Tensor), expected.detach().as_subclass(Tensor)
        )
        expected.square().mean().backward()
        pipe.step(make(x), loss_fn=lambda output, target: output.square().mean())
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(one.grad.as_subclass(Tensor), other.grad.as_subclass(Tensor))


def nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x[:3], x[3:]], layout=torch.jagged)


def test_nested_tensors_as_inputs_are_told() -> None:
    with (
        fxpipe.compile(three_blocks(), ["cpu"] * 2, threads_per_rank=1, costs="estimate") as pipe,
        pytest.raises(fxpipe.CaptureError, match="nested tensor"),
    ):
        pipe(nested(torch.randn(8, WIDTH)))
    with pytest.raises(fxpipe.CaptureError, match="nested tensor"):
        fxpipe.trace(three_blocks(), (nested(torch.randn(8, WIDTH)),))


def test_a_pipeline_in_a_pipeline_is_told() -> None:
    inner = fxpipe.compile(three_blocks(), ["cpu"] * 2, threads_per_rank=1)
    with inner:
        for model in (nn.Sequential(Block(), inner, Block()), inner):
            with pytest.raises(fxpipe.CaptureError, match="a pipeline is a part of the model"):
                fxpipe.compile(model, ["cpu"] * 2, example_args=(torch.randn(8, WIDTH),))


def test_a_functional_twin_shares_no_state() -> None:
    """`functional_call` of the whole model is plain eager, beside a pipeline of it."""
    model = three_blocks()
    weights = {name: p.detach() * 2 for name, p in model.named_parameters()}
    with fxpipe.compile(model, ["cpu"] * 2, threads_per_rank=1, costs="estimate") as pipe:
        x = torch.randn(8, WIDTH)
        before = pipe(x)
        other = torch.func.functional_call(model, weights, (x,))
        assert not torch.equal(before, other)
        assert torch.equal(pipe(x), before)
    assert F.mse_loss(before, model(x)) < 1e-10


# ---- operators that take functions ---------------------------------------------------------------


class Attends(nn.Module):
    """FlexAttention, which computes no gradients on CPUs, under a mask that is made outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        q = self.layer(x).unsqueeze(1)
        found: Tensor = flex_attention.flex_attention(q, q, q, block_mask=mask)
        return x + found.squeeze(1)


class AttendsToDocuments(nn.Module):
    """The same under a mask that is made from an input."""

    def __init__(self) -> None:
        super().__init__()
        self.attends = Attends()

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        rows, length = documents.shape
        mask = flex_attention.create_block_mask(
            lambda b, h, q, k: documents[b, q] == documents[b, k],
            rows,
            None,
            length,
            length,
            device="cpu",
        )
        found: Tensor = self.attends(x, mask)
        return found


class Blocks(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, x: Tensor, beside: Any) -> Tensor:
        for block in self.blocks:
            x = block(x, beside)
        return x


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    mask = flex_attention.create_block_mask(causal, None, None, 128, 128, device="cpu")
    model = Blocks(Attends).requires_grad_(False)
    x = torch.randn(4, 128, 16)
    assert fxpipe.trace(model, (x, mask)).leaves == ()
    with fxpipe.compile(model, ["cpu"] * 3, chunks=2) as pipe:
        output = pipe(x, mask)
    assert torch.equal(output, torch.cat([model(part, mask) for part in x.chunk(2)]))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_under_a_mask_of_the_batch() -> None:
    model = Blocks(AttendsToDocuments).requires_grad_(False)
    with fxpipe.compile(model, ["cpu"] * 3, chunks=2) as pipe:
        for _ in range(2):
            x, documents = torch.randn(4, 128, 16), torch.randint(4, (4, 128)).sort(1).values
            parts = zip(x.chunk(2), documents.chunk(2), strict=True)
            output = pipe(x, documents)
            assert torch.equal(output, torch.cat([model(*part) for part in parts]))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_mask_with_rows_is_not_cut() -> None:
    documents = torch.randint(4, (4, 128)).sort(1).values
    whole = flex_attention.create_block_mask(
        lambda b, h, q, k: documents[b, q] == documents[b, k], 4, None, 128, 128, device="cpu"
    )
    model = Blocks(Attends).requires_grad_(False)
    with (
        fxpipe.compile(model, ["cpu"] * 2, chunks=2) as pipe,
        pytest.raises(ValueError, match="a BlockMask with rows of its own cannot be cut"),
    ):
        pipe(torch.randn(4, 128, 16), whole)


def test_functions_with_values_in_them_keep_a_module_whole() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = torch.cond(x.sum() > 0, self.one, self.two, (x,))
            return found

    model = nn.Sequential(Block(), Chooses(), Block(), Block(), Block(), Block(), Block())
    with torch.no_grad():
        (leaf,) = fxpipe.trace(model, (torch.randn(4, WIDTH),)).leaves
        assert leaf.path == "1"
        with pytest.raises(CaptureError, match="hands functions with values of their own to cond"):
            fxpipe.trace(Chooses(), (torch.randn(4, WIDTH),))
