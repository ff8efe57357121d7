from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from fxpipe.errors import FormatError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.findings import Findings
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import from_json, to_json
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from tests.unit.ir import strategies


@given(strategies.plans())
def test_plans_return_equal(value: PartitionPlan) -> None:
    back = from_json(to_json(value), PartitionPlan)
    assert back == value
    assert list(back.stages) == list(value.stages)


@given(strategies.profiles)
def test_costs_return_equal(value: CostProfile) -> None:
    assert from_json(to_json(value), CostProfile) == value


@given(strategies.clusters)
def test_clusters_return_equal(value: Cluster) -> None:
    assert from_json(to_json(value), Cluster) == value


@given(strategies.schedules)
def test_schedules_return_equal(value: Schedule) -> None:
    assert from_json(to_json(value), Schedule) == value


@given(strategies.timelines)
@settings(max_examples=50)
def test_timelines_return_equal(value: Timeline) -> None:
    assert from_json(to_json(value), Timeline) == value


@given(strategies.saved_graphs())
@settings(max_examples=50)
def test_stage_graphs_return_equal(value: StageGraph) -> None:
    back = from_json(to_json(value), StageGraph)
    assert back == value
    for old, new in zip(value.edges, back.edges, strict=True):
        assert repr(new.spec) == repr(old.spec)  # 1, 1.0 and True are equal but not the same


def test_a_plan_is_readable_text() -> None:
    plan = PartitionPlan({"conv": 0, "relu": 1}, "abc", ("relu",), {"conv#0": 0})
    assert json.loads(to_json(plan)) == {
        "fxpipe": "PartitionPlan",
        "version": 1,
        "value": {
            "stages": {"conv": 0, "relu": 1},
            "fingerprint": "abc",
            "starts": ["relu"],
            "anchors": {"conv#0": 0},
        },
    }


def test_another_version_is_refused() -> None:
    text = to_json(Cluster(2)).replace('"version": 1', '"version": 99')
    with pytest.raises(FormatError, match=r"format version 99, this fxpipe reads 1"):
        from_json(text, Cluster)


def test_another_kind_is_refused() -> None:
    with pytest.raises(FormatError, match=r"holds a Cluster, not a PartitionPlan"):
        from_json(to_json(Cluster(2)), PartitionPlan)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[1, 2]", "not written by fxpipe"),
        ('{"a": 1}', "not written by fxpipe"),
        ('{"fxpipe": "Cluster", "version": 1}', "damaged"),
        ('{"fxpipe": "Cluster", "version": 1, "value": {"speeds": [1.0], "legs": 4}}', "damaged"),
        ('{"fxpipe": "Cluster", "version": 1, "value": {"ranks": 0, "speeds": [1.0]}}', "damaged"),
    ],
)
def test_what_is_no_saved_cluster_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_json(text, Cluster)


def test_a_damaged_action_is_refused() -> None:
    text = to_json(Schedule.from_text("0F0 0B0")).replace("0B0", "0X0")
    with pytest.raises(FormatError, match="0X0"):
        from_json(text, Schedule)


def test_what_is_not_saved_is_refused() -> None:
    with pytest.raises(FormatError, match="TensorSpec is not saved"):
        to_json(TensorSpec((1,), "float32"))  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="a set inside a stage graph"):
        to_json(StageGraph(1, (), (), (None,), {0: {1, 2}}))


@given(strategies.findings)
@settings(max_examples=50)
def test_findings_return_equal(value: Findings) -> None:
    assert from_json(to_json(value), Findings) == value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            {"name": "mine", "ranks": ["0F0 hello"]},
            "damaged: 'hello' is no action: expected <stage>",
        ),
        ({"name": "mine"}, "damaged: there is no 'ranks'$"),
    ],
)
def test_damage_is_told_in_words(value: dict[str, object], told: str) -> None:
    text = json.dumps({"fxpipe": "Schedule", "version": 1, "value": value})
    with pytest.raises(FormatError, match=f"this Schedule file is {told}"):
        from_json(text, Schedule)
