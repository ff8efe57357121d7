"""Models larger than this machine's memory: nothing of them gets data on the way to stage sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.capture import STAGES
from benchmarks.large_models import CONFIGS, LIMIT_BYTES, in_fresh_process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "fewest_nodes"), [("Llama 7B", 6.7e9, 1500), ("Llama 70B", 68e9, 4000)]
)
def test_a_llama_on_the_meta_device_becomes_stages(
    name: str, parameters: float, fewest_nodes: int, tmp_path: Path
) -> None:
    run = in_fresh_process(CONFIGS[name], str(tmp_path))
    assert run.parameters > parameters
    assert run.line.nodes > fewest_nodes
    assert run.devices == {"meta"}
    assert run.grown < LIMIT_BYTES
    sources = sorted(tmp_path.glob("stage_*.py"))
    assert [path.name for path in sources] == [f"stage_{stage}.py" for stage in range(STAGES)]
    for stage, path in enumerate(sources):
        text = path.read_text()
        compile(text, str(path), "exec")
        assert f"class Stage{stage}" in text
        assert text.count("layers_") >= CONFIGS[name]["num_hidden_layers"] // STAGES - 1
