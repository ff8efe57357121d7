from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

CLI = Callable[..., Result]


def test_svg_and_dot_show_stages_and_portals(fxpipe: CLI) -> None:
    output = fxpipe(
        "graph",
        "tests.unit.cli.models:with_args",
        "--devices",
        "3",
        "--cuts",
        "layers.1,layers.2",
        "--out",
        "out/net",
    ).output
    assert output.count("wrote") == 2
    assert "portal relu: 0 → 1, 2" in output
    svg = Path("out/net.svg").read_text()
    texts = [t.text for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "Skip, 3 stages" in texts
    assert "layers.1" in texts
    dot = Path("out/net.dot").read_text()
    assert dot.count("subgraph cluster_") == 3
    assert dot.count("style=dashed") == 2
