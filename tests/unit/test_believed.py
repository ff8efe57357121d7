from __future__ import annotations

from fxpipe.believed import Believed


def known(believed: Believed, most: int = 12) -> list[int]:
    return [rows for rows in range(1, most) if rows in believed]


def test_what_lies_between_recorded_numbers_is_believed() -> None:
    assert known(Believed((2, 4))) == [2, 3, 4]


def test_without_rows_every_number_is_the_same() -> None:
    believed = Believed(None)
    believed.add(3, ())
    assert known(believed, 4) == [1, 2, 3]


def test_one_more_number_widens_the_range() -> None:
    believed = Believed((2, 4))
    believed.add(1, ())
    believed.add(7, [Believed((9, 9))])
    assert known(believed) == [1, 2, 3, 4, 5, 6, 7]


def test_a_number_of_another_recording_in_between_is_not_believed() -> None:
    believed, other = Believed((2, 4)), Believed((6, 7))
    believed.add(9, [other])
    assert known(believed) == [2, 3, 4, 9]
    believed.add(10, [other])
    assert known(believed) == [2, 3, 4, 9, 10]
    believed.add(5, [other])
    assert known(believed) == [2, 3, 4, 5, 9, 10]


def test_nothing_between_is_believed_where_numbers_are_rounded() -> None:
    believed = Believed((2, 8), (2, 4, 8))
    assert known(believed) == [2, 4, 8]
    believed.add(6, ())
    believed.add(11, ())
    assert known(believed) == [2, 4, 6, 8, 11]


def test_what_a_range_meets() -> None:
    assert Believed((2, 4)).meets((4, 9))
    assert not Believed((2, 4)).meets((5, 9))
    assert not Believed(None).meets((1, 9))
