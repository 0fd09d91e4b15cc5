# SPDX-License-Identifier: Apache-2.0
"""Health of each GPU: memory errors, repairs, Xids, throttling, power, persistence, BAR1 and who uses its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..findings import Finding, Level, NotChecked
from .checks import Check, Result, listed, places
from .expectations import Expectation
from .facts import Facts, bdf, named, number, value

_REBOOT = "drain the host and reboot it (or reset the GPU with nothing running on it)"
_REPLACE = "take the GPU out of service and open a case with its vendor (nvidia-bug-report.sh)"

_BOTH: tuple[Level, ...] = ("critical", "warning")

_COUNTERS: tuple[tuple[str, Level, str, tuple[str, ...], str], ...] = (
    (
        "ecc-uncorrected",
        "critical",
        "uncorrectable memory errors since the last reset",
        (
            "ecc.errors.uncorrected.volatile.total",
            "ecc.errors.uncorrected.volatile.dram",
            "ecc.errors.uncorrected.volatile.sram",
            "ecc.errors.uncorrected.volatile.sram.parity",
            "ecc.errors.uncorrected.volatile.sram.secded",
        ),
        f"{_REBOOT}; a GPU that counts them again is replaced",
    ),
    (
        "ecc-history",
        "warning",
        "uncorrectable memory errors in the GPU's lifetime",
        (
            "ecc.errors.uncorrected.aggregate.total",
            "ecc.errors.uncorrected.aggregate.dram",
            "ecc.errors.uncorrected.aggregate.sram.parity",
            "ecc.errors.uncorrected.aggregate.sram.secded",
        ),
        "watch whether the number grows: a repaired cell is no fault, a growing count is",
    ),
    (
        "remapped-rows",
        "warning",
        "memory rows were remapped after uncorrectable errors",
        ("remapped_rows.uncorrectable",),
        "repaired, and no fault by itself: watch whether the number grows",
    ),
    (
        "retired-pages",
        "warning",
        "memory pages were retired after double-bit errors",
        ("retired_pages.double_bit.count",),
        "repaired, and no fault by itself: watch whether the number grows",
    ),
)
"""Counters that should be zero: id, level, what, fields, fix."""

_FLAGS: tuple[tuple[str, Level, str, str, tuple[str, ...], str], ...] = (
    ("remap-failure", "critical", "remapping a memory row failed", "No", ("remapped_rows.failure",), _REPLACE),
    (
        "memory-unrepairable",
        "critical",
        "the GPU has unrepairable memory",
        "No",
        ("ecc.unrepairable_memory",),
        _REPLACE,
    ),
    (
        "repair-pending",
        "warning",
        "a memory repair waits for a reset",
        "No",
        ("remapped_rows.pending", "retired_pages.pending", "ecc.channel_repair_pending", "ecc.tpc_repair_pending"),
        _REBOOT,
    ),
    (
        "throttling",
        "warning",
        "the hardware slows the GPU down now",
        "Not Active",
        (
            "clocks_event_reasons.hw_slowdown",
            "clocks_event_reasons.hw_thermal_slowdown",
            "clocks_event_reasons.hw_power_brake_slowdown",
            "clocks_event_reasons.sw_thermal_slowdown",
        ),
        "thermal: airflow, fans, inlet temperature; power brake: power supplies and cables of this card",
    ),
)
"""States that should have one value: id, level, what, that value, fields, fix."""


def check_counters(facts: Facts, _: Expectation) -> Result:
    """Counters of errors and repairs are zero."""
    for check, level, what, names, fix in _COUNTERS:
        known = {named(gpu): _numbers(gpu, names) for gpu in facts.gpus}
        if not any(known.values()):
            yield NotChecked(check, "no answer shows it (nvidia-smi -q)")
        bad = [f"{gpu}: {_pairs(counts)}" for gpu, counts in known.items() if any(counts.values())]
        if bad:
            yield Finding(check, level, what, listed(bad), "0", fix, where=places(bad))


def _numbers(gpu: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {name: count for name in names if (count := number(gpu, name)) is not None}


def _pairs(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name.rpartition('volatile.')[2]} {count:.0f}" for name, count in counts.items() if count)


def check_flags(facts: Facts, _: Expectation) -> Result:
    """No repair has failed or is pending, nothing slows a GPU down."""
    for check, level, what, good, names, fix in _FLAGS:
        known = {named(gpu): {n: text for n in names if (text := value(gpu, n))} for gpu in facts.gpus}
        if not any(known.values()):
            yield NotChecked(check, "no answer shows it (nvidia-smi -q)")
        bad = [f"{gpu}: {n} {text}" for gpu, states in known.items() for n, text in states.items() if text != good]
        if bad:
            yield Finding(check, level, what, listed(bad), good, fix, where=places(bad))


def check_recovery(facts: Facts, _: Expectation) -> Result:
    """Find GPUs for which the driver asks for a recovery action."""
    known = {named(gpu): text for gpu in facts.gpus if (text := value(gpu, "gpu_recovery_action"))}
    if not known:
        yield NotChecked("recovery-action", "no answer shows it (nvidia-smi -q of recent drivers)")
    bad = [f"{gpu}: {text}" for gpu, text in known.items() if text != "None"]
    if bad:
        yield Finding(
            "recovery-action",
            "critical",
            "the driver asks for a recovery action",
            listed(bad),
            "None",
            "do what it says with nothing running on the GPU: reset it, or drain and reboot the host",
            where=places(bad),
        )


def check_xids(facts: Facts, _: Expectation) -> Result:
    """Report Xids and PCIe or IOMMU errors of this boot: critical where a GPU can't be relied upon since."""
    if facts.xids is None:
        for check in ("xid", "kernel-events"):
            yield NotChecked(check, facts.unread.get("kernel log", "no kernel log was given"))
        return
    for level in _BOTH:
        found = {(x["xid"], x["bus_id"]): x for x in facts.xids if x["level"] == level}
        if found:
            yield Finding(
                "xid",
                level,
                "the driver reported errors of a GPU since boot",
                listed(f"Xid {code} on {bus_id}: {x['meaning']}" for (code, bus_id), x in found.items()),
                "no Xid",
                "; ".join(dict.fromkeys(x["action"] for x in found.values())),
                where=tuple(dict.fromkeys(bdf(bus_id) for _, bus_id in found)),
            )
    events = facts.kernel_events or []
    for level in _BOTH:
        seen = dict.fromkeys(_event(event) for event in events if event["level"] == level)
        if seen:
            yield Finding(
                "kernel-events",
                level,
                "the kernel reported errors around GPUs, PCIe or the IOMMU since boot",
                listed(seen, 6),
                "none",
                "io-page-fault: the IOMMU blocks a GPU's access (iommu=off or pt); pcie-*: seating, riser, cable or"
                " retimer of the device named; init-failed, locked-up: reboot, then test the card",
                where=places(seen),
            )


