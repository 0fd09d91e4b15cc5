# SPDX-License-Identifier: Apache-2.0
"""The settings of a host: compared first, then applied in one go, then looked at again.

Files come rendered; this package knows which of them fit the host, what has to be done for each setting besides writing
files, and whether it is in effect: a setting counts as done only when the kernel, systemd or the driver says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from .. import managed_files
from ..findings import Finding
from . import boot, modules, owned, sysctls, system, units
from .machine import HostError, Machine
from .outcome import Outcome, Settings, Step

NOTICE = "/run/motd.d/60-inference-reboot"
"""What a person who logs in is told while a reboot is due; gone with the boot."""


@dataclass
class Plan:
    """What leads from what is there to what is wanted, in order. Nothing of it was done."""

    files: managed_files.Plan
    first: list[Step] = field(default_factory=list)
    """Before files are written and removed."""
    then: list[Step] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files.changes or self.first or self.then)

    def diff(self) -> list[dict[str, str]]:
        """Return the diff in the form that Ansible shows: files, then what is done besides."""
        steps = [
            {"before_header": s.setting, "after_header": s.what, "before": s.before, "after": s.after or s.what + "\n"}
            for s in (*self.first, *self.then)
        ]
        return [*self.files.diff(), *steps]


def plan(settings: Settings, files: Mapping[str, str | None], machine: Machine) -> Plan:
    """Compare everything with what is there. Raises HostError for whatever cannot be used; changes nothing.

    ``files``: path to rendered content; blank content means that the setting is off.
    """
    if problem := boot.refusal(settings, machine) or units.refusal(settings, machine):
        raise HostError(problem)
    services = units.Services(machine)
    overwrite = bool(settings.get("host_overwrite"))
    wanted = {**_fitting(settings, files, machine), **units.host_files(settings, machine, services)}
    grub = {path: wanted.pop(path) for path in [boot.DROP_IN] if path in wanted}
    entries = owned.entries(wanted, machine, overwrite=overwrite)
    drop_in = next((e.content for e in owned.entries(grub, machine, overwrite=overwrite) if e.state == "file"), None)
    planned = _compared([*owned.folders(entries), *entries])
    changed = {_on_host(path, machine) for path in planned.paths}
    return Plan(
        planned,
        list(units.stop_steps(settings, machine, services)),
        [*_steps(settings, machine, services, changed, bool(wanted.get(modules.FILE, "").strip())),
         *boot.steps(settings, machine, drop_in)],
    )  # fmt: skip


def _on_host(path: str, machine: Machine) -> str:
    root = str(machine.root).rstrip("/")
    return path.removeprefix(root) if root else path


def _compared(entries: list[managed_files.Entry]) -> managed_files.Plan:
    try:
        return managed_files.plan(entries)
    except managed_files.ManagedFilesError as error:
        raise HostError(str(error)) from error


def _fitting(settings: Settings, files: Mapping[str, str | None], machine: Machine) -> dict[str, str]:
    """Return the files without those that cannot act here: a unit that has to fail helps nobody."""
    impossible = {f"{units.SYSTEM}/{units.unit_of(name)}" for name in units.impossible(settings, machine)}
    if machine.contained:
        impossible |= {boot.DROP_IN, modules.FILE, units.SESSIONS}
    elif boot.next_boot(machine) is None:
        impossible.add(boot.DROP_IN)
    # a template that renders to nothing arrives as null
    return {path: "" if path in impossible else content or "" for path, content in files.items()}


def _steps(
    settings: Settings, machine: Machine, services: units.Services, changed: set[str], options: bool
) -> Iterator[Step]:
    return chain(
        sysctls.steps(settings, machine),
        units.reload_step(machine, changed),
        units.limit_steps(settings, machine, services, changed),
        units.journal_steps(settings, machine, services, changed),
        units.start_steps(settings, machine, services, changed),
        units.daemon_steps(settings, machine, services, changed),
        modules.steps(machine, written=modules.FILE in changed, wanted=options),
    )


def apply(planned: Plan) -> None:
    """Do what was planned. Killed in between, the next run finds what is left."""
    for step in planned.first:
        step.act()
    try:
        managed_files.apply(planned.files)
    except managed_files.ManagedFilesError as error:
        raise HostError(str(error)) from error
    for step in planned.then:
        step.act()


def look(settings: Settings, machine: Machine) -> list[Outcome]:
    """Say how every enabled setting stands, and what waits for a reboot on its own."""
    services = units.Services(machine)
    return [
        *boot.look(settings, machine),
        *modules.look(settings, machine),
        *units.look_at_boot(settings, machine, services),
        *units.look_daemons(settings, machine, services),
        *sysctls.look(settings, machine),
        *units.look_limits(settings, machine, services),
        *units.look_journal(settings, machine, services),
        *_look_held(settings, machine),
        *system.pending(machine, system.packages(machine)),
    ]


def _look_held(settings: Settings, machine: Machine) -> Iterator[Outcome]:
    if settings.get("host_held_packages"):
        written = machine.path(system.HELD_FILE).is_file()
        yield Outcome(
            "host_held_packages", "in effect" if written else "to do", "no unattended upgrade of driver, CUDA and NCCL"
        )


def reboot_reasons(outcomes: list[Outcome], findings: list[Mapping[str, Any]]) -> list[str]:
    """Return why a reboot is due. ``findings``: those of the topology stage, of which a reboot repairs some."""
    reasons = [f"{o.setting}: {o.what}" for o in outcomes if o.reboot]
    return reasons + [f"{f['id']}: {f['seen']}" for f in findings if f.get("repaired_by") == "host_reboot"]


def notice(machine: Machine, reasons: list[str]) -> None:
    """Tell whoever logs in that a reboot is due, until it is done."""
    file = machine.path(NOTICE)
    if not reasons:
        file.unlink(missing_ok=True)
        return
    text = "A reboot is due, by the inference toolkit:\n" + "".join(f"  {reason}\n" for reason in reasons)
    if not file.is_file() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def report(settings: Settings, machine: Machine, findings: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how the host stands: outcomes, findings, packages that are missing, and why a reboot is due."""
    outcomes = look(settings, machine)
    installed = system.packages(machine)
    found: list[Finding] = system.check(settings, machine, installed)
    return {
        "settings": [outcome.as_dict() for outcome in outcomes],
        "not_done": [str(o) for o in outcomes if o.state == "not done"],
        "findings": [finding.as_dict() for finding in found],
        "missing_packages": installed.missing(settings.get("host_all_packages") or []),
        "reboot": reboot_reasons(outcomes, findings),
    }
