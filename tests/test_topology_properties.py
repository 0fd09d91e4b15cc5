# SPDX-License-Identifier: Apache-2.0
"""Properties of the parsers: any matrix in any layout parses back, and no text at all makes them crash.

TOPOLOGY_EXAMPLES sets the number of examples of each property; the default is for everyday runs.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_layouts import (
    JOURNEYS,
    LEGEND,
    P2P_LEGEND,
    STATUSES,
    Matrix,
    expanded,
    matrices,
    narrow,
    p2p,
    tabbed,
    wrapped,
)

from inference import topology

EXAMPLES = int(os.environ.get("TOPOLOGY_EXAMPLES", "150"))
FIXTURES = Path(__file__).parent / "fixtures" / "nvidia-smi"
many = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def _texts() -> list[str]:
    with (FIXTURES / "INDEX.tsv").open(encoding="utf-8", newline="") as index:
        names = [row["file"] for row in csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return [text for name in names if len(text := (FIXTURES / name).read_text()) < 4000]


TEXTS = _texts()


def assert_facts(document: dict[str, Any], matrix: Matrix, titles: int) -> None:
    assert document["kind"] == "topo_m", document.get("reason")
    for key, expected in matrix.facts(titles).items():
        assert document[key] == expected, key


SHAPES = st.fixed_dictionaries({"titles": st.integers(1, 3), "underlined": st.booleans(), "padded": st.booleans()})


@many
@given(matrices(), SHAPES, st.booleans(), st.sampled_from(sorted(JOURNEYS)))
def test_the_tab_layout_parses_back(matrix: Matrix, shape: dict[str, Any], legend: bool, journey: str) -> None:
    document = topology.parse(JOURNEYS[journey](tabbed(matrix, **shape) + (LEGEND if legend else "\n")))
    if "reason" in document and journey == "tmux pane":  # which turns tabs into blanks
        assert "" in (*matrix.cpu, *matrix.numa)
    else:
        assert_facts(document, matrix, shape["titles"])


@many
@given(matrices(), SHAPES)
def test_the_expanded_layout_parses_back_or_is_rejected(matrix: Matrix, shape: dict[str, Any]) -> None:
    """Blank columns can leave several readings; where one is taken, it is the right one."""
    document = topology.parse(expanded(tabbed(matrix, **shape) + LEGEND))
    if "reason" in document:
        assert "does not say which of its columns are blank" in document["reason"]
        assert "" in (*matrix.cpu, *matrix.numa)
    else:
        assert_facts(document, matrix, shape["titles"])


@many
@given(matrices().filter(lambda matrix: len(matrix.ids) > 1), st.sampled_from((6, 7, 8)))
def test_the_hand_made_layout_parses_back(matrix: Matrix, width: int) -> None:
    document = topology.parse(narrow(matrix, width))
    assert document["links"] == matrix.facts(0)["links"]
    assert document["numa_per_gpu"] == [None] * len(matrix.ids)


@many
@given(matrices(), st.integers(1, 3), st.integers(60, 160), st.booleans())
def test_a_wrapped_matrix_parses_back_or_is_rejected(matrix: Matrix, titles: int, width: int, trim: bool) -> None:
    document = topology.parse(wrapped(tabbed(matrix, titles) + LEGEND, width, trim))
    if "reason" not in document:
        assert_facts(document, matrix, titles)


@many
@given(st.sets(st.integers(0, 15), min_size=2, max_size=10), st.booleans(), st.booleans(), st.data())
def test_peer_access_parses_back(numbers: set[int], tabs: bool, legend: bool, data: st.DataObject) -> None:
    ids = tuple(sorted(numbers))
    status = st.sampled_from(STATUSES)
    cells = [["X" if i == j else data.draw(status) for j in range(len(ids))] for i in range(len(ids))]
    document = topology.parse(p2p(ids, cells, tabs) + (P2P_LEGEND if legend else ""))
    assert document["kind"] == "p2p"
    assert document["status"] == cells
    assert document["gpu_ids"] == list(ids)


@many
@given(matrices(most=6), st.data())
def test_a_cut_matrix_is_whole_or_rejected(matrix: Matrix, data: st.DataObject) -> None:
    text = tabbed(matrix) + LEGEND
    document = topology.parse(text[: data.draw(st.integers(0, len(text)))])
    if "reason" not in document:
        assert_facts(document, matrix, 3)


def survive(text: str, kind: str | None = None) -> None:
    document = topology.parse(text, kind)
    assert topology.exit_code(document) in (0, 2, 3)
    assert document["kind"] in (None, *topology.KINDS)
    json.dumps(document)
    report = topology.check(topology.facts_of([("text", document)]), topology.expectation_of("rtx-pro-6000-x8"))
    json.dumps(report.as_dict())
    assert report.exit_code in (0, 1, 2, 3)


@many
@given(st.text(max_size=300), st.sampled_from((None, *topology.KINDS)))
def test_no_text_crashes(text: str, kind: str | None) -> None:
    survive(text, kind)


@many
@given(st.binary(max_size=300), st.sampled_from((None, *topology.KINDS)))
def test_no_bytes_crash(raw: bytes, kind: str | None) -> None:
    survive(raw.decode("utf-8", errors="replace"), kind)


NOISE = st.text("GPUX0123456789 \t\n,.:-|[]()<>/NVLINKSYS\x1b", max_size=20)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw a recorded output with pieces taken out, repeated, put elsewhere or replaced, or two outputs mixed."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        other = draw(st.sampled_from(TEXTS))[: end - start]
        piece = draw(st.sampled_from(("", text[start:end] * 2, other, draw(NOISE))))
        text = text[:start] + piece + text[end:]
    return text[:6000]


@many
@given(damaged(), st.sampled_from((None, None, None, *topology.KINDS)))
def test_no_damaged_output_crashes(text: str, kind: str | None) -> None:
    survive(text, kind)
