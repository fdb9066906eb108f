"""Where a convex cost falls to a level: never before the root, to rounding, in few looks."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.arrays import quiet
from theory.frontier.bracket import Bracket, descend


class Cost(NamedTuple):
    """A cost and its slope at some masses."""

    spent: np.ndarray
    slope: np.ndarray


# Convex, decreasing, zero at m = 1; near the root all f-divergences are like one of them.
COSTS = {
    "a parabola": lambda m: Cost((1 - m) ** 2, 2 * (1 - m)),
    "flatter than a parabola": lambda m: Cost((1 - m) ** 4, 4 * (1 - m) ** 3),
    "a parabola with a steep start": lambda m: Cost(
        (1 - m) ** 2 + 1e-3 * ((1 - m) / (m + 1e-3)) ** 2,
        2 * (1 - m) + 2e-3 * (1 - m) * (1 + 1e-3) / (m + 1e-3) ** 3,
    ),
    "a line": lambda m: Cost(1 - m, np.ones_like(m)),
    "two lines": lambda m: Cost(
        np.maximum(0.5 * (1 - m), 1 - 3 * m), np.where(0.5 * (1 - m) > 1 - 3 * m, 0.5, 3.0)
    ),
}


LOOKS = dict(zip(COSTS, (3, 12, 10, 0, 2)))  # one more than a dense grid of levels needs


def bracket_of(cost, rows):
    low, high = np.zeros((rows, 1)), np.ones((rows, 1))
    return Bracket(low, high, *cost(low), np.zeros((rows, 1)))


@pytest.mark.parametrize("name", COSTS)
@given(share=st.lists(st.floats(1e-9, 0.999), min_size=1, max_size=4))
def test_the_root_is_met_from_behind(name, share):
    cost, looks = COSTS[name], []
    start = bracket_of(cost, len(share))
    level = np.array(share)[:, None] * start.spent

    def look(mass):
        looks.append(mass)
        return cost(mass)

    with quiet():
        found = descend(look, level, start)
    spent, slope = cost(found)
    noise = 1e-14 * (level + slope)
    assert (spent <= level + noise).all()
    assert (spent + 1e-13 * slope >= level - noise).all()
    assert len(looks) <= LOOKS[name]


def test_a_line_is_not_looked_at():
    """Its tangent and its chord agree before anything is evaluated."""
    cost = COSTS["a line"]
    found = descend(lambda mass: pytest.fail("a look"), np.array([[0.25]]), bracket_of(cost, 1))
    assert found == 0.75


def test_an_upper_end_whose_cost_is_rounded_to_infinity_is_still_within_the_level():
    """Where the lower end costs infinitely much too, the upper end itself is looked at."""

    def look(mass):
        spent, slope = COSTS["a parabola"](mass)
        return Cost(np.where((mass == 0) | (mass == 1), np.inf, spent), slope)

    with quiet():
        found = descend(look, np.array([[0.04]]), bracket_of(look, 1))
    np.testing.assert_allclose(found, 0.8, rtol=1e-13)
