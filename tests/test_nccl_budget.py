# SPDX-License-Identifier: Apache-2.0
"""The communication budget: its arithmetic, and what a measurement adds."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.nccl.budget import BudgetError, Measured, Model, budget, size_text

GLM5 = Model(hidden=5632, layers=78, gpus=8, bandwidth=63)
TOKENS = [1, 128, 1024]


def test_the_field_report_s_table():
    rows = budget(GLM5, TOKENS)
    assert [size_text(row.bytes) for row in rows] == ["11.0 KB", "1.38 MB", "11.0 MB"]
    assert [round(row.bandwidth_us, 1) for row in rows] == [0.3, 40.0, 320.4]
    assert [round(row.forward_bandwidth_ms, 2) for row in rows[:2]] == [0.05, 6.25]
    assert {row.calls for row in rows} == {156}


def test_without_a_latency_there_is_no_total():
    row = budget(GLM5, [1])[0]
    assert (row.latency_us, row.total_us, row.forward_total_ms, row.dominant) == (None, None, None, None)


def test_a_latency_is_for_each_call():
    row = budget(GLM5, [1], latency_us=26.2)[0]
    assert row.total_us == pytest.approx(26.2 + row.bandwidth_us)
    assert row.forward_total_ms == pytest.approx(row.total_us * 156 / 1000)
    assert row.dominant == "latency"
    assert budget(GLM5, [1024], latency_us=26.2)[0].dominant == "bandwidth"


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_ring_sends_twice_the_message_less_one_share(gpus):
    row = budget(Model(hidden=1000, layers=1, gpus=gpus, bandwidth=1), [1])[0]
    assert row.bandwidth_us == pytest.approx(2 * (gpus - 1) / gpus * 2000 / 1e9 * 1e6)


def test_width_and_calls_are_taken():
    row = budget(Model(hidden=1000, layers=3, gpus=2, bandwidth=1, dtype_bytes=1, calls_per_layer=5), [7])[0]
    assert (row.bytes, row.calls) == (7000, 15)


MEASURED = Measured(((1024.0, 15.0), (11264.0, 18.0), (65536.0, 21.0), (1468006.0, 85.0)))


@pytest.mark.parametrize(
    ("size", "time"),
    [(512, 15.0), (1024, 15.0), (11264, 18.0), (6144, 16.5), (65536, 21.0), (1468006, 85.0), (2936012, 170.0)],
)
def test_a_measurement_is_read_between_its_sizes(size, time):
    assert MEASURED.time_us(size) == pytest.approx(time)


def test_a_measurement_is_the_total_and_the_latency_is_what_it_leaves():
    row = budget(GLM5, [1], measured=MEASURED)[0]
    assert row.total_us == pytest.approx(18.0)
    assert row.latency_us == pytest.approx(18.0 - row.bandwidth_us)
    faster = Measured(((1.0, 0.001),))
    assert budget(GLM5, [1], measured=faster)[0].latency_us >= 0


@pytest.mark.parametrize(
    "text",
    [
        '[{"bytes": 1024, "us": 15}, {"bytes": 11264, "us": 18}]',
        '{"rows": [{"bytes": 11264, "us": 18, "host": "x"}, {"bytes": 1024, "us": "15"}]}',
        "bytes,us\n1024,15\n11264,18\n",
        "# a comment\nalgo, bytes, us\nring, 1024, 15\nring, 11264, 18\n",
        "us,bytes\n14,1024\n15,1024\n99,1024\n18,11264\n",
    ],
)
def test_the_forms_of_a_measurement(text):
    assert Measured.read(text).points == ((1024.0, 15.0), (11264.0, 18.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "columns"),
        ("bytes,us\n", "no rows"),
        ("size,time\n1,2\n", "columns are size, time"),
        ("[1, 2]", "bytes is None"),
        ("[{]", "no JSON"),
        ('{"points": []}', "no list of rows"),
        ("[]", "no rows"),
        ("bytes,us\n1024,fast\n", "row 1"),
        ("bytes,us\n1024,-1\n", "us is '-1'"),
        ("bytes,us\n0,1\n", "bytes is '0'"),
        ("bytes,us\n1024,nan\n", "us is 'nan'"),
        ("bytes,us\n1024\n", "us is None"),
    ],
)
def test_what_is_no_measurement_is_refused(text, says):
    with pytest.raises(BudgetError, match=says):
        Measured.read(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden": 0}, "hidden is 0"),
        ({"layers": -1}, "layers is -1"),
        ({"gpus": 1}, "single GPU"),
        ({"bandwidth": 0}, "bandwidth is 0"),
        ({"bandwidth": float("nan")}, "bandwidth is nan"),
        ({"bandwidth": float("inf")}, "bandwidth is inf"),
        ({"dtype_bytes": 0}, "dtype_bytes"),
        ({"calls_per_layer": 0}, "calls_per_layer"),
    ],
)
def test_figures_that_make_no_budget_are_refused(change, says):
    figures = {"hidden": 5632, "layers": 78, "gpus": 8, "bandwidth": 63, **change}
    with pytest.raises(BudgetError, match=says):
        Model(**figures)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tokens": []}, "empty"),
        ({"tokens": [1, 0]}, "tokens is 0"),
        ({"tokens": [1], "latency_us": -1}, "latency is -1"),
        ({"tokens": [1], "latency_us": float("nan")}, "latency is nan"),
        ({"tokens": [1], "latency_us": 1, "measured": MEASURED}, "one of them"),
    ],
)
def test_rows_that_cannot_be_are_refused(more, says):
    with pytest.raises(BudgetError, match=says):
        budget(GLM5, **more)


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "0.5 KB"), (11264, "11.0 KB"), (1048576, "1.00 MB"), (1441792, "1.38 MB"), (11534336, "11.0 MB")],
)
def test_sizes_are_in_units_of_1024(size, text):
    assert size_text(size) == text


@given(st.text())
def test_no_measurement_raises_anything_else(text):
    with contextlib.suppress(BudgetError):
        Measured.read(text)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(0.1, 1e6)), min_size=1, max_size=8), st.integers(1, 10**10))
def test_a_reading_lies_between_its_neighbours(rows, size):
    measured = Measured.read("bytes,us\n" + "".join(f"{a},{b}\n" for a, b in rows))
    times = [time for _, time in measured.points]
    if size <= measured.points[-1][0]:
        assert min(times) - 1e-6 <= measured.time_us(size) <= max(times) + 1e-6
    else:
        assert measured.time_us(size) >= measured.points[-1][1]