def _event(event: Mapping[str, Any]) -> str:
    return f"{event['id']}{' on ' + event['bus_id'] if event.get('bus_id') else ''}"


def check_power(facts: Facts, expect: Expectation) -> Result:
    """Power limit not below the card's default, persistence mode on."""
    limits = {named(gpu): (number(gpu, "power.limit"), _default_limit(gpu, expect)) for gpu in facts.gpus}
    known = {gpu: pair for gpu, pair in limits.items() if None not in pair}
    if not known:
        yield NotChecked("power-limit", "no answer shows the limit and the card's default (nvidia-smi -q)")
    low = [f"{gpu}: {now:.0f} W of {least:.0f} W" for gpu, (now, least) in known.items() if (now or 0) < (least or 0)]
    if low:
        least_watts = expect.power_limit_min_watts
        yield Finding(
            "power-limit",
            "warning",
            "a GPU's power limit is lowered",
            listed(low),
            "the card's default" if least_watts is None else f"{least_watts} W",
            "nvidia-smi -i GPU -pl WATTS; if it is on purpose, set power_limit_min_watts",
            repaired_by="host_power_limit",
            where=places(low),
        )
    if expect.persistence is None:
        return
    modes = {named(gpu): mode for gpu in facts.gpus if (mode := value(gpu, "persistence_mode"))}
    if not modes:
        yield NotChecked("persistence", "no answer shows persistence_mode")
    wanted = ("Enabled", "On") if expect.persistence else ("Disabled", "Off")
    off = [f"{gpu}: {mode}" for gpu, mode in modes.items() if mode not in wanted]
    if off:
        yield Finding("persistence", "warning", f"persistence mode is not {wanted[0].lower()}", listed(off), wanted[0],
                      "enable nvidia-persistenced: without it the driver unloads a GPU's state with its last user, and"
                      " each start takes seconds longer", repaired_by="host_persistence",
                      where=places(off))  # fmt: skip


