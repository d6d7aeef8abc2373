"""What of a trace's communication is exposed: on a CPU, on a GPU, and by the collectives' names."""

from __future__ import annotations

import pytest

from course_lib.gauges.exposed import exposed


def event(name, start, end, cat="cpu_op"):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 8, "ts": 5e6 + start, "dur": end - start, "args": {}}


CPU = [
    {"ph": "M", "name": "process_name", "pid": 7},
    event("PyTorch Profiler (0)", 0, 900, "Trace"),
    event("backward", 0, 900, "user_annotation"),
    event("gloo:all_reduce", 100, 300, "user_annotation"),
    event("gloo:all_gather", 250, 400, "user_annotation"),
    event("c10d::allreduce_", 90, 500),
    event("aten::linear", 50, 150),
    event("aten::addmm", 60, 120),
    event("aten::mm", 350, 380),
]


def test_what_no_op_of_torch_covers_is_exposed_on_a_cpu():
    found = exposed(CPU)
    assert found.communication_s == pytest.approx(300e-6) and found.exposed_s == pytest.approx(220e-6)
    assert found.share == pytest.approx(220 / 300)
    assert found.by_name == pytest.approx({"gloo:all_reduce": 150e-6, "gloo:all_gather": 120e-6})


def test_kernels_alone_count_where_a_gpu_ran():
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    kernels = [event(name, 100, 200, "kernel"), event("nvjet_tst_128x256", 0, 110, "kernel")]
    found = exposed([*CPU, *kernels, event("nccl:all_gather", 90, 210, "gpu_user_annotation")])
    assert found.by_name == pytest.approx({"ncclDevKernel_AllGather_RING_LL": 90e-6})
    assert (found.communication_s, found.exposed_s) == pytest.approx((100e-6, 90e-6))


def test_a_step_that_sends_nothing_exposes_nothing():
    assert exposed([event("aten::mm", 0, 9)]) == (0, 0, 0, {})


KERNELS = [("float", 0), ("half", 100)]


def test_kernels_of_one_name_and_other_types_are_one_collective():
    kernels = [
        event(f"ncclDevKernel_AllReduce({kind})", 100 * k, 100 * k + 50, "kernel") for k, kind in enumerate("ab")
    ]
    assert exposed(kernels).by_name == {"ncclDevKernel_AllReduce": pytest.approx(100e-6)}
