"""The figure of a fan: whose colour is whose, what is marked, and what stands in its tables.

Colours tell policies apart where there are several, else tasks, else branches; a legend of too
many is left out.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from evaluate_tracks import fan

from flashrt_ros.evaluate.fan import Branch, Fan
from flashrt_ros.evaluate.page import figures, tables
from flashrt_ros.page import Page


def branched(*branches: Branch) -> Fan:
    made = fan(len(branches))
    return dataclasses.replace(made, branches=branches)


def branch(policy: str = "act", seed: int = 0, task: str = "") -> Branch:
    return Branch(f"{policy} {seed} {task}", policy, seed, task)


@pytest.mark.parametrize(
    ("branches", "legend"),
    [
        ([branch("act", 1), branch("act", 2), branch("other", 1)], ["act", "other"]),
        ([branch(task="pick <1>"), branch(task="place")], ["pick <1>", "place"]),
        ([branch(seed=1), branch(seed=2)], ["act 1 ", "act 2 "]),
    ],
)
def test_colours_tell_apart_what_differs(branches: list[Branch], legend: list[str]) -> None:
    made = branched(*branches)
    groups = figures.fan_groups(made)
    colors = [figures.fan_color(made, b) for b in range(len(branches))]
    assert len(set(colors)) == len(legend)
    assert len(set(zip(groups, colors, strict=True))) == len(legend)
    found = re.findall(r"</i>(.*?)</span>", figures.fan_legend(made))
    assert found == [words.replace("<", "&lt;").replace(">", "&gt;") for words in legend]


def test_a_legend_of_too_many_branches_is_left_out() -> None:
    assert figures.fan_legend(fan(16)) == ""
    assert "seed 7" in figures.fan_legend(fan(8))


def test_a_figure_marks_where_branches_come_apart() -> None:
    made, page = fan(4), Page("x")
    for element in range(3):
        figures.fan(page, made, element)
    apart, _, never = (figure["layout"] for figure in page._figures)
    assert apart["shapes"][0]["x0"] == pytest.approx(10 / 30)
    assert apart["annotations"][0]["text"] == "apart from 0.333 s on"
    assert "shapes" not in never
    data = page._figures[0]["data"]
    names = ["spread", "seed 0", "seed 1", "seed 2", "seed 3", "recorded"]
    assert [line.get("name") for line in data] == [None, *names]
    np.testing.assert_array_equal(data[4]["y"], made.actions_BHA[2, :, 0])
    np.testing.assert_array_equal(data[1]["customdata"], made.spread_HA()[:, 0])
    np.testing.assert_array_equal(data[1]["y"], made.actions_BHA[:, :, 0].max(0))
    np.testing.assert_array_equal(data[0]["y"], made.actions_BHA[:, :, 0].min(0))
    np.testing.assert_array_equal(data[-1]["y"], made.recorded_HA[:, 0])


def test_the_table_says_how_far_each_branch_is_from_the_recording() -> None:
    made = branched(branch(seed=1), branch(seed=2, task="<b>"))
    made.actions_BHA[0] = made.recorded_HA + 0.25
    words = tables.fan(made)
    assert "0.25 rad; 0.25 m" in words
    assert "&lt;b&gt;" in words
