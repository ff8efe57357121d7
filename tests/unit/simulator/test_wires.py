from __future__ import annotations

from fxpipe.ir.action import Direction, Payload, Transfer
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.linear import linear
from fxpipe.simulator.wires import Wires, parcel_of


def _send(value: str, source: int, target: int, micro_batch: int = 0) -> Transfer:
    return Transfer(Direction.SEND, Payload.ACTIVATION, value, source, target, micro_batch)


def _wires(cluster: Cluster, replicas: bool = False) -> Wires:
    text = "0F0 1F1\n1F0 0F1" if replicas else "0F0\n1F0\n2F0"
    return Wires(Schedule.from_text(text).computes, cluster, linear(3, 100))


def test_both_ends_of_a_transfer_are_one_parcel() -> None:
    send = _send("x0", 0, 1)
    receive = Transfer(Direction.RECV, *parcel_of(send))
    assert parcel_of(send) == parcel_of(receive)


def test_a_link_is_busy_for_the_bytes_and_not_for_the_latency() -> None:
    wires = _wires(Cluster(3, latency=0.5, bandwidth=50.0))
    assert wires.send(0, parcel_of(_send("x0", 0, 1)), 1.0) == (1.0, 3.5)
    assert wires.send(0, parcel_of(_send("x0", 0, 1, 0)), 1.5) == (3.0, 5.5)
    assert wires.send(0, parcel_of(_send("x0", 0, 2)), 1.5) == (1.5, 4.0)


def test_without_bandwidth_only_the_latency_counts() -> None:
    wires = _wires(Cluster(3, latency=0.5))
    first = parcel_of(_send("x0", 0, 1))
    assert wires.send(0, first, 1.0) == wires.send(0, first, 1.0) == (1.0, 1.5)
    assert wires.arrivals == {first: 1.5}


def test_a_replica_receives_on_its_own_rank() -> None:
    wires = _wires(Cluster(2, bandwidth=100.0), replicas=True)
    assert wires.send(0, parcel_of(_send("x0", 0, 1, 0)), 0.0) == (0.0, 1.0)
    assert wires.send(1, parcel_of(_send("x0", 0, 1, 1)), 0.0) == (0.0, 1.0)
