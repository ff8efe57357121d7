from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

from fxpipe.codegen.files import write_stages
from fxpipe.codegen.generate import generate
from fxpipe.portals.edges import link
from tests.builders import build_capture, plan_at, unkeyed
from tests.unit.codegen.models import SmallUNet


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_run_by_themselves(tmp_path: Path) -> None:
    """As a user would try them: import, bind to a model, call one after the other."""
    torch.manual_seed(0)
    model = SmallUNet()
    image, weight = torch.randn(2, 1, 8, 8), torch.ones(1)
    capture = build_capture(model, image, weight)
    plan = plan_at(capture, "max_pool2d", "up2")
    programs = generate(capture, plan, link(capture, plan), model)

    paths = write_stages(programs, tmp_path / "made" / "stages")
    assert [path.name for path in paths] == ["stage_0.py", "stage_1.py", "stage_2.py"]
    first, second, third = (imported(path) for path in paths)

    held: dict[str, torch.Tensor] = {}
    torch.manual_seed(1)
    first.Stage0(model).forward(held.__setitem__, held.__getitem__, image)
    two, deep = second.Stage1(model, unkeyed).forward(held.__setitem__, held.__getitem__)
    out = third.Stage2(model).forward(held.__setitem__, held.__getitem__, weight, two, deep)

    torch.manual_seed(1)
    eager = model(image, weight)
    assert torch.equal(out[0], eager["logits"])
    assert torch.equal(out[1], eager["features"][0])
    assert torch.equal(out[2], eager["features"][1])
    assert out[3] is weight


def test_writing_again_replaces(tmp_path: Path) -> None:
    model = SmallUNet()
    capture = build_capture(model, torch.randn(2, 1, 8, 8), torch.ones(1))
    plan = plan_at(capture)
    programs = generate(capture, plan, link(capture, plan), model)
    (path,) = write_stages(programs, tmp_path)
    path.write_text("old")
    write_stages(programs, tmp_path)
    assert path.read_text() == programs[0].source
