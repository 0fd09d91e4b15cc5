# SPDX-License-Identifier: Apache-2.0
"""Pages, pictures and plots: what is missing is said, nothing from a host becomes markup, no shape makes them crash.

The documents are hand-made in the shapes that roles and programs write.
"""

from __future__ import annotations

import html
import html.parser
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference import topology
from inference.program import ProgramError
from reporting import documents, pages, plots, summary
from reporting.documents import NUMBER, Each, Host, Instance
from reporting.picture import matrix_svg, picture_svg, tree_svg

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures/nvidia-smi"
SAMPLES: Mapping[Any, Any] = {str: "a text", bool: True, int: 3, NUMBER: 2.5, Any: "anything"}
PAYLOAD = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&amp;{{ 7 * 7 }}"
SPECIAL: Mapping[str, Any] = {
    "level": "critical", "gpu_ids": [0, 1], "links": [["X", "SYS"], ["SYS", "X"]], "nic_links": [["PIX"], ["SYS"]],
    "index": "0", "pci.bus_id": "00000000:01:00.0", "where": ["GPU0", "GPU0-GPU1"], "mode": "full", "status": "passed",
    "started": "2026-11-30T09:00:00Z", "state": "applied", "metric": "single.decode_tok_s",
}  # fmt: skip
"""Values without which a document is drawn in part only."""


def sample(shape: Any, text: str = "a text", key: str = "") -> Any:
    """Return a document of a shape, filled in everywhere."""
    if key in SPECIAL:
        return SPECIAL[key]
    if isinstance(shape, Each):
        return {text: sample(shape.of, text), "other": sample(shape.of, text)}
    if isinstance(shape, Mapping):
        return {name: sample(inner, text, name) for name, inner in shape.items()}
    if isinstance(shape, list):
        return [sample(shape[0], text), sample(shape[0], text)]
    return text if shape in (str, Any) else SAMPLES[shape]


