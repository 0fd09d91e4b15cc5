# SPDX-License-Identifier: Apache-2.0
"""Every recorded output comes out as its line in tests/fixtures/nvidia-smi/INDEX.tsv says."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference import topology

FIXTURES = Path(__file__).parent / "fixtures" / "nvidia-smi"
PCIE = {"yes": True, "no": False, "n/a (single GPU)": None}


def _rows() -> list[dict[str, str]]:
    with (FIXTURES / "INDEX.tsv").open(encoding="utf-8", newline="") as index:
        return list(csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE))


ROWS = _rows()
MATRICES = [row for row in ROWS if row["kind"].startswith("topo_") and row["exit"] == "0"]


def _name(row: dict[str, str]) -> str:
    return row["file"]


def _kind(row: dict[str, str]) -> str:
    kind = "p2p" if row["kind"].startswith("topo_p2p") else row["kind"]
    return "error" if row["file"] == "p2p_missing_value_error.txt" else kind


def _parsed(row: dict[str, str], kind: str | None = None) -> dict[str, Any]:
    text = (FIXTURES / row["file"]).read_bytes().decode("utf-8", errors="replace")
    columns = row["columns"].split(",") if row["columns"] else None
    return topology.parse(text, kind, columns)


def _at(node: Any, path: list[str]) -> Iterator[Any]:
    if not path:
        yield node
    elif path[0] == "*":
        assert node, "nothing to look into"
        for child in node:
            yield from _at(child, path[1:])
    else:
        yield from _at(node[int(path[0])] if isinstance(node, list) else node.get(path[0]), path[1:])


def test_the_index_names_every_fixture_once() -> None:
    assert sorted(row["file"] for row in ROWS) == sorted(
        path.name for path in FIXTURES.iterdir() if path.name != "INDEX.tsv"
    )


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_kind_and_exit_code(row: dict[str, str]) -> None:
    document = _parsed(row)
    assert document["kind"] == _kind(row)
    assert topology.exit_code(document) == int(row["exit"])
    assert bool(document.get("reason")) == (row["exit"] == "3")
    assert bool(document.get("errors")) == (row["exit"] == "2")


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_naming_the_kind_changes_nothing(row: dict[str, str]) -> None:
    assert _parsed(row, _kind(row)) == _parsed(row)


@pytest.mark.parametrize("row", [row for row in ROWS if row["facts"]], ids=_name)
def test_stated_facts(row: dict[str, str]) -> None:
    document = _parsed(row)
    for path, expected in json.loads(row["facts"]).items():
        for seen in _at(document, path.split("/")):
            assert seen == expected, path


@pytest.mark.parametrize("row", MATRICES, ids=_name)
def test_matrix(row: dict[str, str]) -> None:
    document = _parsed(row)
    matrix = document["links" if row["kind"] == "topo_m" else "status"]
    assert document["gpu_count"] == int(row["gpu_count"])
    assert "/".join(",".join(cells) for cells in matrix) == row["link_matrix"]


@pytest.mark.parametrize("row", [row for row in MATRICES if row["kind"] == "topo_m"], ids=_name)
def test_topology_columns(row: dict[str, str]) -> None:
    document = _parsed(row)
    assert [str(number) for number in document["gpu_ids"]] == row["gpu_ids"].split(",")
    assert [value or "-" for value in document["numa_per_gpu"]] == row["numa_per_gpu"].split()
    affinity = row["cpu_affinity_per_gpu"].split() or ["-"] * document["gpu_count"]
    assert [value or "-" for value in document["cpu_affinity_per_gpu"]] == affinity
    assert document["nic_count"] == int(row["nic_count"])
    assert document["all_on_pcie"] is PCIE[row["all_on_pcie"]]
    links = document["links"]
    pairs = Counter(links[i][j] for i in range(len(links)) for j in range(i))
    stated = {} if "single" in row["pair_classes"] else dict(pair.split(":") for pair in row["pair_classes"].split())
    assert {name: str(count) for name, count in pairs.items()} == stated
