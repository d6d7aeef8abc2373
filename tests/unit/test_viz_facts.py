"""What the figures claim, against definitions, formulas and ledgers."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from course_lib import viz
from course_lib.comm.ledger import Event, Ledger
from course_lib.costs import ALGORITHMS, comm_time
from course_lib.hardware import ETHERNET, INFINIBAND, NVLINK
from course_lib.viz.ink import style
from course_lib.viz.ink.lines import apart, together
from course_lib.viz.wires.cost_bars import FORMULAS
from course_lib.viz.wires.holdings import OPERATIONS, holdings
from course_lib.viz.wires.messages import all_reduce_messages
from course_lib.viz.wires.ring_steps import ring_steps
from tests.unit.test_viz_pictures import drawn_texts
from tests.unit.viz_ledgers import one_message, ring_ledger

SIZES = (1, 2, 3, 4, 8)


def names(held):
    return [[chunk.name for chunk in row] for row in held]


def applied(operation, tensors):
    """The definition of each primitive, on one string per chunk; a sum is the set of its parts."""
    p = len(tensors)
    total = [frozenset(t[c] for t in tensors) for c in range(p)]
    empty = [None] * p
    rows = {
        "broadcast": [tensors[0]] * p,
        "scatter": [[tensors[0][c] if c == r else None for c in range(p)] for r in range(p)],
        "gather": [[tensors[c][c] for c in range(p)], *[empty] * (p - 1)],
        "all_gather": [[tensors[c][c] for c in range(p)]] * p,
        "reduce": [total, *[empty] * (p - 1)],
        "all_reduce": [total] * p,
        "reduce_scatter": [[total[c] if c == r else None for c in range(p)] for r in range(p)],
        "all_to_all": [[tensors[c][r] for c in range(p)] for r in range(p)],
    }[operation]
    return rows


def as_parts(chunk):
    if not chunk.sources:
        return None
    parts = frozenset(f"{chr(65 + rank)}{chunk.number}" for rank in chunk.sources)
    return parts


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_chunks_after_a_primitive_are_those_of_its_definition(operation, p):
    tensors = [[f"{chr(65 + r)}{c}" for c in range(p)] for r in range(p)]
    expected = [[frozenset([x]) if isinstance(x, str) else x for x in row] for row in applied(operation, tensors)]
    before, after = holdings(operation, p)
    assert [[as_parts(chunk) for chunk in row] for row in after] == expected
    for rank, row in enumerate(before):
        assert {chunk.sources for chunk in row} <= {(), (rank,)}


def test_the_text_says_who_holds_what():
    assert viz.who_holds_what("reduce_scatter", 2).text == (
        "reduce_scatter: every rank gets one chunk of the sum\n"
        "before:\n  rank 0: A0 A1\n  rank 1: B0 B1\n"
        "after:\n  rank 0: Σ0 empty\n  rank 1: empty Σ1\n"
        "Σ0 = A0 + B0"
    )


@pytest.mark.parametrize("p", SIZES)
def test_the_ring_first_completes_chunk_r_on_rank_r_and_then_all(p):
    steps = ring_steps(p)
    everyone = tuple(range(p))
    assert len(steps) == 2 * (p - 1) + 1
    assert all(steps[p - 1].buffers[rank][rank] == everyone for rank in range(p))
    assert all(parts == everyone for row in steps[-1].buffers for parts in row)
    for step in steps[1:]:
        assert [t.source for t in step.transfers] == list(range(p))
        assert all(t.target == (t.source + 1) % p for t in step.transfers)
        assert len({t.chunk for t in step.transfers}) == p


def test_the_ring_s_chunks_run_on_numbers():
    p = 4
    start = np.arange(p * p).reshape(p, p) ** 2
    data = start.copy()
    for step in ring_steps(p)[1:]:
        sent = [(t, data[t.source, t.chunk]) for t in step.transfers]
        for t, value in sent:
            data[t.target, t.chunk] = data[t.target, t.chunk] + value if step.phase == "reduce-scatter" else value
    assert (data == start.sum(axis=0)).all()


def test_the_ring_step_says_what_travels_and_what_everyone_holds():
    text = viz.ring_all_reduce_step(3, 1).text
    assert "Ring all-reduce, step 1 of 4: reduce-scatter" in text
    assert "rank 0 sends chunk 2 (A2) to rank 1" in text
    assert "rank 1: B0, B1, A2+B2" in text
    assert "sent per rank so far: 1 × 1/3 of the tensor" in text


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("algorithm", ["naive", "tree", "ring", "recursive_doubling", "halving_doubling"])
def test_drawn_messages_are_those_of_the_formula(algorithm, p):
    if p == 3 and "doubling" in algorithm:
        return
    cost = comm_time("all_reduce", algorithm, world_size=p, length=p, itemsize=1)
    steps = all_reduce_messages(algorithm, p)
    sent, count = [0] * p, [0] * p
    for message in (message for step in steps for message in step):
        sent[message.source] += message.chunks
        count[message.source] += 1
    assert len(steps) == cost.steps
    assert tuple(sent) == cost.sent_bytes
    assert tuple(count) == cost.messages


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize(("operation", "algorithm"), FORMULAS)
def test_the_printed_formula_is_what_the_busiest_rank_sends(operation, algorithm, p):
    if p == 3 and "doubling" in algorithm:
        return
    cost = comm_time(operation, algorithm, world_size=p, length=840 * p, itemsize=1)
    assert max(cost.sent_bytes) / (840 * p) == pytest.approx(FORMULAS[operation, algorithm][1](p))


def test_bars_and_their_text_hold_the_same_numbers():
    text = viz.plot_cost_bars("all_reduce", 4).text
    assert "naive: rank 0 3 M, rank 1 1 M, rank 2 1 M, rank 3 1 M; busiest (p − 1) · M" in text
    assert "ring: rank 0 1.5 M, rank 1 1.5 M" in text


def test_cost_lines_name_the_fastest():
    text = viz.plot_cost_lines(["naive", "ring", "recursive_doubling"], world_size=16, link=INFINIBAND).text
    assert "fastest: recursive doubling from 128 B, ring from 8.168 MiB" in text  # where the formulas cross
    one = comm_time("all_reduce", "ring", world_size=16, length=2**19, itemsize=2).time_s(INFINIBAND)
    assert f"{style.seconds(one)} at 1 MiB" in text


def test_the_timeline_splits_a_receive_into_waiting_and_transfer():
    text = viz.plot_timeline(one_message()).text
    assert "2 events of 2 ranks in 4 s" in text
    assert "rank 0: sends 1 (2 KiB), receives 0 (0 B)\n" in text
    assert "rank 1: sends 0 (0 B), receives 1 (2 KiB), waiting 3 s\n" in text
    assert "call #7: broadcast, tree" in text


def test_a_receive_whose_message_never_left_is_drawn():
    lone = Event(rank=1, kind="recv", peer=0, nbytes=8, start_s=0.0, end_s=1.0)
    assert "receives 1 (8 B)" in viz.plot_timeline(Ledger([lone], 2)).text


def test_a_thousand_events_are_one_path_per_kind():
    ledger = ring_ledger(8, calls=12, compute=True)
    assert len(ledger.events) > 1000
    picture = viz.plot_timeline(ledger)
    assert sum(len(axes.patches) for axes in picture.figure.axes) < 50
    assert len(picture.svg) < 500_000


def test_messages_inside_a_node_and_between_nodes_have_colours_of_their_own():
    """A ring on two nodes of two: ranks 0 and 2 send inside, ranks 1 and 3 out of their node."""
    picture = viz.plot_timeline(ring_ledger(4), node_size=2)
    words = [text for text, *_ in drawn_texts(picture.figure)]
    ways = {f"{what} {way}" for what in ("send", "receive") for way in ("inside the node", "between nodes")}
    assert ways <= {*words} and not {"send", "receive"} & {*words}


def test_the_start_of_each_message_is_its_own_part():
    text = viz.plot_starts({"one": ring_ledger(2)}, NVLINK).text
    assert "3.4 µs of each message are its latency" in text and "one: 2 messages of 500 µs" in text
    with pytest.raises(ValueError, match=r"plot_starts: none; rank 0 sends in each run; communicate in each run"):
        viz.plot_starts({"none": ring_ledger(1)}, NVLINK)


def test_what_differs_from_rank_0_in_any_bit_is_dark():
    near = 0.1 + 0.2  # not 0.3
    text = viz.plot_disagreement({"A": [[0.3, 1.0], [near, 1.0], [0.3, 2.0]], "B": [[1.0, 2.0]] * 3}).text
    assert "A, rank 1: 1 differs\n  A, rank 2: 1 differs\n  B, rank 1: all equal\n  B, rank 2: all equal" in text
    with pytest.raises(ValueError, match=r"plot_disagreement: \[1\] ranks, \[2\] numbers; 2 to 4 ranks"):
        viz.plot_disagreement({"A": [[1.0, 2.0]]})


def test_the_halves_of_an_all_reduce_meet_in_the_middle():
    text = viz.all_reduce_halves(2).text
    assert "in the middle:\n  rank 0: Σ0 empty\n  rank 1: empty Σ1\nafter:\n  rank 0: Σ0 Σ1" in text


def test_compute_counts_by_its_label():
    text = viz.plot_timeline(ring_ledger(2, compute=True)).text
    assert "rank 1: sends 2 (2 KiB), receives 2 (2 KiB), backward 2 ms, forward 2 ms, optimizer 2 ms, waiting" in text


def test_the_matrix_says_its_sums():
    text = viz.plot_bytes_matrix(ring_ledger(3)).text
    assert "12 messages recorded" in text
    assert "rank 0 sends 4 KiB: 4 KiB to rank 1\n" in text
    assert "received: rank 0 4 KiB, rank 1 4 KiB, rank 2 4 KiB" in text
    assert "all together: 12 KiB" in text


def test_tables_on_one_scale_shade_fewer_bytes_paler():
    def fill(darkest):
        figure = viz.plot_bytes_matrix(ring_ledger(3), darkest=darkest).figure
        return {to_hex(box.get_facecolor()).upper() for box in figure.findobj(FancyBboxPatch)}

    full = style.tint(style.COMMUNICATION, 1).upper()
    third = style.tint(style.COMMUNICATION, 0.15 + 0.85 / 3).upper()
    assert full in fill(None) and full in fill(4 * 1024)
    assert third in fill(12 * 1024) and full not in fill(12 * 1024)


def test_the_matrix_owns_up_to_native_calls():
    native = Event(rank=0, kind="native", operation="all_reduce", call=1, recorded=False)
    assert "not shown: messages inside native calls (1 events)" in viz.plot_bytes_matrix(Ledger([native], 2)).text


def test_the_topology_names_its_links():
    text = viz.plot_topology(2, 2, NVLINK, ETHERNET).text
    assert "2 × 2 GPUs: 48 × the bandwidth inside a node" in text
    assert "node 1: ranks 2, 3" in text
    assert "inside a node: NVLink, 150 GB/s, α = 3.4 µs" in text
    assert "between nodes: Ethernet, 3.125 GB/s, α = 30 µs" in text


def test_labels_move_apart_and_keep_their_order():
    moved = apart([0.5, 0.52, 0.9, 0.51], least=0.1)
    assert sorted(range(4), key=moved.__getitem__) == [0, 3, 1, 2]
    gaps = np.diff(sorted(moved))
    assert (gaps > 0.0999).all()
    assert min(moved) >= 0 and max(moved) <= 1


def test_names_of_lines_that_end_together_stand_in_the_lines_order():
    ends = [0.5, 0.512, 0.2, 0.488, 0.9]  # the first, second and fourth lie upon each other
    moved = apart(together(ends, 0.02), least=0.1)
    assert sorted(range(5), key=moved.__getitem__) == [2, 3, 1, 0, 4]
    assert apart(together(ends, 0.0), least=0.1) == pytest.approx(apart(ends, least=0.1))


def test_ranks_have_eight_hues_apart_from_those_of_activities():
    assert len(set(style.RANK_HUES)) == 8
    others = {*style.COMPUTE.values(), *style.ALGORITHM_HUES.values(), style.COMMUNICATION, style.IDLE}
    assert set(style.RANK_HUES).isdisjoint(others | set(style.RUN_HUES) | {style.OTHER_COMPUTE})
    fixed = {style.COMMUNICATION, style.IDLE, *style.COMPUTE.values()}
    assert len(fixed) == 7
    assert not fixed & set(style.RANK_HUES[:4])
    assert set(style.ALGORITHM_HUES) >= {name for row in ALGORITHMS.values() for name in row}
    assert not set(style.ALGORITHM_HUES.values()) & (fixed | set(style.RANK_HUES))


@pytest.mark.parametrize("colour", ["#D5DCE2", "#C9D1D8", "#F2F5F7"])
def test_what_is_pale_is_the_same_on_white_and_darker_than_the_card_on_a_dark_page(colour):
    drawn = style.shadow(colour)
    assert style.tint(drawn, 1) == colour.lower()
    share, dark_card = int(drawn[7:], 16) / 255, round(255 * style.CARD + 0x11 * (1 - style.CARD))
    for place in (1, 3, 5):
        on_card = share * int(drawn[place : place + 2], 16) + (1 - share) * dark_card
        assert (
            on_card == pytest.approx(int(colour[place : place + 2], 16) * dark_card / 255, abs=8)
            and on_card < dark_card
        )


@pytest.mark.parametrize(
    ("hue", "ground", "least"),
    [
        *((hue, style.text_on(hue), 3.9) for hue in (*style.RANK_HUES, style.COMMUNICATION, *style.COMPUTE.values())),
        *((hue, style.PAPER, 4.5) for hue in (*style.ALGORITHM_HUES.values(), style.INK, style.SOFT)),
    ],
)
def test_text_and_its_ground_differ_in_light(hue, ground, least):
    def luminance(colour):
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(hue), luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= least


def test_messages_can_be_built_up_step_by_step():
    whole = viz.plot_messages(["halving_doubling"]).text.splitlines()
    steps = [line for line in whole if line.startswith("  step ")]
    assert len(steps) == 6
    for upto in (1, 3):
        part = viz.plot_messages(["halving_doubling"], upto=upto).text.splitlines()
        assert part == [line for line in whole if line not in steps[upto:]]


def test_under_each_step_that_is_drawn_stands_the_size_of_its_messages():
    texts = [text for text, *_ in drawn_texts(viz.plot_messages(["halving_doubling"], upto=2).figure)]
    digits = sorted(text for text in texts if text.isdigit())
    assert "M/8 ×" in texts and digits == sorted([*"123456", *"42"])


def test_only_the_messages_of_the_followed_rank_are_in_full_colour():
    arrows = [
        artist
        for artist in viz.plot_messages(["recursive_doubling"], follow=0).figure.findobj(FancyArrowPatch)
        if to_hex(artist.get_facecolor()).upper() in style.RANK_HUES
    ]
    assert len(arrows) == 6  # three that rank 0 sends, and three that it receives
