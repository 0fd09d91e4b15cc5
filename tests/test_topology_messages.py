# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi and shells print instead of an answer, or beside one. Hand-made after messages seen in public."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference import topology
from inference.topology.smi_error import CAUSES

HANDLE = "Unable to determine the device handle for"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.195"
LOST = "GPU is lost.  Reboot the\nsystem to recover this GPU"
MESSAGES = [
    (f"{HANDLE} GPU0: GPU is lost.", "gpu-lost", "0", None),
    (f"{HANDLE} GPU2: Unknown Error", "gpu-lost", "2", None),
    (f"{HANDLE} GPU 00000000:01:00.0:\nNot Supported", "gpu-lost", None, "00000000:01:00.0"),
    (f"{HANDLE} GPU0000:81:00.0: Unknown Error", "gpu-lost", None, "0000:81:00.0"),
    (f"{HANDLE} gpu 0000:81:00.0: {LOST}", "gpu-lost", None, "0000:81:00.0"),
    (MISMATCH, "driver-mismatch", None, None),
    ("Failed to initialize NVML: Unknown Error", "unknown", None, None),
    ("Failed to initialize NVML: GPU access blocked by the operating system", "permission", None, None),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver-not-loaded", None, None),
    ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver"
     " is properly installed and present in your system.", "library-missing", None, None),
    ("bash: nvidia-smi: command not found", "program-missing", None, None),
    ("zsh: command not found: nvidia-smi", "program-missing", None, None),
    ("bash: /usr/bin/nvidia-smi: No such file or directory", "program-missing", None, None),
    ("No devices were found", "no-devices", None, None),
    ('Field "compute_cup" is not a valid field to query.', "usage", None, None),
    ("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.", "usage", None, None),
    ("The -i command line argument must be used in conjunction with -n or -p.", "usage", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause", "index", "bus_id"), MESSAGES)
def test_a_message_is_an_error_with_its_cause(text: str, cause: str, index: str | None, bus_id: str | None) -> None:
    document = topology.parse(text + "\n")
    assert document["kind"] == "error"
    assert topology.exit_code(document) == 2
    stated = document["causes"][0]
    assert (stated["cause"], stated["index"], stated["bus_id"]) == (cause, index, bus_id)
    assert document["errors"] == [" ".join(text.split())]
    report = topology.check(topology.facts_of([("text", document)]), topology.expectation_of("any"))
    assert report.exit_code == 2
    assert CAUSES[cause].fix in report.as_text()


@pytest.mark.parametrize("text", [message[0] for message in MESSAGES])
def test_a_message_before_or_after_an_answer_is_never_lost(text: str) -> None:
    answer = "index, name\n1, NVIDIA L40S\n"
    for mixed in (f"{text}\n{answer}", f"{answer}{text}\n"):
        document = topology.parse(mixed)
        assert document["errors"], mixed
        assert topology.exit_code(document) == 2


def test_a_row_of_a_lost_gpu_is_an_error_that_names_it() -> None:
    rows = "index, name, pci.bus_id\n0, NVIDIA L40S, 00000000:01:00.0\n1, [GPU is lost], 00000000:02:00.0\n"
    document = topology.parse(rows)
    assert document["errors"] == ["GPU1 00000000:02:00.0: GPU is lost"]
    assert document["lost"][0]["bus_id"] == "00000000:02:00.0"
    assert document["gpu_count"] == 2


def test_a_message_in_place_of_values_is_known_without_a_header() -> None:
    document = topology.parse("0, [GPU requires reset], [GPU requires reset], 0 MiB\n1, 30, 0 %, 4 MiB\n")
    assert (document["kind"], document["gpu_count"], topology.exit_code(document)) == ("query", 2, 2)
    assert "GPU requires reset" in document["errors"][0]
    assert topology.exit_code(topology.parse("[Unknown Error]\n")) == 2


def test_an_unreadable_gpu_in_the_table_is_an_error() -> None:
    row = "|   {}  NVIDIA L40S                    On  |   00000000:0{}:00.0 Off |                    0 |\n"
    second = "| {}   {}    P0    40W / 350W |       0MiB / 46068MiB |      0%      Default |\n"
    table = (
        "| NVIDIA-SMI 595.80                 Driver Version: 595.80         CUDA Version: 13.2     |\n"
        + row.format(0, 1) + second.format("N/A", "33C") + row.format(1, 2) + second.format("ERR!", "ERR!")
        + "| Processes:                                                                              |\n"
    )  # fmt: skip
    document = topology.parse(table)
    assert document["gpu_count"] == 2
    assert document["errors"] == ["GPU1 00000000:02:00.0: ERR!"]
    assert topology.exit_code(document) == 2


def test_a_table_without_its_end_is_not_counted() -> None:
    document = topology.parse("| NVIDIA-SMI 595.80    Driver Version: 595.80    CUDA Version: 13.2     |\n")
    assert "ends before its list of processes" in document["reason"]


def test_a_warning_about_a_gpu_is_no_error() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:03:00.0\nGPU 0: NVIDIA L40S (UUID: GPU-1)\n"
    document = topology.parse(text)
    assert topology.exit_code(document) == 0
    assert document["warnings"] == ["WARNING: infoROM is corrupted at gpu 0000:03:00.0"]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("name\nNVIDIA L40S\nNVIDIA L40S\n", {"gpu_count": 2}),
        ("NVIDIA L40S\nNVIDIA L40S\n", {"gpu_count": 2}),
        ("name, memory.total [MiB]\nNVIDIA L40S, 46068\nNVIDIA L40S, 46068\n", {"units": {"memory.total": "MiB"}}),
        ("gpu_name, gpu_bus_id\nTesla T4, 00000000:00:04.0\n", {"gpu_count": 1}),
        ("GPU 0: NVIDIA H100 (UUID: GPU-xxxxxxxx)\nGPU 1: NVIDIA H100 (UUID: GPU-xxxxxxxx)\n", {"gpu_count": 2}),
        ("NVIDIA-SMI version  : 610.43.02\nKMD version         : 610.43.02\n", {"driver_version": "610.43.02"}),
    ],
)
def test_forms_of_answers(text: str, facts: dict[str, object]) -> None:
    document = topology.parse(text)
    assert topology.exit_code(document) == 0
    assert {name: document[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pid, process_name, used_gpu_memory [MiB]\n1, python, 3 MiB\n", "--query-compute-apps"),
        ("index, name, pcie.\n", "the header"),
        ("count, name\n8, NVIDIA L40S\n8, NVIDIA L40S\n", "the rows say 8 GPUs, but there are 2 rows"),
        ("index, power.draw\n0, 30 W\n0, 40 W\n", "index 0 appears more than once"),
        ("index, name\n0, NVIDIA L40S\n1,\n", "it is cut off"),
        ("GPU 0: NVIDIA H100 (UUID: GPU-0000\n", "is cut off"),
        ("  MIG 1g.10gb     Device  0: (UUID: MIG-1)\nGPU 0: NVIDIA H100 (UUID: GPU-1)\n", "before any GPU"),
        ("NVIDIA-SMI version  : 595.80\nDRIVER version      : Not Found\n", "the driver version is 'Not Found'"),
        ("NUMA node(s):  2\nNUMA node0 CPU(s):  0-3\n", "says 2 NUMA nodes but lists 1"),
    ],
)
def test_answers_that_can_not_be_known(text: str, reason: str) -> None:
    document = topology.parse(text)
    assert reason in document["reason"]
    assert topology.exit_code(document) == 3


