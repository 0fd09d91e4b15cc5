# SPDX-License-Identifier: Apache-2.0
"""Files of the host role: written, altered and removed only while nobody else has a hand in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_machine import Host

from inference import managed_files
from inference.host import owned
from inference.host.machine import HostError

FILE = "/etc/sysctl.d/60-inference.conf"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    return Host(tmp_path)


def wanted(host: Host, content: str, **options: bool) -> list[managed_files.Entry]:
    return owned.entries({FILE: content}, host, overwrite=options.get("overwrite", False))


def test_a_file_is_ours_until_a_byte_of_it_changes(host: Host):
    (entry,) = wanted(host, "a = 1\n")
    host.write(FILE, entry.content)
    assert owned.state_of(host.path(FILE)) == "ours"
    assert entry.content.splitlines()[1:] == ["a = 1"]
    for text in (entry.content + "b = 2\n", entry.content.replace("a = 1", "a = 2"), entry.content[:-1]):
        host.write(FILE, text)
        assert owned.state_of(host.path(FILE)) == "changed"


def test_blank_content_removes_what_is_ours_and_leaves_what_is_not(host: Host):
    assert [e.state for e in wanted(host, "\n \n")] == ["absent"]
    host.write(FILE, owned.sealed("a = 1\n"))
    assert [e.state for e in wanted(host, "")] == ["absent"]
    host.write(FILE, "a = 1\n")
    assert wanted(host, "") == []


@pytest.mark.parametrize("text", [owned.sealed("a = 1\n") + "b = 2\n", "somebody else's\n"])
def test_what_somebody_else_has_a_hand_in_is_named_and_left(host: Host, text: str):
    host.write(FILE, text)
    with pytest.raises(
        HostError, match=r"60-inference\.conf \((changed by hand|not written by this role)\).*host_over"
    ):
        wanted(host, "a = 3\n")
    assert [e.state for e in wanted(host, "a = 3\n", overwrite=True)] == ["file"]


def test_a_changed_file_is_not_removed_either(host: Host):
    host.write(FILE, owned.sealed("a = 1\n") + "b = 2\n")
    with pytest.raises(HostError, match="changed by hand"):
        wanted(host, "")


def test_all_files_that_are_in_the_way_are_named_at_once(host: Host):
    for name in ("/etc/sysctl.d/a", "/etc/sysctl.d/b"):
        host.write(name, "theirs\n")
    with pytest.raises(HostError, match=r"sysctl\.d/a .*sysctl\.d/b "):
        owned.entries({"/etc/sysctl.d/a": "x", "/etc/sysctl.d/b": "x"}, host, overwrite=False)


def test_folders_that_are_not_there_come_first(host: Host):
    entries = owned.entries({"/etc/systemd/x.d/1": "a", "/etc/sysctl.d/1": "b"}, host, overwrite=False)
    assert [Path(e.path).name for e in owned.folders(entries)] == ["x.d"]
