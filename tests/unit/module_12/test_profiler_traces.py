"""What is exposed in a trace of torch's profiler: spans, and what of them others leave over."""

from __future__ import annotations

import json

from course_lib.checks.kit.traces import Event, events_of, union
from course_lib.gauges.exposed import length, without


def event(start, end):
    return Event("aten::mm", "cpu_op", start, end, 1, 1)


def test_what_touches_is_one_span_and_counts_once():
    spans = union([event(4, 6), event(0, 3), event(1, 2), event(6, 7)])
    assert spans == [(0, 3), (4, 7)]
    assert length(spans) == 6


def test_what_others_leave_over():
    assert without([(0, 10), (20, 30)], [(2, 3), (5, 22), (29, 40)]) == [(0, 2), (3, 5), (22, 29)]
    assert without([(0, 10)], []) == [(0, 10)]
    assert without([(0, 10)], [(0, 10)]) == []


def test_a_file_that_is_no_trace_is_told(tmp_path):
    path = tmp_path / "after0.json"
    assert "no after0.json" in events_of(path)
    path.write_text("{}")
    assert "no trace" in events_of(path)
    span = {"ph": "X", "name": "gloo:all_reduce", "ts": 3, "dur": 2, "pid": 7, "tid": 8}
    path.write_text(json.dumps({"traceEvents": [span, span | {"ph": "i"}, span | {"pid": "Spans"}]}))
    assert events_of(path) == [Event("gloo:all_reduce", "", 3, 5, 7, 8)]
