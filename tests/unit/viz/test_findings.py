from __future__ import annotations

from dataclasses import replace

from fxpipe.ir.capture import LeafReport
from fxpipe.ir.findings import (
    CrossingFinding,
    Fate,
    Findings,
    GuardFinding,
    InputFinding,
    SpanFinding,
    UnitFinding,
)
from fxpipe.viz.findings import findings_text, sections

FINDINGS = Findings(
    capture="Capture of a.Model (train, real run, batch 4): 20 nodes",
    plan="",
    costs="CostProfile (estimate, batch 4)",
    num_nodes=20,
    inputs=(
        InputFinding("ids", "i64[4,8]", 0, ((1, "length"),)),
        InputFinding("table", "f32[8]", None),
        InputFinding("flag", "True", None, is_constant=True),
    ),
    spans=(
        SpanFinding("", 0, "Model", None, 20, 1.0),
        SpanFinding("block", 0, "Block", 0, 12, 0.75, reason="it reads y"),
    ),
    leaves=tuple(
        LeafReport(
            f"layers.{n}.moe",
            "a.Moe",
            "it decides",
            "moe.py:3 in forward: if x:",
            "__bool__",
            "do not",
        )
        for n in range(6)
    ),
    guards=(
        GuardFinding(
            "bool(mask.all())", "True", "block", "m.py:9 in forward: if", ("mask",), ("limit",)
        ),
    ),
    crossings=(CrossingFinding("rows", "4", "", "x.size(0)"),),
    legal_cuts=15,
    largest=UnitFinding("mul", "sub", 3, "block", 0.3, "they write"),
)

TEXT = """\
Capture of a.Model (train, real run, batch 4): 20 nodes
CostProfile (estimate, batch 4)

Inputs: 3
  input  value     micro-batches                                   other free dimensions
  -----  --------  ----------------------------------------------  ---------------------
  ids    i64[4,8]  cut along dimension 0                           1 (length)
  table  f32[8]    given whole to every micro-batch
  flag   True      a constant: another value is another recording

Module calls that were looked into: 2
  module       class  calls  nodes    cost  in a stage, if not divided
  -----------  -----  -----  -----  ------  -----------------------------
  (the model)  Model      1     20  100.0%  called
    block      Block      1     12   75.0%  written out, since it reads y

Modules that stay whole, other than layers of torch.nn: 6
  layers.0.moe, layers.1.moe, layers.2.moe … layers.5.moe (6) (Moe): it decides
    at              moe.py:3 in forward: if x:
    operation       __bool__
    for finer cuts  do not

Decisions on data (guards): 1
  bool(mask.all()) was True
    at             m.py:9 in forward: if
    module         block
    depends on     input mask, buffer limit
  A pipeline checks them ahead of every micro-batch. Where one comes out otherwise, the model is
  recorded anew for it, under the same cut; with too many different outcomes it is an error.
  fxpipe.run, which has one recording, raises a CaptureError.

Values that are no tensors and cross if a cut is made after them: 1
  value  recorded as  made in      at
  -----  -----------  -----------  ---------
  rows   4            (the model)  x.size(0)

Legal cuts: 15 of 19 positions between nodes
  Largest indivisible unit: 30.0% of the cost: mul … sub (3 nodes), in block: they write. The
  slowest stage has at least that share: however many stages there are, they are at most 3.3 times
  as fast as one device, and more than 3 cannot be even."""


def test_every_section() -> None:
    assert findings_text(FINDINGS) == TEXT


def test_what_there_is_none_of() -> None:
    nothing = Findings("Capture", "", "", 0, (), (), (), (), (), 0, None)
    assert list(sections(nothing)) == [
        "Inputs: none",
        "Modules that stay whole, other than layers of torch.nn: none",
        "Decisions on data (guards): none",
        "Values that are no tensors and cross if a cut is made after them: none",
        "Legal cuts: 0 of 0 positions between nodes",
    ]


def test_a_plan_tells_stages() -> None:
    planned = replace(
        FINDINGS,
        plan="PartitionPlan: 3 stages",
        spans=(SpanFinding("", 0, "Model", None, 20, 1.0, Fate.DIVIDED, (0, 1), "cut before x"),),
        guards=(replace(FINDINGS.guards[0], called=""),),
        crossings=(replace(FINDINGS.crossings[0], producer=0, consumers=(1, 2)),),
    )
    text = findings_text(planned)
    assert text.splitlines()[1] == "PartitionPlan: 3 stages"
    assert "in the stages\n" in text
    assert "stages 0, 1: divided, 1 starts inside" in text
    assert "the model decides by itself" in text
    assert "Values that are no tensors and cross between stages: 1" in text
    assert "x.size(0)  0 → 1, 2" in text


def test_many_crossings_are_counted() -> None:
    many = tuple(CrossingFinding(f"rows_{n}", "4", "", "x.size(0)") for n in range(23))
    text = findings_text(replace(FINDINGS, crossings=many))
    assert "cross if a cut is made after them: 23" in text
    assert "rows_19 " in text
    assert "rows_20" not in text
    assert "… and 3 more" in text


def test_without_costs_nodes_are_counted() -> None:
    assert FINDINGS.largest is not None
    bare = replace(FINDINGS, costs="", largest=replace(FINDINGS.largest, share=None))
    assert "Largest indivisible unit: 3 of 20 nodes (the costs are not known)" in findings_text(
        bare
    )


def test_a_unit_that_is_everything() -> None:
    whole = replace(FINDINGS, largest=UnitFinding("a", "a", 1, "", 1.0, "a single layer"))
    assert "at most 1.0 times as fast as one device, and more than 1 cannot be even." in " ".join(
        findings_text(whole).split()
    )
    free = replace(FINDINGS, largest=UnitFinding("a", "a", 1, "", 0.0, "a single layer"))
    assert findings_text(free).endswith("0.0% of the cost: a: a single layer.")


def test_lines_keep_to_a_hundred_columns() -> None:
    deep = ".".join(["quite_a_long_name"] * 9)
    spans = (
        SpanFinding("", 0, "Model", None, 20, 1.0),
        SpanFinding(deep, 0, "AnExtraordinarilyLongNameOfAClass" * 2, 0, 12, 0.5, reason="y " * 90),
    )
    text = findings_text(replace(FINDINGS, spans=spans, capture="word " * 60))
    assert max(map(len, text.splitlines())) <= 100
