# SPDX-License-Identifier: Apache-2.0
"""Xid lines of old and new drivers, and what their numbers mean."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.xid import CATALOGUE, OPEN_MODULES, XIDS, parse_xid_lines, xid

FALLEN = "GPU has fallen off the bus."

# Formats quoted from NVIDIA/open-gpu-kernel-modules#1159, #1111, #446, kern_gpu_error_cont_ga100.c, pastebin NGng33SB.
LINES = [
    ("(PCI:0000:01:00): 8, pid=48694, name=python3, channel 0x00000008", (8, "0000:01:00", 48694, "python3")),
    (f"(PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, {FALLEN}", (79, "0000:91:00", None, None)),
    ("(0000:01:00): 31, Ch 0000000b, engmask 00000120", (31, "0000:01:00", None, None)),
    ("(PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).", (94, "0000:01:00", 7194, None)),
    ("(PCI:0000:48:00): 45, pid=22884, name=VLLM::Worker, channel 0x0a", (45, "0000:48:00", 22884, "VLLM::Worker")),
    ("(PCI:0000:48:00): 62, 00002740 00002b08 00001126", (62, "0000:48:00", None, None)),
    ("(PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x0)", (149, "0018:01:00", None, None)),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_each_format_is_read(line, expected):
    (event,) = parse_xid_lines(f"[12.5] NVRM: Xid {line}")
    assert (event.number, event.bdf, event.pid, event.process) == expected
    assert event.line_number == 1


@pytest.mark.parametrize(
    ("prefix", "stamp"),
    [
        ("[ 388.565288] ", "388.565288"),
        ("[Sun Feb 23 16:24:18 2025] ", "Sun Feb 23 16:24:18 2025"),
        ("2025-07-23T20:06:52.6+02:00 host kernel: ", "2025-07-23T20:06:52.6+02:00"),
        ("Nov 22 18:29:55 host kernel: ", "Nov 22 18:29:55"),
        ("", None),
    ],
)
def test_time_stamps(prefix, stamp):
    assert parse_xid_lines(f"{prefix}NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=x, y")[0].timestamp == stamp


@pytest.mark.parametrize(
    ("detail", "action", "level", "word"),
    [
        (": Node Reboot Required", "Node Reboot Required", "critical", "reboot"),
        (" changed from 0x0 (None) to 0x2 (OS Reboot)", "OS Reboot", "critical", "reboot"),
        (" changed from 0x0 (None) to 0x1 (GPU Reset Required)", "GPU Reset Required", "critical", "reset"),
        (" changed from 0x0 (None) to 0x1 (PF FLR)", "PF FLR", "critical", "reset"),
        (" changed from 0x0 (None) to 0x3 (Drain P2P)", "Drain P2P", "critical", "peers"),
        (" changed from 0x1 (GPU Reset Required) to 0x0 (None)", "None", "info", "no action"),
        (" is something new", None, "critical", "its message"),
    ],
)  # fmt: skip
def test_154_means_what_its_message_says(detail, action, level, word):
    (event,) = parse_xid_lines(f"NVRM: Xid (PCI:0000:09:00): 154, GPU recovery action{detail}")
    assert (event.recovery_action, event.level) == (action, level)
    assert word in event.action


def test_a_fallen_gpu_is_told_once_and_also_without_its_xid():
    with_xid, without = f"NVRM: Xid (PCI:0000:91:00): 79, {FALLEN}", f"NVRM: GPU 0000:91:00.0: {FALLEN}"
    other = f"NVRM: GPU 0000:92:00.0: {FALLEN}"
    assert [event.number for event in parse_xid_lines(without)] == [79]
    events = parse_xid_lines("\n".join((with_xid, without, other)))
    assert [(e.number, e.bdf, e.line_number) for e in events] == [(79, "0000:91:00", 1), (79, "0000:92:00.0", 3)]
    assert len(parse_xid_lines(f"{with_xid}\n{with_xid}")) == 2


PARTS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
"""A message of three lines, as drivers of the 570 and later series write it when a GPU is gone at their start."""


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ("[ 1843.308145] ", " " * 15),
        ("Feb 14 05:03:45 gpu-1 kernel: ", " " * 30),
        ("[ 1843.308145] ", "[ 1843.308145] "),
        ("Feb 14 05:03:45 gpu-1 kernel: ", "Feb 14 05:03:45 gpu-1 kernel: "),
    ],
)
def test_a_fallen_gpu_that_three_lines_tell_of(first, others):
    text = "\n".join((first + PARTS[0], others + PARTS[1], others + PARTS[2]))
    (event,) = parse_xid_lines(f"x\n{text}\nNVRM: The NVIDIA probe routine failed for 1 device(s).")
    assert (event.number, event.bdf, event.line_number) == (79, "0000:b3:00.0", 4)
    assert parse_xid_lines("\n".join(PARTS[1:])) == []  # of which GPU?
    assert parse_xid_lines("\n".join((PARTS[0], *["NVRM: something else"] * 9, PARTS[2]))) == []
    told = parse_xid_lines(f"NVRM: Xid (PCI:0000:b3:00): 79, {FALLEN}\n{text}")
    assert len(told) == 1


def test_an_unknown_number_is_a_warning_that_says_so():
    assert xid(999).level == "warning" and "does not know" in xid(999).meaning
    assert xid(79) is XIDS[79]


BLACKWELL = "8 13 31 43 45 48 61 62 63 64 74 79 92 94 95 109 119 120 140 145 149 154 155 156"


@pytest.mark.parametrize("number", [int(number) for number in BLACKWELL.split()])
def test_the_table_knows_what_matters(number):
    row = XIDS[number]
    assert row.number == number and row.name and row.meaning and row.action
    assert row.source in (CATALOGUE, OPEN_MODULES)


def test_what_needs_a_reset_or_reboot_is_critical():
    assert {xid(n).level for n in (8, 79, 119, 154)} == {"critical"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Xid",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "Xid (): 8",
        "nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 240, Severity 1",
    ],
)
def test_what_is_no_xid(text):
    assert parse_xid_lines(text) == []


@given(st.text(alphabet=st.sampled_from("Xid (PCI:0/.)1,79 NVRM\n-=namepid'<>"), max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_text_crashes_it(text):
    for event in parse_xid_lines(text):
        assert event.action and event.level
