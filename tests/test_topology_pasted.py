# SPDX-License-Identifier: Apache-2.0
"""Recorded outputs come out the same after the journeys that texts make, and cut ones are never taken for whole."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from matrix_layouts import JOURNEYS, wrapped

from inference import topology
from inference.topology.pasted import clean, rejoinings

FIXTURES = Path(__file__).parent / "fixtures" / "nvidia-smi"
with (FIXTURES / "INDEX.tsv").open(encoding="utf-8", newline="") as index:
    ROWS = list(csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE))
TEXTS = {
    row["file"]: ((FIXTURES / row["file"]).read_text(), row["columns"].split(",") if row["columns"] else None)
    for row in ROWS
}
SHORT = {name: entry for name, entry in TEXTS.items() if len(entry[0]) < 5000}
UNWRAPPABLE = {"topo_8x_pix_phb_sys_putty_wrapped.txt"}
"""Wrapped already, with padding: wrapping it again leaves nothing that could be rejoined with certainty."""


def essence(text: str, columns: list[str] | None) -> dict[str, Any]:
    """Return the facts of a text without what a journey may take away: times, and the tails of messages."""
    document = topology.parse(text, columns=columns)
    if document.get("reason"):
        return {"kind": document["kind"], "rejected": True}
    for key in ("capability", "causes", "lost"):
        document.pop(key, None)
    document["errors"] = bool(document.get("errors"))
    document["xids"] = [(xid["xid"], xid["bus_id"]) for xid in document.get("xids", [])]
    document["events"] = [event["id"] for event in document.get("events", [])]
    return document


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_journey_changes_nothing(journey: str) -> None:
    for name, (text, columns) in TEXTS.items():
        assert essence(JOURNEYS[journey](text), columns) == essence(text, columns), name


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("width", [80, 100, 120, 132])
def test_wrapping_is_undone(width: int, trim: bool) -> None:
    for name, (text, columns) in TEXTS.items():
        seen = essence(wrapped(text, width, trim), columns)
        if name in UNWRAPPABLE:
            assert seen in ({"kind": "topo_m", "rejected": True}, essence(text, columns))
        else:
            assert seen == essence(text, columns), name


@pytest.mark.parametrize("name", [name for name in SHORT if name.startswith(("topo_", "p2p_"))])
def test_a_cut_matrix_is_whole_or_rejected(name: str) -> None:
    """Every length of text gives all the facts or a reason, never other links or affinities."""
    text, _ = SHORT[name]
    whole = topology.parse(text)
    for length in range(0, len(text), 3):
        document = topology.parse(text[:length])
        document.pop("nics", None)
        assert document.get("reason") or document.get("errors") or all(whole[k] == v for k, v in document.items()), (
            length
        )


def test_a_cut_inside_the_last_field_is_seen_although_other_rows_are_blank() -> None:
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    whole = head + "GPU0\t X \tPIX\tN/A\t\t\tN/A\nGPU1\tPIX\t X \t0-1\t0-3\t\tN/A"
    assert topology.parse(whole)["numa_per_gpu"] == [None, "0-3"]
    assert "the matrix is cut off" in topology.parse(whole[: whole.index("-3")])["reason"]


def test_a_digit_that_is_no_number_does_not_crash() -> None:
    assert topology.exit_code(topology.parse("0\n²", "query")) in (0, 3)


def test_a_markdown_table_is_a_matrix() -> None:
    table = "|      | GPU0 | GPU1 |\n|------|------|------|\n| GPU0 | X | **NODE** |\n| GPU1 | NODE | X |\n"
    assert topology.parse(table)["links"] == [["X", "NODE"], ["NODE", "X"]]


def test_the_echoed_command_says_which_peer_access_was_asked() -> None:
    text = "$ nvidia-smi topo -p2p w\n \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"
    assert topology.parse(text)["capability"] == "w"


def test_two_different_matrices_are_not_mixed() -> None:
    topo, p2p = TEXTS["topo_2x_l4_sys_numa0_2.txt"][0], TEXTS["p2p_2x_l4_cns_r.txt"][0]
    document = topology.parse(topo + "\n" + p2p)
    assert "2 matrices that differ" in document["reason"]
    assert topology.parse(topo + "\n" + p2p, "p2p")["status"] == [["X", "CNS"], ["CNS", "X"]]
    assert topology.parse(topo + "\n" + topo) == topology.parse(topo)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \nGPU1\tPHB\t X \n", "row GPU1 appears twice and differs"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\tPIX\n", "row GPU1 has its X in another column"),
        ("\tGPU0\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n", "row GPU0 has more cells than the header has columns"),
        ("\tGPU0\tGPU1\nGPU0\t X \tABC\nGPU1\tABC\t X \n", "'ABC' is no link class and no P2P status"),
        ("\tGPU0\tGPU1\nGPU0\t X \tOK\nGPU1\tPIX\t X \n", "'OK' is no link class"),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tXX\tX\t\n", "'XX' is no P2P status"),
        ("\tGPU0\nGPU0\t X \n", "name its kind"),
        ("\tGPU0\tGPU1\tCPU Affinity\n", "no row for GPU0, GPU1"),
    ],
)
def test_what_can_not_be_known_is_said(text: str, reason: str) -> None:
    document = topology.parse(text)
    assert reason in document["reason"]
    assert topology.exit_code(document) == 3
    assert "links" not in document
    assert "status" not in document


def test_a_single_gpu_is_read_when_its_kind_is_named() -> None:
    assert topology.parse("\tGPU0\nGPU0\t X \n", "topo_m")["all_on_pcie"] is None
    assert topology.parse("\tGPU0\nGPU0\t X \n", "p2p")["status"] == [["X"]]


def test_clean_keeps_a_kernel_logs_times() -> None:
    line = "2026-11-30T06:24:22+00:00 gpu1 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    assert clean(f"> {line}").text == line


def test_too_many_pieces_are_not_put_together() -> None:
    assert list(rejoinings(["a", "b"])) == ["ab", "a b"]
    assert list(rejoinings(["x"] * 7)) == []


def listed(text, item):
    return "stdout_lines:\n" + "\n".join(item(line) for line in text.splitlines())


@pytest.mark.parametrize(
    "item",
    [
        lambda line: f"    {json.dumps(line)},",
        lambda line: "- " + json.dumps(line),
        lambda line: "  - '" + line.replace("'", "''") + "'",
    ],
)
def test_a_list_of_strings_as_ansible_prints_it(item):
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-15\nGPU1\tPIX\t X \t0-15\n"
    assert clean(listed(text, item)).text == text.rstrip("\n")


def test_a_few_quoted_lines_are_no_list():
    text = 'one\ntwo\n"three"'
    assert clean(text).text == text


def test_line_numbers_behind_which_stand_blanks():
    assert clean("     1  \tGPU0\n     2  GPU0\t X").text == "\tGPU0\nGPU0\t X"


MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-15\t0\nGPU1\tPIX\t X \t0-15\t0\n"
CSV = "index, name, memory.total [MiB]\n0, Tesla T4, 15360 MiB\n1, Tesla T4, 15360 MiB\n"


@pytest.mark.parametrize(
    "around",
    [
        "```\n{}```\nOn this host the column CPU Affinity, among others, says which cores are near.\n",
        "{}On this host the column CPU Affinity says which cores are near.\n",
        "{}\u5728\u8fd9\u53f0\u4e3b\u673a\u4e0a\n",
        "root@a:~# nvidia-smi topo -m\n{}root@a:~# ls\nmodels  venv\nroot@a:~# ",
    ],
)
def test_words_that_follow_a_matrix_are_none_of_its_last_row(around):
    assert topology.parse(around.format(MATRIX)) == topology.parse(MATRIX)
    wrapped_row = MATRIX.replace("\t0-15\t0\nGPU1", "\n\t0-15\t0\nGPU1")
    assert topology.parse(around.format(wrapped_row))["numa_per_gpu"] == ["0", "0"]
    cut = MATRIX[: MATRIX.rindex("PIX")]
    assert topology.exit_code(topology.parse(around.format(cut + "\n"))) == 3


@pytest.mark.parametrize(
    "words",
    [
        "\n- two at once, one each, two streams\n",
        "```\nmodel, where it ran, how long it took\n",
        "\n3, 4, 5 GPUs: later\n",
    ],
)
def test_words_that_follow_a_csv_are_no_row(words):
    assert topology.parse(CSV + words) == topology.parse(CSV)


def test_rows_apart_from_their_header_are_rows():
    header, *rows = CSV.splitlines(keepends=True)
    assert topology.parse(header + "\n" + "\n".join(rows)) == topology.parse(CSV)
    bare = CSV.replace(" MiB", "").replace("1, Tesla T4, 15360", "1, Tesla T4, [N/A]")
    header, *rows = bare.splitlines(keepends=True)
    assert topology.parse(header + "\n" + "\n".join(rows))["gpu_count"] == 2


@pytest.mark.parametrize(
    "journey",
    [
        lambda text: "".join(f"+{line}\n" for line in text.splitlines()),
        lambda text: "".join(f"{number}:{line}\n" for number, line in enumerate(text.splitlines(), start=1)),
        lambda text: json.dumps(text.splitlines()),
        lambda text: repr(text.splitlines()),
    ],
    ids=["diff", "grep -n", "JSON", "Python"],
)
def test_a_matrix_out_of_a_diff_a_search_or_a_list(journey):
    text = TEXTS["topo_4x_rtx6000ada_node_sys_4nic.txt"][0]
    assert topology.parse(journey(text)) == topology.parse(text)
    devices = "".join(f"0000:c{n}:00.0 3D controller: NVIDIA Corporation GB202GL (rev a1)\n" for n in range(1, 5))
    assert topology.parse(devices)["devices"][0]["bus_id"] == "0000:c1:00.0"
