# SPDX-License-Identifier: Apache-2.0
"""What recorded outputs look like after more journeys, and outputs of which no recording is at hand (hand-made).

The hand-made ones follow what drivers, lspci, the kernel and shells print in other versions and languages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference import topology

FIXTURES = Path(__file__).parent / "fixtures" / "nvidia-smi"
TOPO = (FIXTURES / "topo_8x_rtxpro6000se_pix_node_sys_ansi_tab.txt").read_text()
Q = (FIXTURES / "h200x2_q.txt").read_text()
XML = (FIXTURES / "h200x2_q.xml").read_text()
LSCPU = (FIXTURES / "lscpu_asus_numa.txt").read_text()
WHOLE = topology.parse(TOPO)


def without_warnings(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "warnings"}


# a matrix on its way here

JOURNEYS = {
    "watch": "Every 2.0s: nvidia-smi topo -m                gpu-1: Mon Nov 30 09:00:00 2026\n\n" + TOPO,
    "newer watch": f"Every 2.0s: nvidia-smi topo -m    gpu-1: Mon Nov 30 09:00:00 2026\n{' ' * 60}in 0.2s (0)\n{TOPO}",
    "sudo": f"op@gpu-1:~$ sudo nvidia-smi topo -m\n[sudo] password for op: \n{TOPO}op@gpu-1:~$ \n",
    "sudo in German": f"op@gpu-1:~$ sudo nvidia-smi topo -m\n[sudo] Passwort für op: \n{TOPO}",
    "ssh": "Warning: Permanently added '10.0.0.5' (ED25519) to the list of known hosts.\n" + TOPO,
    "a login": "Welcome to Ubuntu 24.04.1 LTS (GNU/Linux 6.8.0-45-generic x86_64)\n\n * Documentation:  https://x\n"
    f"Last login: Mon Nov 30 08:00:00 2026 from 10.0.0.1\nroot@gpu-1:~# nvidia-smi topo -m\n{TOPO}root@gpu-1:~# exit\n",
    "tabs as four blanks": TOPO.replace("\t", "    "),
    "tabs as one blank": TOPO.replace("\t", " "),
    "mail with CRLF": "".join(f"> {line}\r\n" for line in TOPO.split("\n")),
    "fence in a list": "".join(f"   {line}\n" for line in f"```\n{TOPO}```".split("\n")),
    "pager": TOPO + "\n(END)",
    "JSON field": '{"topo": "' + TOPO.replace("\t", "\\t").replace("\n", "\\n").replace("\x1b", "\\u001b") + '"}',
    "HTML": "<pre>" + TOPO.replace("\t", "&#9;") + "</pre>",
    "YAML block": "topology: |\n" + "".join(f"  {line}\n" for line in TOPO.split("\n")),
    "ansible": "gpu-1 | CHANGED | rc=0 >>\n" + TOPO,
    "kubectl": 'Defaulted container "main" out of: main, init (init)\n' + TOPO,
    "container banner": "==========\n== CUDA ==\n==========\n\nCUDA Version 12.8.1\n\n" + TOPO,
    "script": "\x1b[?2004hroot@gpu-1:~# nvidia-smi topo -m\r\n\x1b[?2004l" + TOPO.replace("\n", "\r\n")
    + "\x1b[?2004hroot@gpu-1:~# ",
    "zsh": f"➜  ~ nvidia-smi topo -m\n{TOPO}",
    "fish": f"op@gpu-1 ~> nvidia-smi topo -m\n{TOPO}",
}  # fmt: skip


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_journey_changes_nothing(journey: str):
    assert without_warnings(topology.parse(JOURNEYS[journey])) == WHOLE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n".join(TOPO.split("\n")[1:]), "recognised"),
        ("\n".join(TOPO.split("\n")[:8]) + "\n\nLegend:\n\n  X    = Self\n", "no row for GPU7"),
        ("\n".join(line[:30] for line in TOPO.expandtabs(8).split("\n")), "more cells than the header has columns"),
        (TOPO.replace("SYS", "SY5"), "'SY5' is no link class"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV\nGPU1\tNV\t X \n", "'NV' is no link class"),
    ],
)
def test_a_matrix_that_lost_something_is_not_guessed(text: str, reason: str):
    document = topology.parse(text)
    assert reason in document["reason"]
    assert topology.exit_code(document) == 3


def sixteen() -> str:
    """Return a matrix of sixteen GPUs behind NVSwitches, as drivers without a column for the GPU's node print it."""
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(16)) + "\tCPU Affinity\tNUMA Affinity"]
    for i in range(16):
        cells = "\t".join(" X " if i == j else "NV6" for j in range(16))
        lines.append(f"GPU{i}\t{cells}\t{'0-23,48-71' if i < 8 else '24-47,72-95'}\t{i // 8}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("width", [80, 100, 132, 500])
def test_sixteen_gpus_in_a_terminal(width: int):
    lines = sixteen().expandtabs(8).split("\n")
    text = "\n".join(
        piece for line in lines for piece in [line[i : i + width] for i in range(0, len(line) or 1, width)]
    )
    document = topology.parse(text)
    assert document["gpu_count"] == 16
    assert document["numa_per_gpu"] == ["0"] * 8 + ["1"] * 8
    assert document["links"][15] == ["NV6"] * 15 + ["X"]


@pytest.mark.parametrize(
    "nic", ["mlx5_bond_0", "irdma0", "rdmap16s27", "efa_0", "bnxt_re_bond0", "roceP2p1s0f0", "hns_0", "ibp24s0"]
)
def test_names_of_nics(nic: str):
    text = (
        f"\tGPU0\tGPU1\t{nic}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNODE\tPIX\t0-31\t0\t\tN/A\nGPU1\tNODE\t X \tSYS\t0-31\t0\t\tN/A\n"
        f"{nic}\tPIX\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n"
    )
    document = topology.parse(text)
    assert (document["nics"], document["nic_links"]) == ([nic], [["PIX"], ["SYS"]])
    assert document["links"] == [["X", "NODE"], ["NODE", "X"]]


PEERS = [["X", "OK", "GNS", "CNS"], ["OK", "X", "DR", "U"], ["GNS", "DR", "X", "TNS"], ["CNS", "U", "TNS", "X"]]


@pytest.mark.parametrize("blank", ["\t", " ", "    "])
@pytest.mark.parametrize("kind", ["r", "w", "n", "a", "p"])
def test_every_status_of_peer_access(kind: str, blank: str):
    rows = "".join(f" GPU{i}\t" + "\t".join(row) + "\t\n" for i, row in enumerate(PEERS))
    text = f"$ sudo nvidia-smi topo -p2p {kind}\n \tGPU0\tGPU1\tGPU2\tGPU3\t\n{rows}\nLegend:\n\n  X    = Self\n"
    document = topology.parse(text.replace("\t", blank))
    assert (document["status"], document["capability"]) == (PEERS, kind)
    assert topology.parse(text[:90].replace("\t", blank))["reason"]


# messages in other languages and from other programs


@pytest.mark.parametrize(
    "text",
    [
        "bash: nvidia-smi: Kommando nicht gefunden.",
        "bash: nvidia-smi : commande introuvable",
        "bash: nvidia-smi\uff1a未找到命令",
        "-bash: nvidia-smi: 未找到命令",
        "bash: nvidia-smi: orden no encontrada",
        "bash: nvidia-smi: コマンドが見つかりません",
        "bash: nvidia-smi: команда не найдена",
        "bash: строка 1: nvidia-smi: команда не найдена",
        "bash: Zeile 1: nvidia-smi: Kommando nicht gefunden.",
        "/bin/sh: 1: nvidia-smi: not found",
        "fish: Unknown command: nvidia-smi",
        "sudo: nvidia-smi: command not found",
        "Command 'nvidia-smi' not found, but can be installed with:\napt install nvidia-utils-535",
        'OCI runtime exec failed: exec failed: exec: "nvidia-smi": executable file not found in $PATH: unknown',
        "timeout: failed to run command \u2018nvidia-smi\u2019: No such file or directory",
    ],
)
def test_a_shell_that_knows_no_nvidia_smi(text: str):
    for given in (text + "\n", f"root@gpu-1:~# nvidia-smi topo -m\n{text}\nroot@gpu-1:~# \n"):
        document = topology.parse(given)
        assert topology.exit_code(document) == 2, given
        assert [cause["cause"] for cause in document["causes"]] == ["program-missing"]


@pytest.mark.parametrize(
    "text", ["bash: /usr/bin/nvidia-smi: Permission denied", "zsh: permission denied: /usr/bin/nvidia-smi"]
)
def test_a_shell_that_may_not_run_it(text: str):
    assert [cause["cause"] for cause in topology.parse(text + "\n")["causes"]] == ["permission"]


def test_a_version_beside_a_mismatch_is_an_error():
    text = (
        "NVIDIA-SMI version  : 580.95.05\nNVML version        : 580.95\n"
        "DRIVER version      : Failed to initialize NVML: Driver/library version mismatch\nCUDA Version        : ERR!\n"
    )
    document = topology.parse(text)
    assert topology.exit_code(document) == 2
    assert "driver_version" not in document


# -q, -L, CSV


@pytest.mark.parametrize(
    "text",
    [
        "Every 2.0s: nvidia-smi -q      gpu-1: Mon Nov 30 09:00:00 2026\n\n" + Q,
        "".join(f"> {line}\n" for line in Q.split("\n")),
        Q.replace("    ", "\t"),
        Q.replace("\n", "\r\n"),
    ],
)
def test_q_after_a_journey(text: str):
    assert without_warnings(topology.parse(text)) == topology.parse(Q)


@pytest.mark.parametrize("text", [f"root@a:~# nvidia-smi -q -x\n{XML}root@a:~#", XML.replace("\n", "\r\n")])
def test_xml_after_a_journey(text: str):
    assert topology.parse(text) == topology.parse(XML)


BLOCK = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov 30 09:00:00 2026
Driver Version                            : {driver}
CUDA Version                              : 12.5

Attached GPUs                             : 1
GPU {bus}
    Product Name                          : {name}
    Persistence Mode                      : Disabled
    MIG Mode
        Current                           : {mig}
        Pending                           : {mig}
{instances}    GPU UUID                              : GPU-00000000-0000-0000-0000-000000000000
    PCI
        Bus Id                            : {bus}
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Current            : 1
                Device Max                : 4
                Host Max                  : N/A
            Link Width
                Max                       : 16x
                Current                   : 8x
    Performance State                     : P8
    {reasons}
        Idle                              : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 8188 MiB
        Used                              : 9 MiB
    Processes                             : None
"""
INSTANCES = """    MIG Device
        Index                             : 0
        GPU Instance ID                   : 2
        Device Attributes
            Shared
                Multiprocessor count      : 16
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 0
"""


@pytest.mark.parametrize(
    ("card", "instances", "reasons"),
    [
        (("555.42.02", "00000000:01:00.0", "NVIDIA GeForce RTX 4060 Laptop GPU", "N/A"), "", "Clocks Event Reasons"),
        (("470.82.01", "00000000:07:00.0", "NVIDIA A100-SXM4-80GB", "Disabled"), "", "Clocks Throttle Reasons"),
        (("535.161.08", "00000000:18:00.0", "NVIDIA H100 80GB HBM3", "Enabled"), INSTANCES, "Clocks Event Reasons"),
        (("550.54.15", "00000009:01:00.0", "NVIDIA GH200 480GB", "Disabled"), "", "Clocks Event Reasons"),
    ],
)
def test_q_of_other_cards(card: tuple[str, str, str, str], instances: str, reasons: str):
    driver, bus, name, mig = card
    text = BLOCK.format(driver=driver, bus=bus, name=name, mig=mig, instances=instances, reasons=reasons)
    for given in (text, text.replace("\n", "\r\n"), f"op@a:~$ nvidia-smi -q\n{text}op@a:~$ "):
        document = topology.parse(given)
        assert (document["kind"], document["gpu_count"], document["driver_version"]) == ("q", 1, driver)
        gpu = document["gpus"][0]
        assert (gpu["name"], gpu["pci.bus_id"], gpu["mig.mode.current"]) == (name, bus, mig)
        assert (gpu["pcie.link.width.current"], gpu["clocks_event_reasons.hw_thermal_slowdown"]) == ("8", "Active")
    assert "cut off" in topology.parse(text[: text.index("    FB Memory")])["reason"]


def test_list_of_mig_devices_and_of_a_lost_gpu():
    first = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-12345678-1234-1234-1234-123456789abc)\n"
    mig = "  MIG 1g.10gb+me  Device  0: (UUID: MIG-12345678-1234-1234-1234-123456789abd)\n"
    assert topology.parse(first + mig)["gpu_count"] == 1
    document = topology.parse(first + "Unable to determine the device handle for GPU1: 0000:02:00.0: Unknown Error\n")
    assert (topology.exit_code(document), document["lost"][0]["index"]) == (2, "1")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("compute_cap\n12.0\n12.0\n", [{"compute_cap": "12.0"}] * 2),
        ("pcie.link.width.current\n16\n8\n", [{"pcie.link.width.current": "16"}, {"pcie.link.width.current": "8"}]),
        ("mig.mode.current\nDisabled\n", [{"mig.mode.current": "Disabled"}]),
        ("pstate\nP0\nP8\n", [{"pstate": "P0"}, {"pstate": "P8"}]),
        ("clocks_event_reasons.active\n0x0000000000000001\n", [{"clocks_event_reasons.active": "0x0000000000000001"}]),
        # as driver 610 prints it
        ("index, x.multiplier s]\n0, [N/A]\n", [{"index": "0", "x.multiplier": "[N/A]"}]),
        # rows that --query-remapped-rows has as well
        ("index, remapped_rows.correctable\n0, 0\n", [{"index": "0", "remapped_rows.correctable": "0"}]),
        ("index, encoder.stats.sessionCount\n0, 3\n", [{"index": "0", "encoder.stats.sessionCount": "3"}]),
        (
            "pci.baseClass, fabric.cliqueId, name\n0x3, [N/A], NVIDIA L40S\n",
            [{"pci.baseClass": "0x3", "fabric.cliqueId": "[N/A]", "name": "NVIDIA L40S"}],
        ),
        (
            "count, vgpu_driver_capability.heterogenous_multivGPU, dramEncryption.mode.current\n1, [N/A], [N/A]\n",
            [
                {
                    "count": "1",
                    "vgpu_driver_capability.heterogenous_multivGPU": "[N/A]",
                    "dramEncryption.mode.current": "[N/A]",
                }
            ],
        ),
        ("\ufeffindex, pcie.link.width.current\r\n0, 16\r\n", [{"index": "0", "pcie.link.width.current": "16"}]),
    ],
)
def test_csv_of_few_fields(text: str, rows: list[dict[str, str]]):
    assert topology.parse(text)["gpus"] == rows


@pytest.mark.parametrize(
    "text",
    [
        "index, name, memory.total [MiB]\n0, NVIDIA L40S, 46068 MiB\n1, NVIDIA L4",
        "index, name\n",
        "index, name\n0, NVIDIA L40S\n1, NVIDIA L40S\n0, NVIDIA L40S\n1, NVIDIA L40\n",
        "index;name\n0;NVIDIA L40S\n",
        "timestamp, pci.bus_id, some field?, name\n2026/08/12 21:53:45.370, 00000000:0C:00.0, 1, NVIDIA L40S\n",
        "gpu_name, gpu_bus_id, remapped_rows.correctable\nNVIDIA L40S, 00000000:0C:00.0, 0\n",
    ],
)
def test_csv_that_is_cut_or_of_several_times_is_not_guessed(text: str):
    document = topology.parse(text)
    assert topology.exit_code(document) == 3
    assert document["reason"]


# kernel logs

XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "prefix",
    [
        "", "[12345.678901] ", "[Mon Nov 30 09:00:00 2026] ", "[Mo Nov 30 09:00:00 2026] ",
        "[lun. nov. 30 09:00:00 2026] ", "2026-11-30T09:00:00,123456+00:00 ", "kern  :err   : [12345.678901] ",
        "<3>[12345.678901] ", "Nov 30 09:00:00 gpu-1 kernel: ", "Nov 30 09:00:00.123456 gpu-1 kernel: ",
        "Mon 2026-11-30 09:00:00 UTC gpu-1 kernel: ", "[ 12345.678901] gpu-1 kernel: ",
        "2026-11-30T09:00:00.123456+00:00 gpu-1 kernel: [12345.678901] ", "1764493200.123456 gpu-1 kernel: ",
        "[  +0.000003] ", "42:[12345.678901] ", "/var/log/kern.log:Nov 30 09:00:00 gpu-1 kernel: ", "> [12345.678901] ",
        '{"_TRANSPORT":"kernel","MESSAGE":"',
    ],
)  # fmt: skip
def test_an_xid_in_every_form_of_log(prefix: str):
    document = topology.parse(f"{prefix}{XID}\n")
    assert topology.exit_code(document) == 2
    assert [(xid["xid"], xid["bus_id"]) for xid in document["xids"]] == [(79, "0000:01:00")]


@pytest.mark.parametrize(
    ("text", "xid", "bus_id", "level"),
    [
        ("NVRM: Xid (0000:01:00): 31, Ch 00000012, engmask 00000111, intr 10000000", 31, "0000:01:00", "warning"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=12, name=python3, channel 0x12", 43, "0000:01:00", "warning"),
        ("NVRM: Xid (PCI:0000:c1:00): 94, pid=12, name=python3, Contained: SM (0x1)", 94, "0000:c1:00", "warning"),
        ("NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=nvidia-smi, Timeout after 6s", 119, "0000:01:00", "critical"),
        ("NVRM: Xid (PCI:00000009:01:00.0): 13, pid=5, name=a b, Graphics", 13, "00000009:01:00.0", "warning"),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", 79, "0000:01:00.0", "critical"),
    ],
)  # fmt: skip
def test_forms_of_xids(text: str, xid: int, bus_id: str, level: str):
    document = topology.parse("".join(f"[  1.000000] {line}\n" for line in text.split("\n")))
    assert [(x["xid"], x["bus_id"], x["level"]) for x in document["xids"]] == [(xid, bus_id, level)]


@pytest.mark.parametrize(
    ("line", "name", "bus_id"),
    [
        ("nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x20]", "io-page-fault", "0000:01:00.0"),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x0020 address=0xd0]", "io-page-fault", "c1:00.0"),
        ("DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xfff [fault]", "io-page-fault", "01:00.0"),
        ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=x", "pcie-fatal", "0000:01:00.0"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 32", "nvswitch-fatal", "0000:c1:00.0"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 32", "nvswitch", "0000:c1:00.0"),
    ],
)  # fmt: skip
def test_events_name_their_device(line: str, name: str, bus_id: str):
    document = topology.parse(f"[   12.000000] {line}\n")
    assert [(event["id"], event["bus_id"]) for event in document["events"]] == [(name, bus_id)]


# the kernel's command line, CPUs

LINE = 'BOOT_IMAGE=/boot/vmlinuz root=UUID=a ro iommu=on iommu=pt dyndbg="file drivers/usb/* +p" pcie_aspm=off quiet'


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        f"> {LINE}\n",
        f"root@a:~# cat /proc/cmdline\n{LINE}\n",
        f"Kernel command line: {LINE}\n",
        f"[    0.000000] Command line: {LINE}\n[    0.000000] BIOS-provided physical RAM map:\n",
        f"[    0.055000] Kernel command line: {LINE}\n[    1.000000] nvidia-nvlink: Nvlink Core is being initialized\n",
    ],
)
def test_a_command_line_in_every_form(text: str):
    parameters = topology.parse(text)["parameters"]
    assert (parameters["iommu"], parameters["pcie_aspm"], parameters["quiet"]) == ("pt", "off", None)
    assert parameters["dyndbg"] == "file drivers/usb/* +p"
    facts = topology.facts_of([("log", topology.parse(text))])
    assert facts.kernel_parameters == parameters


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("initrd=\\EFI\\x\\initrd.img root=/dev/sda ro iommu=pt\n", {"initrd": "\\EFI\\x\\initrd.img", "iommu": "pt"}),
        ("console=ttyS0 console=tty0 rw iommu=off\n", {"console": "tty0", "rw": None, "iommu": "off"}),
    ],
)
def test_command_lines_of_other_loaders(text: str, wanted: dict[str, str | None]):
    assert topology.parse(text)["parameters"].items() >= wanted.items()


def test_what_grub_is_told_is_not_what_is_in_effect():
    assert topology.parse('GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n')["reason"]


def test_lscpu_in_other_languages():
    german = (
        LSCPU.replace("NUMA node(s)", "NUMA-Knoten").replace("NUMA node", "NUMA-Knoten").replace("Socket(s)", "Sockel")
    )
    french = LSCPU.replace("NUMA node(s):", "Nœud(s) NUMA :")
    for number in "01":
        french = french.replace(f"NUMA node{number} CPU(s):", f"Nœud NUMA {number} de processeur(s) :")
    for text in (german, french):
        assert topology.parse(text)["numa_cpus"] == topology.parse(LSCPU)["numa_cpus"]
    cut = "\n".join(line for line in german.split("\n") if "Knoten1" not in line)
    assert "lists 1" in topology.parse(cut)["reason"]


def test_lscpu_with_nodes_that_have_no_cpu():
    """On Grace Hopper and Grace Blackwell the memory of the GPUs makes nodes of its own."""
    empty = "".join(f"  NUMA node{number} CPU(s):      \n" for number in range(1, 9))
    text = f"NUMA:\n  NUMA node(s):           9\n  NUMA node0 CPU(s):      0-71\n{empty}"
    document = topology.parse(text)
    assert (document.get("reason"), document["numa_nodes"]) == (None, 9)
    assert (document["numa_cpus"]["0"], document["numa_cpus"]["8"]) == ("0-71", "")
    assert "lists 8" in topology.parse(text[: text.index("  NUMA node8")])["reason"]


# lspci

SWITCH = """\
c0:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
\tBus: primary=c0, secondary=c1, subordinate=c5, sec-latency=0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)
\t\t\tTrErr- Train- SlotClk- DLActive- BWMgmt- ABWMgmt-
c1:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
\tBus: primary=c1, secondary=c2, subordinate=c2, sec-latency=0
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir{redirect} CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
c2:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition] (rev a1)
\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 unlimited
\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\t", "    "),
        lambda text: f"```\n{text}```\n",
        lambda text: f"op@a:~$ sudo lspci -vvv\n{text}",
        lambda text: text.replace("EgressCtrl- DirectTrans-", "EgressCtrl-\nDirectTrans-"),
        lambda text: "".join(f"> {line}\n" for line in text.split("\n")),
    ],
)
def test_switches_in_lspci(change: Any):
    for redirect in "+-":
        document = topology.parse(change(SWITCH.format(redirect=redirect)))
        assert (document["acs_redirect"], document["downgraded"]) == (redirect == "+", ["c2:00.0"])


def test_each_line_that_grep_left_counts():
    """``lspci -vvv | grep ACSCtl`` is what NCCL's documentation asks for: one line of each device."""
    control = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{} CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
    for signs in ("+-", "-+", "--"):
        document = topology.parse("".join(control.format(sign) for sign in signs))
        assert (document["acs_redirect"], len(document["devices"])) == ("+" in signs, 2)
    links = "\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x16 (ok)\n\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)\n"
    assert topology.parse(links)["downgraded"] == ["(not named)"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SWITCH[:-50], "ends before its LnkSta"),
        (SWITCH[:-20], "LnkSta of c2:00.0 is cut off"),
        (SWITCH[: SWITCH.index("CmpltRedir- Up")].format(redirect="-"), "ACSCtl of c1:00.0 is cut off"),
    ],
)
def test_lspci_that_is_cut_is_not_guessed(text: str, reason: str):
    document = topology.parse(text.format(redirect="-"))
    assert reason in document["reason"]
    assert "downgraded" not in document
