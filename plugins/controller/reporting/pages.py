# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages: one for each host, and an index of all. Everything that came from a host is escaped."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup

from inference import topology
from inference.nccl.lint import lint_environment
from inference.program import ProgramError, nearest
from inference.smoke.stats import figure

from . import documents, plots, summary
from .documents import Host, Instance
from .picture import STYLE, matrix_svg, picture_svg, tree_svg

Json = Mapping[str, Any]

_HISTORY_LENGTH = 500
"""Runs that a history keeps."""
_SHOWN_HISTORIES = ("single.decode_tok_s", "concurrent.tok_s")
_SOURCES = {"topology": documents.TOPOLOGY, "settings": documents.SETTINGS}


@dataclass(frozen=True)
class Said:
    """A finding, with what said it."""

    source: str
    finding: Json

    @property
    def level(self) -> str:
        """Return the finding's level; one that was accepted or will be repaired is called so."""
        what = str(self.finding.get("what") or "")
        level = str(self.finding.get("level") or "")
        return next((name for name in ("waived", "pending") if level == "info" and what.startswith(name)), level)


@dataclass
class Part:
    """An instance as the page shows it."""

    instance: Instance
    verdict: str
    facts: dict[str, str]
    figures: list[dict[str, str]]
    no_figures: str
    plots: list[tuple[str, Markup]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Return whether its test passed and it runs what was meant."""
        return bool(self.instance.report["passed"]) and (self.instance.proof or {}).get("ok") is not False


@dataclass
class Page:
    """A host as its page shows it."""

    host: Host
    parts: list[Part]
    said: list[Said]
    not_checked: list[tuple[str, str, str]]
    """Who did not check it, its id, and why."""
    unreadable: str = ""
    """Why the host's files could not be read."""
    tree: Markup | None = None
    matrix: Markup | None = None

    @property
    def verdict(self) -> tuple[str, str]:
        """Return how the host stands: a word for its colour, and words for people."""
        if self.unreadable:
            return "unknown", "its files cannot be read"
        fits = None if self.host.topology is None else self.host.topology.get("ok")
        if fits is False:
            return "critical", "the machine is not as expected"
        if any(not part.passed for part in self.parts):
            return "critical", "a test failed"
        if not self.parts:
            return "unknown", "nothing was tested"
        return ("unknown", "the machine was not checked") if fits is None else ("good", "passed")

    @property
    def waived(self) -> dict[str, str]:
        """Return reasons by id of what is accepted on this host."""
        return dict((self.host.topology or {}).get("waived") or {})

    def at(self, *levels: str) -> list[Said]:
        """Return the findings of some levels, in the order of these."""
        return [said for level in levels for said in self.said if said.level == level]


def page_of(host: Host) -> Page:
    """Return what the page of a host shows."""
    page = Page(host, [_part(instance) for instance in host.instances], [], [])
    for source, document in _sources(host):
        _gather(page, source, document)
    if host.topology:
        machine = topology.machine_of(host.topology.get("facts") or {}, host.topology.get("findings") or [])
        matrix = matrix_svg(machine)
        page.tree, page.matrix = _drawn(tree_svg(machine)), _drawn(matrix) if matrix else None
    for instance in host.instances:
        _gather_nccl(page, instance)
    return page


def _drawn(text: str) -> Markup:
    """Mark a drawing of ours, whose texts are escaped, as fit for the page."""
    return Markup(text)  # noqa: S704 (see picture and plots: they escape)


def _sources(host: Host) -> Iterable[tuple[str, Json | None]]:
    yield "topology", host.topology
    yield "host settings", host.settings
    for instance in host.instances:
        yield f"smoke test of {instance.name}", instance.report.get("smoke")
        yield f"proof of engagement of {instance.name}", instance.proof


def _gather(page: Page, source: str, document: Json | None) -> None:
    """Add the findings of a document and what it did not check; a document that is missing was not checked."""
    if document is None:
        page.not_checked.append((source, "all of it", "nothing was recorded of it"))
        return
    page.said += [Said(source, finding) for finding in document.get("findings") or []]
    entries = [(source, str(e.get("id")), str(e.get("why"))) for e in document.get("not_checked") or []]
    skipped = [str(stage.get("name")) for stage in document.get("stages") or [] if stage.get("status") == "skipped"]
    if skipped:
        entries.append((source, ", ".join(skipped), "these stages were not run"))
    page.not_checked += entries


def _gather_nccl(page: Page, instance: Instance) -> None:
    """Lint the settings that the engine's process really has."""
    environment = (instance.report.get("engaged") or {}).get("nccl_environment")
    known = ((instance.proof or {}).get("facts") or {}).get("nccl") or {}
    version = known.get("version") or known.get("locked")
    source = f"NCCL settings of {instance.name}"
    if environment is None or not isinstance(version, str):
        what = "the process's settings" if environment is None else "the NCCL release that it loaded"
        page.not_checked.append((source, "lint", f"{what} could not be read"))
        return
    facts = (page.host.topology or {}).get("facts") or {}
    try:
        report = lint_environment(environment, version, topology=facts if facts.get("links") else None)
    except ValueError as error:  # a release or a topology that can't be read
        page.not_checked.append((source, "lint", str(error)))
        return
    _gather(page, source, report.as_dict())


def _part(instance: Instance) -> Part:
    report = instance.report
    engaged, smoke = report["engaged"] or {}, report.get("smoke") or {}
    run = smoke.get("run") or {}
    part = Part(
        instance,
        summary.verdict(report),
        {
            "model": str(run.get("model") or (engaged.get("start") or {}).get("model") or "unknown"),
            "release": summary.release_name(engaged.get("release") or {}),
            "generation": str(report["generation"]),
            "unit": summary.unit_state(engaged.get("unit") or {}),
            "time to ready": summary.ready_after(engaged.get("start") or {}),
            "NCCL settings": summary.nccl_settings(engaged.get("nccl_environment")),
            "tested": f"{run.get('started') or 'unknown'}"
            + (f", {figure(run['seconds'])} s" if run.get("seconds") is not None else ""),
        },
        summary.figure_rows(smoke),
        summary.no_figures(report["mode"]),
    )
    part.plots += [(title, _drawn(text)) for title, text in _plots(instance, smoke) if text]
    return part


def _plots(instance: Instance, smoke: Json) -> Iterable[tuple[str, str | None]]:
    throughput = smoke.get("throughput") or {}
    shapes = [throughput.get("single"), throughput.get("concurrent"), *(throughput.get("sweep") or [])]
    yield "Throughput over the number of streams", plots.sweep_svg([shape for shape in shapes if shape])
    marks = {row.get("metric"): row for row in (smoke.get("gate") or {}).get("rows") or []}
    for metric in _SHOWN_HISTORIES:
        row = marks.get(metric) or {}
        lines = {name: mark["value"] for name in ("floor", "target") if (mark := row.get(name) or {}).get("value")}
        label, unit = summary.metric_label(metric)
        yield f"History, {label}", plots.history_svg(instance.history, metric, unit, lines)


def add(folder: Path, host: str | None, given: Json) -> None:
    """Keep documents for a host, by their kind, to be shown on its page. An empty one leaves what is there."""
    if host is None or "/" in host or host in ("", ".", ".."):
        raise ProgramError("--add needs --host, the name of a host")
    for kind, document in given.items():
        if kind not in _SOURCES:
            raise ProgramError(f"standard input: {kind!r} is none of {', '.join(_SOURCES)}{nearest(kind, _SOURCES)}")
        try:
            documents.check_shape(document, _SOURCES[kind], kind)
        except ProgramError as error:
            raise ProgramError(f"standard input: {error}") from error
    (folder / host).mkdir(parents=True, exist_ok=True)
    for kind, document in given.items():
        if document:
            path = folder / host / documents.FACTS / f"{kind}.json"
            _put(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write(folder: Path, host: str | None = None) -> list[Path]:
    """Write the pages and pictures of the hosts in ``folder`` (or of one), and the index. Return what was written."""
    if not folder.is_dir():
        raise ProgramError(f"{folder}: no such folder; site.yml and verify.yml write it")
    written: list[Path] = []
    pages = []
    chosen = documents.hosts_in(folder, host)
    for path in chosen:
        documents.read_host(path)  # all of them before anything is written
    for path in documents.hosts_in(folder):
        page = _written(path, written) if path in chosen else _brief_page(path)
        pages += [page] if page else []
    _put(folder / "index.html", _render("fleet.html", pages=pages, title="Inference hosts"))
    return [*written, folder / "index.html"]


def _written(path: Path, written: list[Path]) -> Page | None:
    """Write the page of a host and return it; None for a folder that holds nothing of one."""
    for report in documents.reports_in(path):
        _remember(path, report)
    host = documents.read_host(path)
    if host.is_empty:
        return None
    page = page_of(host)
    written += _write_host(path, page)
    return page


def _brief_page(path: Path) -> Page | None:
    """Return as much of a page as the index shows. Files of another host that can't be read don't stop this one's."""
    try:
        host = documents.read_host(path)
    except ProgramError as error:
        return Page(Host(path.name), [], [], [], unreadable=str(error))
    parts = [
        Part(each, summary.verdict(each.report), {}, summary.figure_rows(each.report.get("smoke") or {}), "")
        for each in host.instances
    ]
    page = Page(host, parts, [], [])
    for source, document in _sources(host):
        _gather(page, source, document)
    for instance in host.instances:
        _gather_nccl(page, instance)
    return None if host.is_empty else page


def _write_host(path: Path, page: Page) -> list[Path]:
    written = [path / "index.html"]
    if page.host.topology:
        machine = topology.machine_of(page.host.topology.get("facts") or {}, page.host.topology.get("findings") or [])
        written.append(path / "topology.svg")
        _put(written[-1], picture_svg(machine, page.host.name))
    _put(written[0], _render("host.html", page=page, title=page.host.name))
    return written


def _remember(path: Path, instance: str) -> None:
    """Add the figures of an instance's report to its history, once."""
    report = documents.read_report(path, instance)
    facts = path / documents.FACTS
    smoke, engaged = report.get("smoke") or {}, report["engaged"] or {}
    metrics, when = (smoke.get("gate") or {}).get("metrics"), (smoke.get("run") or {}).get("started")
    known = list(documents.read_history(facts, instance))
    if not metrics or not when or any(run.get("when") == when for run in known):
        return
    run = {
        "when": when,
        "passed": report["passed"],
        "release": (engaged.get("release") or {}).get("name"),
        "generation": report["generation"],
        "metrics": metrics,
    }
    lines = [json.dumps(entry, ensure_ascii=False) for entry in [*known, run][-_HISTORY_LENGTH:]]
    _put(documents.history_file(facts, instance), "\n".join(lines) + "\n")


def _put(path: Path, text: str) -> None:
    """Write a file whole or not at all: several hosts' runs may write the index at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode(errors="backslashreplace")  # JSON may hold halves of characters, UTF-8 has none
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
        temporary.write(content)
    Path(temporary.name).chmod(0o644)
    os.replace(temporary.name, path)  # noqa: PTH105 (atomic, and said so)


def _render(template: str, **values: Any) -> str:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=ChainableUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(style=_drawn(STYLE), quantity=summary.quantity, **values)
