"""Partitions of y = W_n ... W_1 x: the talk's two by hand, all of them, and what a search finds best."""

from __future__ import annotations

from itertools import pairwise

import pytest

from course_lib.costs import chain_partition, search_chain

TALK = {1: ("out", "in", "in"), 2: ("out", "out", "in")}  # of W1, W2, W3
EQUAL = (64, 64, 64, 64)


def operations(cuts, widths=EQUAL, **options):
    passages = chain_partition(widths, cuts, tp=2, **options).passages
    return [passage.forward for passage in passages], [passage.backward for passage in passages]


def step_bytes(partition):
    return partition.forward.sent_bytes[0] + partition.backward.sent_bytes[0]


def test_the_talk_s_two_partitions():
    none = "nothing"
    assert operations(TALK[1]) == (
        [none, none, "reduce_scatter", "all_reduce"],
        [none, none, "all_gather", none],
    )
    assert operations(TALK[2]) == (
        [none, "all_gather", none, "all_reduce"],
        [none, "reduce_scatter", none, none],
    )
    assert operations(TALK[2], input_gradient=True)[1][0] == "all_reduce"


def test_they_differ_only_by_the_width_that_they_send():
    """A gather or scatter of 64 numbers sends half of them at tp 2, an all-reduce all: 128 + 256, then 128 back."""
    for cuts in TALK.values():
        partition = chain_partition(EQUAL, cuts, tp=2)
        assert (partition.forward.sent_bytes, partition.backward.sent_bytes) == ((384, 384), (128, 128))
        assert partition.weights == (3 * 64 * 64 // 2,) * 2
    wide = (64, 256, 64, 64)  # the product of W1 has 4 times as many numbers
    first, second = (chain_partition(wide, cuts, tp=2) for cuts in TALK.values())
    assert step_bytes(first) == 512 and step_bytes(second) == 512 + 2 * (256 - 64) * 2


def test_samples_and_uneven_pieces():
    """5 features over 2 ranks are 3 and 2: in a gather each rank sends its own, of 4 samples each."""
    partition = chain_partition((6, 5, 4, 2), TALK[2], tp=2, samples=4)
    assert partition.passages[1].forward_cost.sent_bytes == (3 * 4 * 4, 2 * 4 * 4)
    assert partition.passages[3].forward_cost.sent_bytes == (2 * 4 * 4,) * 2
    assert partition.weights == (3 * 6 + 2 * 5 + 2 * 2, 2 * 6 + 2 * 5 + 2 * 2)


def test_a_pair_of_columns_and_rows_sends_once():
    """The workshop's perceptron without biases: W1 (4, 6) by rows of the weight, W2 (2, 4) by columns."""
    pair = chain_partition((6, 4, 2), ("out", "in"), tp=2)
    assert operations(("out", "in"), (6, 4, 2)) == (["nothing", "nothing", "all_reduce"], ["nothing"] * 3)
    assert pair.forward.sent_bytes == (8, 8) and pair.backward.total_bytes == 0
    assert str(pair).splitlines() == [
        "x, 6 numbers: nothing 0 B forward, nothing 0 B backward",
        "W1 (4, 6) out",
        "W1 x, 4 numbers: nothing 0 B forward, nothing 0 B backward",
        "W2 (2, 4) in",
        "W2 W1 x, 2 numbers: all_reduce 8 B forward, nothing 0 B backward",
        "sent: 8 B forward, 0 B backward; held: 16 weights",
    ]


def test_replicated_matrices_send_nothing_and_hold_all():
    best = search_chain(EQUAL, tp=2)[0]
    assert best.cuts == ("replicated",) * 3
    assert best.order == (0, 0, 3 * 64 * 64)


def test_all_partitions_of_four_matrices():
    found = search_chain((64,) * 5, tp=2)
    assert len(found) == len({partition.cuts for partition in found}) == 81
    assert all(a.order <= b.order for a, b in pairwise(found))


def best_cut(widths, tp=2):
    """Where nothing is replicated: what is sent in a step, by partition, the least first."""
    weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    return {
        partition.cuts: step_bytes(partition) for partition in search_chain(widths, tp=tp, most_weights=weights // tp)
    }


def test_with_everything_cut_the_talk_s_two_are_the_best_of_eight_together():
    found = best_cut(EQUAL)
    assert list(found.values()) == [512, 512, 640, 640, 768, 768, 896, 896]
    assert set(list(found)[:2]) == set(TALK.values())
    assert next(iter(best_cut((64, 256, 64, 64)))) == TALK[1]
    assert next(iter(best_cut((64, 64, 256, 64)))) == TALK[2]


def test_of_four_equal_matrices_four_partitions_are_best_and_of_two_perceptrons_megatron_s_alone():
    pairs = ("out", "in") * 2
    assert list(best_cut((64,) * 5).values())[:5] == [768] * 4 + [896]
    assert best_cut((64,) * 5)[pairs] == 768
    found = best_cut((64, 256, 64, 256, 64))
    assert list(found)[0] == pairs and list(found.values())[:2] == [768, 1536]


def test_room_for_more_weights_sends_less():
    half = 4 * 64 * 64 // 2
    found = [search_chain((64,) * 5, tp=2, most_weights=half + more * 2048)[0] for more in range(5)]
    assert [step_bytes(partition) for partition in found] == [768, 512, 256, 128, 0]
    assert found[2].cuts == ("out", "in", "replicated", "replicated")


@pytest.mark.parametrize(
    ("widths", "cuts", "message"),
    [
        (
            (4, 4),
            ("out", "in"),
            r"2 widths, cuts=\['out', 'in'\]; each matrix between two widths has a cut; choose from",
        ),
        ((4,), (), "1 widths, "),
        ((4, 4), ("rows",), "2 widths, "),
        ((4, 0), ("out",), r"widths=\[4, 0\], tp=2, samples=1; sizes are positive; give sizes >= 1$"),
    ],
)
def test_what_is_no_chain(widths, cuts, message):
    with pytest.raises(ValueError, match=f"^chain_partition: {message}"):
        chain_partition(widths, cuts, tp=2)