def test_versions_that_newer_drivers_call_otherwise() -> None:
    folder = Path(__file__).parent / "fixtures" / "nvidia-smi"
    text, xml = ((folder / name).read_text() for name in ("h200x2_q.txt", "h200x2_q.xml"))
    text = text.replace("Driver Version", "KMD Version   ").replace("CUDA Version", "CUDA UMD Version")
    xml = xml.replace("driver_version>", "kmd_version>").replace("cuda_version>", "cuda_umd_version>")
    for document in (topology.parse(text), topology.parse(xml)):
        assert (document["driver_version"], document["cuda_version"]) == ("580.159.04", "13.0")


def test_names_of_versions_that_only_point_at_their_new_names() -> None:
    """As driver 610 prints them, and in another order."""
    new = ["KMD version         : 610.62", "CUDA UMD version    : 13.3"]
    old = [
        'DRIVER version      : Deprecated, see "KMD version" instead',
        'CUDA version        : Deprecated, see "CUDA UMD version" instead',
    ]
    for lines in ([new[0], *old, new[1]], [*new, *old], [*old, *new], new):
        document = topology.parse("\n".join(["NVIDIA-SMI version  : 610.62", *lines]) + "\n")
        assert (document.get("driver_version"), document.get("cuda_version")) == ("610.62", "13.3")
    assert topology.exit_code(topology.parse("\n".join(["NVIDIA-SMI version  : 610.62", *old]))) == 3
    folder = Path(__file__).parent / "fixtures" / "nvidia-smi"
    text = (folder / "h200x2_q.txt").read_text()
    head = text[: text.index("Attached GPUs")]
    for names in ([*new, *old], [*old, *new]):
        listed = topology.parse("NVSMI LOG\n" + "\n".join(names) + "\n" + text[len(head) :])
        assert (listed["driver_version"], listed["cuda_version"]) == ("610.62", "13.3")


def test_q_as_driver_610_writes_it() -> None:
    """The old names come with a word of their end, and the limits of power have a section of their own."""
    folder = Path(__file__).parent / "fixtures" / "nvidia-smi"
    text = (folder / "h200x2_q.txt").read_text()
    before = topology.parse(text)
    gone = "[Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]"
    text = text.replace("580.159.04\nCUDA", f"580.159.04 {gone}\nCUDA", 1)
    for name in ("Requested", "Default"):
        text = text.replace(f"        {name} Power Limit", f"            {name} Power Limit")
    text = text.replace(
        "        Current Power Limit", "        GPU Ceiling Power Limit\n            Current Power Limit"
    )
    after = topology.parse(text)
    assert after["driver_version"] == before["driver_version"] == "580.159.04"
    for key in ("power.limit", "power.default_limit"):
        assert after["gpus"][0][key] == before["gpus"][0][key] == "700.00 W"