def _default_limit(gpu: Mapping[str, Any], expect: Expectation) -> float | None:
    least = expect.power_limit_min_watts
    return float(least) if least is not None else number(gpu, "power.default_limit")


def check_bar1(facts: Facts, _: Expectation) -> Result:
    """Find GPUs whose memory can't be mapped whole by their peers (resizable BAR)."""
    sizes = {named(gpu): (number(gpu, "bar1.total"), number(gpu, "memory.total")) for gpu in facts.gpus}
    known = {gpu: pair for gpu, pair in sizes.items() if None not in pair}
    if not known:
        yield NotChecked("bar1", "no answer shows BAR1 (nvidia-smi -q)")
    small = [f"{gpu}: {bar:.0f} of {total:.0f} MiB" for gpu, (bar, total) in known.items() if (bar or 0) < (total or 0)]
    if small:
        yield Finding("bar1", "warning", "BAR1 is smaller than the GPU's memory", listed(small), "all of the memory",
                      "switch on Above 4G Decoding and Resizable BAR in the BIOS", where=places(small))  # fmt: skip


def check_memory_used(facts: Facts, expect: Expectation) -> Result:
    """Nobody but instances of this toolkit holds GPU memory. It goes by memory: a container hides its processes."""
    most = expect.gpu_memory_used_max_mib
    if most is None:
        return
    used = [(gpu, mib) for gpu in facts.gpus if (mib := number(gpu, "memory.used")) is not None]
    if not used:
        yield NotChecked("gpu-memory-used", "no answer shows memory.used")
    foreign = [f"{named(gpu)}: {mib:.0f} MiB ({_users(gpu, facts)})" for gpu, mib in used
               if mib > most and not _only_ours(gpu, facts)]  # fmt: skip
    if foreign:
        yield Finding(
            "gpu-memory-used",
            "warning",
            "GPU memory is in use by something that is no instance of this toolkit",
            listed(foreign),
            f"at most {most} MiB",
            "end the program named; none named: it runs in a container or belongs to another user; look at"
            " `fuser -v /dev/nvidia*` as root",
            where=places(foreign),
        )


def _processes(gpu: Mapping[str, Any], facts: Facts) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    known = facts.host.get("gpu_processes", {})
    return [(process, known.get(process.get("pid"), {})) for process in gpu.get("processes") or []]


def _only_ours(gpu: Mapping[str, Any], facts: Facts) -> bool:
    processes = _processes(gpu, facts)
    return bool(processes) and all(details.get("ours") for _, details in processes)


def _users(gpu: Mapping[str, Any], facts: Facts) -> str:
    users = [
        f"{process.get('process_name') or '?'} pid {process.get('pid') or '?'}"
        + (f" of {details['unit']}" if details.get("unit") else "")
        for process, details in _processes(gpu, facts)
        if not details.get("ours")
    ]
    return ", ".join(users) or "no process is shown"


HEALTH_CHECKS: tuple[Check, ...] = (
    *(check_counters, check_flags, check_recovery, check_xids, check_power, check_bar1, check_memory_used),
)
"""Checks of each GPU's health."""
