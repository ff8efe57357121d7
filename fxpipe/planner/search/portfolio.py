"""All candidates of a search: those with names, those made to measure, those made better."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Final, TypeAlias

from fxpipe.analysis.progress import Step
from fxpipe.planner.search.bounds import lower_bound
from fxpipe.planner.search.climb import Climb
from fxpipe.planner.search.frugal import excess, in_turn, most_frugal
from fxpipe.planner.search.ideas import Idea, ideas, work
from fxpipe.planner.search.joining import joined
from fxpipe.planner.search.named import named, placed, recomputing
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.planner.search.refilling import FILLS, refilled
from fxpipe.planner.search.space import Candidate, Space

_Turn: TypeAlias = tuple[Problem, Idea]
"""A problem, and what to try on it."""

_CLOSE: Final = 1e-9
_NAMED: Final = 0.3
_REFILLING: Final = 0.4
_REHEARSING: Final = 0.5
_EXPLORING: Final = 0.7
"""Shares of the time after which schedules with names are no longer varied, weight halves no longer
put elsewhere, and ideas no longer rehearsed or carried out."""
_LARGE: Final = 2048
"""Stages × micro-batches of a cut beyond which schedules with names have to be in time, too."""
_POOR: Final = 2.0
_PATIENCE: Final = 3.0
"""By how much the best may be longer than its busiest rank's work, and else how many times the time
there is for schedules with names."""
_REFILL: Final = "refilled"
_REFILLED: Final = 6
"""In how many candidates weight halves are put where a rank waits."""
_CARRIED_OUT: Final = 12
"""How many of the rehearsed ideas are carried out."""
_STARTS: Final = 4
"""From how many candidates local search starts."""


class Portfolio:
    """The candidates of a search.

    Attributes:
        best: the best that keeps to the limits; None if there is none.
        least: what leaves most room under the limits, if there are limits.
        bound: seconds that no candidate on the cuts and placements that were looked at undercuts.
    """

    def __init__(self, space: Space, seconds: float, steps: int, random: Random) -> None:
        self._space = space
        self._begun = time.monotonic()
        self._seconds = seconds
        self._steps = steps
        self._random = random
        self._of: dict[tuple[str, Problem], Candidate] = {}
        self._bounds: dict[Problem, float] = {}
        self._looked_at: list[Cut] = []
        self.best: Candidate | None = None
        self.least: Candidate | None = None
        self.bound = math.inf

    @property
    def found(self) -> list[Candidate]:
        """Of every source and problem the best candidate, in order; those that keep too much last."""
        return sorted(self._of.values(), key=_standing)

    def not_above_the_named(self) -> Candidate | None:
        """The best; where it has the last digit of its time from rounding, the best with a name."""
        best = self.best
        named = next((one for one in self.found if one.named and one.fits), None)
        if best is None or named is None:
            return best
        return named if named.score.makespan < best.score.makespan else best

    def search(self, step: Step) -> None:
        """Everything there is time for, the schedules with names in any case unless steps are large.

        Nothing where no order keeps to the limits.
        """
        space = self._space
        if not self._may_fit():
            return
        for cut in space.cuts:
            if self._looked_at and self._ends_names(cut):
                break
            self._looked_at.append(cut)
            self._name(cut, step)
        self._recompute(step)
        self._place(step)
        problems = space.problems(self._looked_at)
        wished = [one for one in problems if not one.placement.replicas]
        again = list(self._recomputing(wished))
        known = [candidate.problem for candidate in self._of.values()]
        for problem in dict.fromkeys([*wished, *again, *known]):
            self._bounds[problem] = lower_bound(problem, split=space.split)
        self.bound = min(
            lower_bound(problem, split=space.split, recompute=space.recompute)
            for problem in self._bounds
            if not problem.recomputed
        )
        self._refill(step, _REFILLING)
        self._explore(wished, again, step)
        self._refill(step, _EXPLORING)
        self._improve(step)

    def _may_fit(self) -> bool:
        """Whether anything can keep to the limits; if they are finite, something that does is found."""
        if any(map(math.isfinite, self._space.limits)):
            self.least = most_frugal(self._space)
        if self.least is None:
            return True
        first = in_turn(self._space, self.least) if excess(self.least)[0] <= 0 else None
        if first is not None:
            self._add(first)
        return first is not None

    def _name(self, cut: Cut, step: Step) -> None:
        """Schedules with names on a cut."""
        for candidate in named(self._space, cut):
            self._add(candidate)
            step()
            if self._ends_names(cut):
                return

    def _ends_names(self, cut: Cut) -> bool:
        """Whether no more schedules with names are tried: the cut is large, and time is over.

        Later where what there is takes much longer than the work: it is hardly worth showing.
        """
        best, count = self.best, self._space.micro_batches
        if best is None or cut.num_stages * count <= _LARGE:
            return False
        is_poor = best.score.makespan > _POOR * count * work(best.problem)
        return self._late(_PATIENCE if is_poor else 1.0)

    def _place(self, step: Step) -> None:
        """Schedules with names on other placements than their own."""
        for cut in self._looked_at:
            for placement in self._space.placements_of(cut):
                source = placed(self._space, cut, placement)
                while not self._late(_NAMED) and (candidate := next(source, None)) is not None:
                    self._add(candidate)
                    step()

    def _recompute(self, step: Step) -> None:
        """What keeps too much, with recomputation: the fastest first, as long as they are faster."""
        for candidate in sorted(self._of.values(), key=lambda one: one.rank):
            slower = self.best is not None and self.best.rank < candidate.rank
            if slower or self._late(_NAMED):
                return
            again = None if candidate.fits else recomputing(self._space, candidate)
            if again is not None:
                self._add(again)
            step()

    def _refill(self, step: Step, share: float) -> None:
        """The best with split backwards, their weight halves where these costs leave gaps."""
        splitting = (
            one for one in self.found if one.fits and one.splits and _REFILL not in one.name
        )
        for candidate in list(islice(splitting, _REFILLED)):
            for fill in FILLS:
                if self._late(share) or self._settled(candidate.problem):
                    break
                orders = refilled(candidate.problem, candidate.orders, fill)
                step()
                if orders is not None:
                    score = candidate.problem.score(orders)
                    name = f"{candidate.name}, {_REFILL}"
                    self._add(Candidate(name, candidate.problem, orders, score))

    def _recomputing(self, problems: Sequence[Problem]) -> Iterator[Problem]:
        """Where memory is limited, every problem with all recomputed that saves memory."""
        if any(map(math.isfinite, self._space.limits)):
            for problem in problems:
                cut = problem.cut
                stages = self._space.saves(range(cut.num_stages), cut)
                if stages:
                    yield self._space.problem(cut, problem.placement, stages)

    def _explore(self, usual: Sequence[Problem], again: Sequence[Problem], step: Step) -> None:
        """New candidates: ideas are rehearsed with few micro-batches, the best carried out with all.

        Where nothing is recomputed there is one idea of each problem in turn, and between these rounds
        one idea where something is.
        """
        rehearsed: list[tuple[float, int, Problem, Idea]] = []
        few = min(self._space.micro_batches, 2 * self._space.ranks)
        for problem, idea in _mixed(self._turns(usual), self._turns(again), max(1, len(usual))):
            if self._late(_REHEARSING):
                break
            made = idea(self._space.smaller(problem, few))
            step()
            if made is not None and made.fits and not math.isinf(made.score.makespan):
                if made.problem is problem:
                    self._add(made)
                else:
                    rehearsed.append((made.score.makespan, len(rehearsed), problem, idea))
        for _, _, problem, idea in sorted(rehearsed, key=lambda one: one[:2])[:_CARRIED_OUT]:
            if self._late(_EXPLORING):
                return
            made = idea(problem)
            step()
            if made is not None:
                self._add(made)

    def _turns(self, problems: Sequence[Problem]) -> Iterator[_Turn]:
        """Ideas, one of each problem in turn, as long as something better can come of it."""
        ordered = sorted(problems, key=lambda problem: self._bounds[problem])
        sources = {problem: ideas(self._space, problem) for problem in ordered}
        while sources:
            for problem in list(sources):
                idea = next(sources[problem], None)
                if idea is None or self._settled(problem):
                    del sources[problem]
                else:
                    yield problem, idea

    def _settled(self, problem: Problem) -> bool:
        """Whether nothing better can come of a problem."""
        best = self.best
        return best is not None and best.score.makespan <= self._bounds[problem] * (1.0 + _CLOSE)

    def _late(self, share: float) -> bool:
        """Whether a share of the time is over and there is something to show."""
        passed = time.monotonic() - self._begun
        return passed > share * self._seconds and self.best is not None

    def _add(self, candidate: Candidate) -> None:
        key = candidate.name, candidate.problem
        known = self._of.get(key)
        if known is None or _standing(candidate) < _standing(known):
            self._of[key] = candidate
        if candidate.fits and (self.best is None or candidate.rank < self.best.rank):
            self.best = candidate

    def _improve(self, step: Step) -> None:
        """Local search from the best of several problems, then backwards in one piece.

        Where there are fewer problems than starts, from the next best of them, too.
        """
        fitting = [candidate for candidate in self.found if candidate.fits]
        firsts: dict[Problem, Candidate] = {}
        for candidate in fitting:
            firsts.setdefault(candidate.problem, candidate)
        others = [one for one in fitting if firsts[one.problem] is not one]
        chosen = [*firsts.values(), *others][:_STARTS]
        for at, start in enumerate(chosen):
            if not self._settled(start.problem):
                share = _EXPLORING + (1.0 - _EXPLORING) * (at + 1) / len(chosen)
                self._climb(start, share, step)
        if self.best is not None:
            self._add(joined(self.best, lambda: self._late(1.0)))

    def _climb(self, start: Candidate, share: float, step: Step) -> None:
        climb = Climb(start.problem, start.orders, self._random, self._steps)
        lowest = self._bounds[start.problem] * (1.0 + _CLOSE)
        while not climb.over and climb.score.makespan > lowest and not self._late(share):
            climb.step()
            step()
        if climb.score.makespan < start.score.makespan:
            name = f"{start.name}, improved"
            self._add(Candidate(name, start.problem, climb.best, climb.score))


def _mixed(many: Iterator[_Turn], few: Iterator[_Turn], period: int) -> Iterator[_Turn]:
    """As many of the one as `period` says, one of the other, and so on; the rest when one has ended."""
    while turns := list(islice(many, period)):
        yield from turns
        yield from islice(few, 1)
    yield from few


def _standing(candidate: Candidate) -> tuple[bool, tuple[float, ...]]:
    """The less, the better; what keeps too much comes last."""
    return not candidate.fits, candidate.rank