def report(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = sample(documents.REPORT)
    shapes = [
        {"concurrency": n, "tok_s": {"median": 40.0 * n}, "decode_tok_s": {"median": 40.0 - n}} for n in (1, 4, 16)
    ]
    found["smoke"]["throughput"]["sweep"] = shapes
    found["smoke"]["gate"]["metrics"] = {"single.decode_tok_s": 63.6, "concurrent.tok_s": 2370.0}
    found["engaged"]["nccl_environment"] = {"NCCL_PROTO": "LL"}
    found["smoke"].pop("proof")
    return {**found, "host": "gpu-1", "instance": "kimi", "passed": True, **changes}


def put(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "gpu-1/kimi.json", report())
    put(tmp_path / "gpu-1/facts/topology.json", {**sample(documents.TOPOLOGY), "ok": True, "findings": []})
    return tmp_path


def page(folder: Path, host: str = "gpu-1") -> str:
    pages.write(folder)
    return (folder / host / "index.html").read_text()


def shown(text: str) -> str:
    """Return the words of a page as a reader sees them."""
    body = re.sub(r"<style>.*?</style>|<title>.*?</title>", "", text, flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", body).split()))


# what is on a page


def test_a_page_shows_what_was_measured_and_proved(folder: Path):
    put(folder / "gpu-1/proof-kimi.json", {**sample(documents.PROOF), "ok": True, "findings": []})
    put(folder / "gpu-1/facts/settings.json", {
        "settings": [
            {"setting": "host_iommu", "state": "pending", "what": "iommu=pt", "why": "a reboot", "reboot": True},
        ],
        "reboot": ["iommu=pt is not in effect"], "not_done": ["host_acs: a container"], "findings": [],
    })  # fmt: skip
    text = shown(page(folder))
    for words in (
        "passed (full smoke test)", "single: speed of a stream", "2.5 tok/s", "What was meant is what runs.",
        "a reboot is due iommu=pt is not in effect", "pending after a reboot", "host_acs: a container", "NUMA node",
        "Throughput over the number of streams", "Applied: a text, a text.",
    ):  # fmt: skip
        assert words in text


def test_what_is_missing_is_said_to_be_not_checked(tmp_path: Path):
    put(tmp_path / "gpu-1/kimi.json", report(smoke=None, topology=None, engaged=None, mode="quick"))
    text = shown(page(tmp_path))
    for words in (
        "Not checked: there is no picture.", "Not checked: whether the process, its backends and its code are what was",
        "Not checked: how the host's settings stand.", "A quick test measures none.",
        "topology all of it : nothing was recorded of it", "the machine was not checked",
        "NCCL settings of kimi lint : the process's settings could not be read",
    ):  # fmt: skip
        assert words in text
    assert "fits" not in text


def test_a_host_that_was_stopped_by_its_topology_has_a_page_and_a_picture(tmp_path: Path):
    finding = {"id": "gpu-count", "level": "critical", "what": "7 GPUs instead of 8", "seen": "7", "expected": "8"}
    pages.add(tmp_path, "gpu-1", {"topology": {**sample(documents.TOPOLOGY), "ok": False, "findings": [finding]}})
    text = page(tmp_path)
    assert "Not tested: no instance has a report yet." in text
    assert "the machine is not as expected" in text
    assert "7 GPUs instead of 8" in (tmp_path / "gpu-1/topology.svg").read_text()


def test_waivers_are_repeated_with_their_reason_and_whether_they_are_still_needed(folder: Path):
    waived = {"id": "mig", "level": "info", "what": "waived (small models): MIG is on", "seen": "GPU0: Enabled"}
    document = {**sample(documents.TOPOLOGY), "waived": {"mig": "small models", "bar1": "old"}, "findings": [waived]}
    pages.add(folder, "gpu-1", {"topology": document, "settings": {}})
    text = shown(page(folder))
    assert "mig small models GPU0: Enabled" in text
    assert "bar1 old not found in this run: the waiver may be removed" in text


def test_a_proof_that_failed_makes_the_host_fail_and_is_read_from_the_report_too(folder: Path):
    failed = {"ok": False, "findings": [{"id": "not-engaged", "level": "critical", "what": "silently replaced"}]}
    smoke = {**report()["smoke"], "proof": failed}
    put(folder / "gpu-1/kimi.json", report(smoke=smoke))
    text = shown(page(folder))
    assert "Something that was meant does not run." in text
    assert "critical: not-engaged" in text
    assert "a test failed" in text


def test_nccl_settings_are_linted_for_the_release_that_was_loaded(folder: Path):
    put(folder / "gpu-1/kimi.json", report(engaged={"nccl_environment": {"NCLL_PROTO": "LL", "NCCL_PROTOO": "LL"}}))
    assert "the NCCL release that it loaded could not be read" in page(folder)
    put(folder / "gpu-1/proof-kimi.json", {"ok": True, "facts": {"nccl": {"version": "2.30.7"}}})
    assert "NCCL_PROTOO" in shown(page(folder)).split("What was found")[1].split("kimi passed")[0]


def test_the_index_lists_the_hosts_and_survives_files_of_others(folder: Path):
    put(folder / "gpu-2/kimi.json", report(host="gpu-2", passed=False))
    (folder / "gpu-3").mkdir()
    (folder / "gpu-3/kimi.json").write_text('{"instance": 3}')
    (folder / "nothing").mkdir()
    with pytest.raises(ProgramError, match=r"gpu-3/kimi\.json"):
        pages.write(folder)
    assert not list(folder.rglob("*.html"))
    written = pages.write(folder, "gpu-1")
    assert [path.relative_to(folder).as_posix() for path in written] == [
        "gpu-1/index.html", "gpu-1/topology.svg", "index.html",
    ]  # fmt: skip
    text = shown((folder / "index.html").read_text())
    assert "3 hosts, 1 passed" in text
    assert "gpu-2 a test failed" in text
    assert "gpu-3 its files cannot be read" in text
    assert not (folder / "gpu-2/index.html").exists()
    with pytest.raises(ProgramError, match="did you mean 'gpu-1'"):
        pages.write(folder, "gpu1")


KEPT = ("facts/topology.json", "facts/settings.json", "proof-kimi.json", "kimi.json")
DAMAGES: tuple[tuple[bytes | None, str], ...] = (
    (b"", "it is empty"), (b"{", "not JSON"), (b"[]", "object"), (b"\xff", "not text"), (None, "Is a directory"),
)  # fmt: skip
DAMAGED = [
    *((name, raw, why) for name in KEPT for raw, why in DAMAGES),
    *((name, b'{"findings": 3}', "findings: a list is expected") for name in KEPT[:3]),
    (KEPT[3], b'{"instance": 3}', "instance: a text is expected"),
]


@pytest.mark.parametrize(("name", "raw", "why"), DAMAGED)
def test_a_damaged_file_is_named_once_with_the_way_out(folder: Path, name: str, raw: bytes | None, why: str):
    pages.write(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.html")}
    path = folder / "gpu-1" / name
    path.unlink(missing_ok=True)
    if raw is None:
        path.mkdir()
    else:
        path.write_bytes(raw)
    with pytest.raises(ProgramError) as caught:
        pages.write(folder)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).count(str(path)) == 1
    assert why in str(caught.value)
    assert "remove the file: the next run of the play that wrote it writes it anew" in str(caught.value)
    assert {path: path.read_bytes() for path in folder.rglob("*.html")} == before


def test_a_damaged_line_of_a_history_is_named(folder: Path):
    pages.write(folder)
    (history,) = (folder / "gpu-1/facts").glob("history-*")
    history.write_text(history.read_text() + "{\n")
    with pytest.raises(ProgramError, match=r"history-kimi\.jsonl:2: not JSON .*remove this line"):
        pages.write(folder)


def test_half_a_character_is_drawn_as_an_escape(folder: Path):
    put(folder / "gpu-1/kimi.json", report(generation="\ud800"))
    assert "\\ud800" in page(folder)


def test_a_host_of_which_nothing_is_known_has_no_page(tmp_path: Path):
    pages.add(tmp_path, "gpu-1", {"topology": {}, "settings": {}})
    assert pages.write(tmp_path, "gpu-1") == [tmp_path / "index.html"]
    assert "No host has a report yet" in (tmp_path / "index.html").read_text()


def test_json_that_names_no_instance_is_somebody_elses(folder: Path):
    put(folder / "gpu-1/tune.json", {"schema": 1, "rows": []})
    assert "tune" not in shown(page(folder))


def test_pages_are_the_same_when_nothing_changed(folder: Path):
    first = page(folder)
    assert page(folder) == first
    assert not list(folder.rglob(".*"))


def test_a_page_needs_nothing_from_elsewhere(folder: Path):
    text = page(folder)
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
    links = re.findall(r'(?:href|src|url)\s*[=(]\s*"?([^")> ]*)', text)
    assert {link for link in links if not link.startswith("#")} == {"../index.html", "topology.svg", "kimi.json"}


# histories


def test_the_history_grows_once_for_each_run(folder: Path):
    for number in range(3):
        smoke = report()["smoke"]
        smoke["run"]["started"] = f"2026-11-{number + 1:02}T00:00:00Z"
        smoke["gate"]["metrics"] = {"single.decode_tok_s": 60.0 + number}
        put(folder / "gpu-1/kimi.json", report(smoke=smoke, passed=number != 1))
        pages.write(folder)
        pages.write(folder)
    runs = list(documents.read_history(folder / "gpu-1/facts", "kimi"))
    assert [(run["metrics"]["single.decode_tok_s"], run["passed"]) for run in runs] == [
        (60, True),
        (61, False),
        (62, True),
    ]
    assert "History, single: speed of a stream" in page(folder)


def test_a_history_is_cut_to_its_length(folder: Path):
    lines = [{"when": f"{n:04}", "passed": True, "metrics": {"a": 1}} for n in range(600)]
    (folder / "gpu-1/facts/history-kimi.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pages.write(folder)
    runs = list(documents.read_history(folder / "gpu-1/facts", "kimi"))
    assert len(runs) == 500
    assert runs[-1]["when"] == "2026-11-30T09:00:00Z"


def test_a_run_without_figures_is_no_history(tmp_path: Path):
    put(tmp_path / "gpu-1/kimi.json", report(smoke={"gate": {"metrics": {}}}))
    pages.write(tmp_path)
    assert not (tmp_path / "gpu-1/facts").exists()


# plots


@pytest.mark.parametrize("rows", [[], [{"concurrency": 1, "tok_s": {"median": 1.0}}], [{"concurrency": 4}, {}]])
def test_a_single_point_is_no_plot(rows: list[Any]):
    assert plots.sweep_svg(rows) is None
    assert plots.history_svg([{"metrics": {"a": 1.0}}], "a", "s", {}) is None


def test_a_plot_follows_the_colours_of_the_page_and_has_its_figures_as_text():
    text = plots.sweep_svg([{"concurrency": n, "tok_s": {"median": 100.0 * n}} for n in (1, 2, 64)])
    assert text
    ElementTree.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))  # noqa: S314 - ours
    assert "var(--mark)" in text
    assert ">6,400<" in text
    assert not re.search(r"#0[0-9]0[0-9]0[0-9]", text)


def test_a_history_crosses_out_failed_runs_and_marks_other_releases():
    runs = [
        {"when": f"2026-11-{n:02}", "passed": n != 2, "release": "ab"[n > 2], "metrics": {"a": n}} for n in range(1, 5)
    ]
    text = plots.history_svg(runs, "a", "tok/s", {"floor": 1.0, "target": 5.0})
    assert text
    assert all(f">{word}<" in text for word in ("passed", "failed", "floor", "target", "2026-11-01"))
    plain = plots.history_svg([{**run, "release": "a", "passed": True} for run in runs], "a", "tok/s", {})
    assert plain
    assert ">failed<" not in plain
    assert ">floor<" not in plain


def test_a_strange_date_is_text_to_a_plot():
    runs = [{"when": "$\\frac{<b>", "passed": True, "metrics": {"a": n}} for n in range(3)]
    text = plots.history_svg(runs, "a", "s", {})
    assert text
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


# nothing from a host becomes markup


class Markup(html.parser.HTMLParser):
    """Gathers elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.data += data


def markup(text: str) -> Markup:
    parser = Markup()
    parser.feed(text)
    return parser


def assert_harmless(text: str) -> None:
    found = markup(text)
    assert not found.tags & {"script", "img", "iframe", "object", "embed", "base", "form", "link", "foreignobject"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not [value for name, value in found.attributes if name in ("href", "src") and ":" in (value or "")]
    assert "alert(1)" in found.data


def hostile() -> Host:
    """Return a host whose every text is an attack."""
    found = sample(documents.REPORT, PAYLOAD)
    found["engaged"]["nccl_environment"] = {"NCCL_DEBUG": PAYLOAD, PAYLOAD: PAYLOAD}
    instance = Instance(PAYLOAD, {**found, "instance": PAYLOAD, "host": PAYLOAD}, sample(documents.PROOF, PAYLOAD))
    instance.history = [{"when": PAYLOAD, "passed": True, "metrics": {"single.decode_tok_s": n}} for n in range(3)]
    instance.proof = {**(instance.proof or {}), "facts": {"nccl": {"version": PAYLOAD}, "command": PAYLOAD}}
    return Host(PAYLOAD, sample(documents.TOPOLOGY, PAYLOAD), sample(documents.SETTINGS, PAYLOAD), [instance])


def test_nothing_from_a_host_becomes_markup():
    attacked = pages.page_of(hostile())
    for template, values in (("host.html", {"page": attacked}), ("fleet.html", {"pages": [attacked]})):
        text = pages._render(template, title=PAYLOAD, **values)
        assert_harmless(text)
        assert "{{ 7 * 7 }}" in markup(text).data


def test_nothing_from_a_host_becomes_markup_in_a_picture():
    document = sample(documents.TOPOLOGY, PAYLOAD)
    machine = topology.machine_of(document["facts"], document["findings"])
    drawings = [tree_svg(machine), matrix_svg(machine), picture_svg(machine, PAYLOAD)]
    for text in drawings:
        assert text
        assert_harmless(text)
        ElementTree.fromstring(text)  # noqa: S314 - ours


def test_every_attack_in_the_sample_would_be_seen():
    """The sample reaches the page: without escaping, the checks above would fail."""
    with pytest.raises(AssertionError):
        assert_harmless(PAYLOAD)


# pictures


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_every_recording_is_a_well_formed_picture(path: Path):
    facts = topology.facts_of([(path.name, topology.parse(path.read_text()))])
    found = topology.check(facts, topology.expectation_of("rtx-pro-6000-x8"))
    machine = topology.machine_of(topology.brief(facts), [finding.as_dict() for finding in found.findings])
    text = picture_svg(machine, path.stem)
    root = ElementTree.fromstring(text)  # noqa: S314 - ours
    words = [element.text for element in root.iter() if element.text]
    assert path.stem in words
    for gpu in machine.gpus:
        assert gpu.label in words
    for problem in [*machine.problems, *(problem for gpu in machine.gpus for problem in gpu.problems)]:
        assert any(word.startswith(problem.id) for word in words)


@pytest.mark.parametrize("count", [1, 2, 4, 7, 8, 10, 16])
def test_what_is_wrong_is_red_and_inside_the_picture(count: int):
    facts: dict[str, Any] = {
        "gpu_ids": list(range(count)),
        "links": [["X" if i == j else "PIX" for j in range(count)] for i in range(count)],
        "nics": ["mlx5_0"], "nic_links": [["PIX"] for _ in range(count)], "numa_per_gpu": ["0"] * count,
        "gpus": [{"index": str(n), "name": "NVIDIA " + "long name " * 9, "pci.bus_id": f"00000000:{n:02X}:00.0",
                  "pcie.link.width.current": "8", "pcie.link.width.max": "16"} for n in range(count)],
    }  # fmt: skip
    finding = {"id": "pcie-width", "level": "critical", "what": "narrow", "seen": "GPU0 0000:00:00.0: x8 of x16",
               "where": ["GPU0"]}  # fmt: skip
    root = ElementTree.fromstring(picture_svg(topology.machine_of(facts, [finding]), "host"))  # noqa: S314 - ours
    cards = [element for element in root.iter() if "card" in element.get("class", "").split()]
    assert [card.get("class") for card in cards].count("card critical") == 1
    assert "pcie-width: x8 of x16" in [element.text for element in root.iter()]
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for element in root.iter():
        assert float(element.get("x", "0")) <= width
        assert float(element.get("y", "0")) <= height
    assert (len([e for e in root.iter() if e.get("class") == "near"]) >= count * (count - 1)) or count == 1


# shapes


def wrong_values(shape: Any, path: str = "") -> Iterator[tuple[str, list[Any], Any]]:
    """Yield each place in a shape, the way to it, and a value that does not belong there."""
    if isinstance(shape, Mapping):
        for key, inner in shape.items():
            yield (
                f"{path}.{key}".lstrip("."),
                [key],
                {str: 3, bool: "yes", int: "3", NUMBER: "2"}.get(
                    inner if not isinstance(inner, (Mapping, list, Each)) else None, "a text"
                ),
            )
            yield from (
                (name, [key, *way], value) for name, way, value in wrong_values(inner, f"{path}.{key}".lstrip("."))
            )
    elif isinstance(shape, list):
        yield from ((name, [0, *way], value) for name, way, value in wrong_values(shape[0], f"{path}[0]"))


CASES = list(wrong_values(documents.REPORT))


@pytest.mark.parametrize(("path", "way", "value"), CASES, ids=[case[0] for case in CASES])
def test_a_value_of_the_wrong_type_is_named(path: str, way: list[Any], value: Any):
    document: Any = sample(documents.REPORT)
    place = document
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    with pytest.raises(ProgramError, match=re.escape(path)):
        documents.report_of(json.dumps(document), "the file")


def anything(shape: Any) -> st.SearchStrategy[Any]:
    """Return documents of a shape with anything missing or null."""
    if isinstance(shape, Each):
        return st.none() | st.dictionaries(
            st.sampled_from(["r", "w", "2.30.7", "single.decode_tok_s"]), anything(shape.of), max_size=2
        )
    if isinstance(shape, Mapping):
        return st.none() | st.fixed_dictionaries({}, optional={key: anything(inner) for key, inner in shape.items()})
    if isinstance(shape, list):
        return st.none() | st.lists(anything(shape[0]).filter(lambda item: item is not None), max_size=3)
    kinds: Mapping[Any, st.SearchStrategy[Any]] = {
        str: st.sampled_from(
            ["", "X", "PIX", "GPU0", "GPU0-GPU1", "0", "critical", "00000000:01:00.0", "single.tok_s", "é<"]
        ),
        bool: st.booleans(),
        int: st.integers(-1, 9),
        NUMBER: st.floats() | st.integers(-5, 5),
        Any: st.none() | st.text(),
    }  # fmt: skip
    return kinds[shape]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    anything(documents.REPORT), anything(documents.TOPOLOGY), anything(documents.PROOF), anything(documents.SETTINGS)
)
def test_any_document_of_its_shape_makes_a_page(found: Any, seen: Any, proof: Any, given_settings: Any):
    whole = {**(found or {}), "host": "h", "instance": "i", "generation": "g", "passed": True, "mode": "full"}
    whole.setdefault("engaged", None)
    checked = documents.report_of(json.dumps(whole), "the file")
    host = Host("h", seen or None, given_settings or None, [Instance("i", checked, proof)])
    text = pages._render("host.html", page=pages.page_of(host), title="h")
    assert text.rstrip().endswith("</html>")
    summary.rows(checked)


# the program


def run(*words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/report", *map(str, words)],
        input=stdin, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_program_keeps_a_document_and_writes_the_pages(tmp_path: Path):
    done = run(
        "html",
        tmp_path,
        "--host",
        "gpu-1",
        "--add",
        "--json",
        stdin=json.dumps({"topology": sample(documents.TOPOLOGY)}),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == [
        f"{tmp_path}/gpu-1/index.html", f"{tmp_path}/gpu-1/topology.svg", f"{tmp_path}/index.html",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (["html", "/no/such/folder"], "", "/no/such/folder: no such folder"),
        (
            ["html", "{}", "--host", "gpu-1", "--add"],
            '{"topology": {"facts": []}}',
            "topology.facts: a mapping is expected, seen []",
        ),
        (["html", "{}", "--host", "gpu-1", "--add"], "{", "standard input: not JSON"),
        (["html", "{}", "--host", "../x", "--add"], "{}", "--host"),
        (["html", "{}", "--add"], "{}", "--host"),
        (["html", "{}", "--host", "gpu-1", "--add"], '{"topologi": {}}', "did you mean 'topology'?"),
        (["html", "{}", "--host", "gpu-9"], "", "no reports of a host 'gpu-9'"),
        (["picture", "-"], "{}", "no facts in it"),
        (["picture", "-"], '{"facts": {"gpus": 3}}', "facts.gpus: a list is expected, seen 3"),
        (["picture", "/no/such"], "", "/no/such"),
    ],
)
def test_what_can_not_be_drawn_is_said_and_nothing_is_written(tmp_path: Path, words: list[str], stdin: str, said: str):
    done = run(*(word.replace("{}", str(tmp_path)) for word in words), stdin=stdin)
    assert done.returncode == 3
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_topology_shows_can_be_drawn():
    topo = FIXTURES / "topo_8x_rtxpro6000se_pix_node_sys_ansi_tab.txt"
    facts = subprocess.run(
        [sys.executable, ROOT / "scripts/topology", "show", "--json", topo], capture_output=True, text=True, check=True
    )
    done = run("picture", "-", "--title", "gpu-1", stdin=facts.stdout)
    assert done.returncode == 0, done.stderr
    assert ElementTree.fromstring(done.stdout).tag.endswith("svg")  # noqa: S314 - ours


@pytest.mark.parametrize("verb", ["html", "picture"])
def test_without_the_libraries_the_way_out_is_said(tmp_path: Path, verb: str):
    code = (
        "import runpy, sys; sys.modules['svg'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "scripts/report"), verb, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert ".venv/bin/python scripts/report" in done.stderr
    assert "Traceback" not in done.stderr
