# SPDX-License-Identifier: Apache-2.0
"""Finding code by its syntax tree and adding marked lines that come out again byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.ledger import source_edit
from inference.ledger.source_edit import EditError, Span

SOURCE = """\
import os


class A:
    @property
    def f(self):
        # a comment
        if (
            self.x == 'one'
            and other
        ):
            return 1
        elif self.y:
            return 2
        return 3


if os.name:
    def g(): return A().f
"""


def spans(code: str, within: str = "", source: str = SOURCE) -> list[Span]:
    return source_edit.find(source_edit.parse(source.encode()), within, source_edit.pattern(code))


@pytest.mark.parametrize(
    ("code", "within", "expected"),
    [
        ('if self.x == "one" and other: ...', "A.f", [Span(8, 14)]),  # quotes, brackets and comments don't count
        ("if self.y: ...", "A.f", [Span(13, 14)]),  # an elif is found as the if that it is
        ("if self.x == ... and other: ...", "A.f", [Span(8, 14)]),
        ("if self.y:\n    return 2", "A.f", [Span(13, 14)]),
        ("if self.y:\n    return 9", "A.f", []),
        ("if self.x: ...", "A.f", []),
        ("return 3", "A.f", [Span(15, 15)]),
        ("return 3", "", [Span(15, 15)]),
        ("return ...", "A.f", [Span(12, 12), Span(14, 14), Span(15, 15)]),
        ("return A().f", "g", [Span(19, 19)]),  # a function under an if
        ("import os", "", [Span(1, 1)]),
    ],
)
def test_find(code: str, within: str, expected: list[Span]) -> None:
    assert sorted(spans(code, within), key=lambda span: span.first) == expected


def test_a_decorated_definition_begins_at_its_decorator() -> None:
    assert spans("@property\ndef f(self): ...", "A") == [Span(5, 15)]


def test_statements_that_follow_each_other() -> None:
    source = "a = 1\nb = 2\nc = 3\na = 1\nc = 3\n"
    assert spans("a = 1\nb = 2", source=source) == [Span(1, 2)]
    assert spans("a = 1\nc = 3", source=source) == [Span(4, 5)]


@pytest.mark.parametrize("within", ["B", "A.h", "A.f.g"])
def test_a_scope_that_is_not_there(within: str) -> None:
    with pytest.raises(EditError, match="defined 0 times"):
        spans("return 3", within)


def test_a_scope_defined_twice_is_ambiguous() -> None:
    with pytest.raises(EditError, match="defined 2 times"):
        spans("pass", "f", "def f():\n    pass\ndef f():\n    pass\n")


def test_source_that_is_not_python() -> None:
    with pytest.raises(EditError, match="not readable as Python"):
        source_edit.parse(b"if:\n")


@pytest.mark.parametrize(
    ("code", "held"), [("self.x == 'one'", True), ("A()", True), ("self.z", False), ("x = 1", False)]
)
def test_holds_looks_for_expressions_inside_statements(code: str, held: bool) -> None:
    assert source_edit.holds(source_edit.parse(SOURCE.encode()), "", source_edit.pattern(code)) is held


def test_keyword_values() -> None:
    tree = source_edit.parse(b"def f():\n    g(majors=[9, 10])\n    g(majors=other)\ndef h():\n    g(majors=[12])\n")
    assert source_edit.keyword_values(tree, "f", "majors") == [[9, 10]]
    assert source_edit.keyword_values(tree, "h", "majors") == [[12]]
    assert source_edit.keyword_values(tree, "f", "minors") == []


def test_insert_takes_the_indentation_of_the_anchor() -> None:
    source = b"def f(x):\n    if x:\n        y = 1\n    return y\n"
    changed = source_edit.insert(source, Span(2, 3), "after", "if not x:\n    y = 2\n", "T1/1")
    assert changed.decode().splitlines()[3:7] == [
        "    # >>> patch T1/1",
        "    if not x:",
        "        y = 2",
        "    # <<< patch T1/1",
    ]
    assert source_edit.mark_line(changed, "T1/1") == 4
    assert source_edit.remove(changed, "if not x:\n    y = 2\n", "T1/1") == source


def test_lines_end_as_those_of_the_file() -> None:
    changed = source_edit.insert(b"a = 1\r\nb = 2\r\n", Span(1, 1), "after", "c = 3\n", "T1/1")
    assert changed.count(b"\n") == changed.count(b"\r\n") == 5


def test_remove_where_nothing_was_added() -> None:
    assert source_edit.remove(b"a = 1\n", "b = 2", "T1/1") is None


def block(body: str = "b = 2", mark: str = "T1/1") -> str:
    return f"# >>> patch {mark}\n{body}\n# <<< patch {mark}\n"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (block("b = 3"), "not those of this ledger"),
        (block() + block(), "there 2 times"),
        ("# >>> patch T1/1\nb = 2\n", "not those of this ledger"),
        ("b = 2\n# <<< patch T1/1\n", "without its beginning"),
        (block().replace("b = 2", "    b = 2"), "not those of this ledger"),
    ],
)
def test_remove_refuses_lines_that_a_hand_changed(source: str, problem: str) -> None:
    with pytest.raises(EditError, match=problem):
        source_edit.remove(source.encode(), "b = 2", "T1/1")


def test_marks_of_other_patches_are_left_alone() -> None:
    both = (block("b = 2", "T1/1") + block("b = 2", "T1/11")).encode()
    assert source_edit.remove(both, "b = 2", "T1/1") == block("b = 2", "T1/11").encode()
    assert source_edit.without_marked(both) == b""


FILLER = st.lists(st.sampled_from(["", "    # note", "    a = 'x'", "\t", "    b = 1 ", "    c = 'é'"]), max_size=6)


@given(before=FILLER, after=FILLER, newline=st.sampled_from(["\n", "\r\n"]), side=st.sampled_from(["before", "after"]))
def test_removing_is_the_exact_inverse_of_inserting(
    before: list[str], after: list[str], newline: str, side: source_edit.Side
) -> None:
    lines = ["def f(x):", *before, "    if x > 8:", "        y = 1", *after, "    return 2", ""]
    source = newline.join(lines).encode()
    code = "if x == 12:\n\n    y = 3\n"
    span = source_edit.find(source_edit.parse(source), "f", source_edit.pattern("if x > 8: ..."))[0]
    changed = source_edit.insert(source, span, side, code, "T1/1")
    source_edit.parse(changed)
    assert changed != source
    assert source_edit.remove(changed, code, "T1/1") == source
    assert source_edit.without_marked(changed) == source
