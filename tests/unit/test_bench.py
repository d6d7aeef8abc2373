"""What the benchmark concludes from times. It measures nothing here."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tools.paths import ROOT

sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

import ddp
import pipeline
from all_reduce import Cell, best_algorithm, slowest
from context_experts import WAYS, ExchangeCell
from ddp import DdpCell
from measure import Comparison, Verdict, mean_ratio
from memory import Agreement
from pipeline import PEERS, PipelineCell
from plan_search import SearchRun
from report import Results, discover, markdown, write
from sharded_tensor import ShardedTensorCell
from two_axes import TwoAxesCell

from course_lib.units import KiB, MiB

TWICE = Comparison(name="twice", ours_s=(1.0, 1.0, 10.0), peer_s=(2.0, 2.0, 2.0))
HALF = Comparison(name="half", ours_s=(2.0,), peer_s=(1.0,))
DDP = DdpCell(world_size=2, sequence=128, all_reduce="over our ring", buckets=1, comparison=TWICE)
PIPELINE = PipelineCell(world_size=2, sequence=32, peer=PEERS[-1], comparison=TWICE)


def results():
    cells = [
        Cell(world_size=p, nbytes=nbytes, comparison=one)
        for p in (2, 4)
        for nbytes, one in ((KiB, TWICE), (4 * MiB, HALF))
    ]
    return Results(
        date="2000-01-01",
        machine="a machine",
        versions="some versions",
        load_before=0.25,
        load_after=1.0,
        found={
            "runner": [TWICE],
            "all_reduce": cells,
            "ddp": [DDP, replace(DDP, all_reduce="over gloo", comparison=HALF)],
            "pipeline": [replace(PIPELINE, peer=peer) for peer in PEERS],
            "two_axes": [TwoAxesCell(sequence=32, schedule=name, comparison=TWICE) for name in ("gpipe", "1f1b")],
            "sharded_tensor": [
                ShardedTensorCell(sequence=32, algorithm=one, calls=(56, 64), comparison=TWICE)
                for one in ("native", "ring")
            ],
            "plan_search": [SearchRun(comparison=TWICE, policies=212, large_tried=10**6, large_s=(0.5, 2.0))],
            "context_experts": [ExchangeCell(world_size=2, length=512, way=way, comparison=TWICE) for way in WAYS],
            "memory": [
                Agreement(kind="states", name="some states", formula=1000, measured=1000),
                Agreement(kind="activations", name="some activations", formula=980, measured=1000),
            ],
        },
    )


def test_every_file_with_a_benchmark_is_found_in_the_order_of_lessons():
    lessons = ["runner", "memory", "all_reduce", "ddp", "pipeline", "two_axes", "tensor", "sharding", "sharded_tensor"]
    lessons += ["plan_search", "context_experts"]
    assert list(discover()) == lessons


def test_a_ratio_is_the_median_of_the_rounds_own():
    assert (TWICE.ratio, TWICE.spread) == (2.0, (0.2, 2.0))
    assert mean_ratio([TWICE, HALF]) == pytest.approx(1.0)


@pytest.mark.parametrize(("ratio", "words"), [(0.89, "NOT MET"), (0.9, "gate met"), (2.0, "goal met")])
def test_a_gate_is_met_or_not(ratio, words):
    assert Verdict(figure="x", ratio=ratio, gate=0.9, goal=2).words == words


def test_a_round_takes_as_long_as_its_slowest_rank():
    assert slowest([[1.0, 5.0], [2.0, 3.0]]) == (2.0, 5.0)


def test_few_steps_for_small_few_bytes_for_large():
    assert best_algorithm(MiB) == "recursive_doubling" and best_algorithm(MiB + 1) == "ring"


def test_the_page_says_what_was_missed_and_how_busy_the_machine_was():
    page = markdown(results(), {})
    assert "| all-reduce above 64 KiB | 0.50 | 0.9 | 2 | NOT MET |" in page
    assert "| twice | 1 s | 2 s | 2.00 | 0.20 to 2.00 | 3 |" in page
    assert "| 4 | 4 MiB | ring | 2 s | 1 s | 0.50 | 0.50 to 0.50 | 1 |" in page
    assert "| 2 | 128 | over our ring | 1 s | 2 s | 2.00 | 0.20 to 2.00 | 3 | 1,024 | 512 |" in page
    row = "| 2 | 32 | zb-h1 | ScheduleInterleavedZeroBubble | 1 s | 2 s | 2.00 | 0.20 to 2.00 | 3 | 256 | 128 |"
    assert row in page and "zb-h1 and ScheduleInterleavedZeroBubble are not the same schedule" in page
    assert "| 32 | ring | 56 | 64 | 1 s | 2 s | 2.00 | 0.20 to 2.00 | 3 | 256 | 128 |" in page
    assert "| FSDP x TP, ring, against FSDP2 x DTensor, tokens/s | 2.00 | 1.05 | 1.25 | goal met |" in page
    assert "| search for policies against one after the other | 2.00 | 10 | 100 | NOT MET |" in page
    assert "16,384 GPUs | 2,000,000 a second | 1,000,000 | 10,000,000 | gate met |" in page
    assert "0.25 before, 1.00 after" in page
    assert "| memory formulas, states | 0.000% off | 0.5% | on a GPU: not run | gate met |" in page
    assert "| memory formulas, activations | 2.000% off | 1.0% | on a GPU: not run | NOT MET |" in page
    assert "| some activations | 980 B | 1000 B | 2.000% |" in page


def test_ddp_is_judged_over_each_all_reduce():
    gloo = DdpCell(world_size=2, sequence=32, all_reduce="over gloo", buckets=1, comparison=HALF)
    found = {verdict.figure: verdict.words for verdict in ddp.verdicts([DDP, gloo])}
    assert found == {
        "DDP over gloo against torch's, tokens/s": "NOT MET",
        "DDP over our ring against torch's, tokens/s": "goal met",
    }


def test_each_pipeline_schedule_is_judged_by_itself():
    cells = [
        PipelineCell(world_size=2, sequence=32, peer=peer, comparison=HALF if peer.ours == "1f1b" else TWICE)
        for peer in PEERS
    ]
    found = {verdict.figure: verdict.words for verdict in pipeline.verdicts(cells)}
    assert found.pop("pipeline 1f1b against torch's Schedule1F1B, tokens/s") == "NOT MET"
    assert len(found) == 3 and set(found.values()) == {"goal met"}


def test_page_numbers_and_figures_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr("report.FOLDER", tmp_path / "results")
    page = write(results(), "some-machine")
    assert sorted(path.name.removeprefix("2000-01-01-some-machine") for path in page.parent.iterdir()) == [
        "-2-ranks.svg",
        "-4-ranks.svg",
        ".json",
        ".md",
    ]
    assert "(2000-01-01-some-machine-4-ranks.svg)" in page.read_text()
