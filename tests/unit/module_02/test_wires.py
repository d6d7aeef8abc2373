"""One domain's wires: what messages get of them alone and side by side, and that all who ask are told the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from course_lib.config import load_model
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import ddp_time
from course_lib.costs.comm.price import collective_s
from course_lib.costs.sweep.software import Software
from course_lib.hardware import cluster_names, leaving_of_rings, load_cluster, seconds_per_byte, wires
from course_lib.sim.axes import data_s, held, tensor_s
from course_lib.sim.constants import rates_of
from course_lib.sim.machine import machine_of
from course_lib.sim.policies import Policies
from course_lib.sim.shape import shape_of
from course_lib.units import GB, GiB

B200, PUHTI, NVL72 = (wires(load_cluster(name)) for name in ("dgx_b200", "puhti_v100", "gb200_nvl72"))


def without_latency(one):
    return replace(one, pair=replace(one.pair, alpha_s=0.0), card=replace(one.card, alpha_s=0.0))


def test_a_domain_is_a_node_s_gpus_or_a_rack_s():
    assert (B200.domain, B200.cards, B200.network_bytes_per_s) == (8, 8, 400 * GB)
    assert (PUHTI.domain, PUHTI.cards, PUHTI.network_bytes_per_s) == (4, 2, 25 * GB)
    assert (NVL72.domain, NVL72.cards, NVL72.network_bytes_per_s) == (72, 72, 3600 * GB)


@pytest.mark.parametrize("name", cluster_names())
def test_one_gpu_s_share_is_that_of_all_cards_of_its_domain(name):
    cluster = load_cluster(name)
    found = wires(cluster)
    assert cluster.between.bandwidth_bytes_per_s == pytest.approx(found.network_bytes_per_s / found.domain)
    assert cluster.between.alpha_s == cluster.card.alpha_s


def test_two_gpus_of_a_board_without_a_switch_have_the_links_between_them_and_all_have_all():
    assert [PUHTI.joining(ranks).inside_bytes_per_s / GB for ranks in (1, 2, 3, 4, 8)] == [50, 50, 100, 150, 150]
    assert {B200.joining(ranks).inside_bytes_per_s for ranks in (1, 2, 8)} == {900 * GB}


def test_messages_that_leave_together_share_the_cards_and_one_alone_has_them_all_but_is_no_faster_than_inside():
    alone, all_eight = (B200.message_s(GB, leaving) - B200.card.alpha_s for leaving in (1, 8))
    assert (alone, all_eight) == pytest.approx((1 / 400, 1 / 50))
    assert B200.message_s(GB) - B200.pair.alpha_s == pytest.approx(1 / 900)
    many = replace(B200, cards=64)
    assert many.message_s(GB, 1) - many.card.alpha_s == pytest.approx(1 / 900)
    assert B200.message_s(0) == B200.pair.alpha_s < B200.message_s(0, 1) == B200.card.alpha_s


def test_arrays_are_answered_as_numbers_are():
    ranks, stride, domain = np.array([4, 8, 16, 4, 3]), np.array([1, 1, 1, 4, 16]), np.array([8, 8, 8, 8, 8])
    leaving = leaving_of_rings(ranks, stride, domain)
    assert leaving.tolist() == [0, 0, 1, 4, 8]
    numbers = [leaving_of_rings(*case) for case in zip(*(x.tolist() for x in (ranks, stride, domain)), strict=True)]
    assert numbers == leaving.tolist()
    rates = {"inside_bytes_per_s": 900.0, "network_bytes_per_s": 400.0}
    assert seconds_per_byte(leaving, **rates).tolist() == [seconds_per_byte(n, **rates) for n in numbers]


def test_4_gib_over_32_b200_with_one_card_with_all_and_in_a_hierarchy():
    """As published: 22.05 ms. The three ways by hand."""
    ring, hierarchy = (
        collective_s("all_reduce", way, nbytes=4 * GiB, ranks=32, wires=B200) for way in ("ring", "hierarchical")
    )
    latency = (4 * 14e-6 + 28 * 3.4e-6) / 32  # of a chunk's 32 hops around the ring four leave a node
    assert ring == pytest.approx(2 * 31 * (latency + 4 * GiB / 32 / 400e9)) == pytest.approx(21.1e-3, rel=0.01)
    inside, through = 14 * (3.4e-6 + 4 * GiB / 8 / 900e9), 6 * (14e-6 + 4 * GiB / 32 / 50e9)
    assert hierarchy == pytest.approx(inside + through) == pytest.approx(24.6e-3, rel=0.01)
    cost = comm_time("all_reduce", "ring", world_size=32, length=GiB, itemsize=4, node_size=8)
    assert cost.time_s(B200.pair, B200.card) == pytest.approx(167.3e-3, rel=0.01)
    assert cost.time_s(B200) == pytest.approx(ring)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_half_an_all_reduce_takes_half_as_long(operation):
    whole, half = (
        collective_s(what, "ring", nbytes=3 * 2**20, ranks=48, wires=B200) for what in ("all_reduce", operation)
    )
    assert half == pytest.approx(whole / 2)


def test_in_an_all_to_all_what_leaves_a_domain_shares_its_cards():
    found = collective_s("all_to_all", "pairwise", nbytes=2**26, ranks=64, wires=without_latency(B200))
    assert found == pytest.approx(56 / 64 * 2**26 / 50e9)  # each of 8 GPUs sends to 56 others through its card
    inside = collective_s("all_to_all", "pairwise", nbytes=2**26, ranks=64, wires=without_latency(NVL72))
    assert inside == pytest.approx(63 / 64 * 2**26 / 900e9)


def test_a_tree_sends_the_whole_tensor_and_most_of_a_node_s_ranks_stay_inside():
    found = collective_s("broadcast", "tree", nbytes=2**30, ranks=16, wires=without_latency(B200))
    assert found == pytest.approx(2**30 / 400e9 + 3 * 2**30 / 900e9)
    cost = comm_time("broadcast", "tree", world_size=16, length=2**30, itemsize=1, node_size=8)
    assert [step.leaving for step in cost.path] == [1, 0, 0, 0]


def test_steps_count_what_leaves_the_fullest_node():
    def leaving(operation, algorithm, p=16, node_size=4, root=0):
        cost = comm_time(operation, algorithm, world_size=p, length=p, itemsize=1, root=root, node_size=node_size)
        return [step.leaving for step in cost.path]

    assert leaving("all_reduce", "ring") == [1] * 30
    assert leaving("all_reduce", "hierarchical") == [0] * 3 + [4] * 6 + [0] * 3
    assert leaving("all_reduce", "recursive_doubling") == [0, 0, 4, 4]
    assert leaving("all_reduce", "halving_doubling") == [4, 4, 0, 0, 0, 0, 4, 4]
    assert leaving("all_to_all", "pairwise", 8) == [1, 2, 3, 4, 3, 2, 1]
    assert leaving("barrier", "dissemination") == [1, 2, 4, 4]
    assert leaving("broadcast", "naive", 8, root=5) == [1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("p", "node"), [(8, 4), (12, 4), (10, 4), (12, 3), (16, 8), (9, 8)])
def test_a_rotation_s_short_form_is_what_its_pairs_say(p, node):
    cost = comm_time("all_to_all", "pairwise", world_size=p, length=p, itemsize=1, node_size=node)
    for s, step in enumerate(cost.path, start=1):
        nodes = [range(first, min(first + node, p)) for first in range(0, p, node)]
        assert step.leaving == max(sum((r + s) % p not in ranks for r in ranks) for ranks in nodes)


CASES = list(product((2, 4, 8, 16, 64), (1, 2, 4, 8, 16)))  # ranks, and how far apart


@pytest.mark.parametrize("name", ["dgx_b200", "puhti_v100", "kempner_h100", "gb200_nvl72"])
def test_the_simulator_s_rings_are_those_of_the_formula(name):
    """Without latency, and with the share of its rates that the simulator's constants leave."""
    cluster, shape = load_cluster(name), shape_of(load_model("llama3_1_8b"))
    rates = rates_of(machine_of(cluster), Software())
    fitted = {"inside_bytes_per_s": rates.inside_bytes_per_s, "pair_bytes_per_s": rates.pair_bytes_per_s}
    one = without_latency(wires(cluster))
    pair = replace(one.pair, bandwidth_bytes_per_s=fitted["pair_bytes_per_s"])
    card = replace(one.card, bandwidth_bytes_per_s=rates.between_bytes_per_s * one.domain / one.cards)
    one = replace(one, pair=pair, card=card, inside_bytes_per_s=fitted["inside_bytes_per_s"])
    quick = replace(rates, inside_alpha_s=0.0, ring_alpha_s=0.0, tp_exposed=1.0, dp_exposed=1.0, gradient_bytes=2.0)
    for dp, tp in CASES:
        if one.domain % tp and tp % one.domain:
            continue
        policy = Policies(dp=dp, tp=tp, shards=dp, zero_stage=1, sequence=4096)
        numbers = round(float(held(shape, policy).total))
        along_dp = collective_s("all_reduce", "ring", nbytes=2 * numbers, ranks=dp, stride=tp, wires=one)
        assert float(data_s(shape, quick, policy, 0.0)) == pytest.approx(along_dp, rel=1e-6)
        nbytes = 4096 * shape.hidden * 2
        along_tp = collective_s("all_reduce", "ring", nbytes=int(nbytes), ranks=tp, wires=one)
        assert float(tensor_s(shape, quick, policy, 0.0)) == pytest.approx(4 * along_tp, rel=1e-6)


def test_ddp_s_buckets_travel_on_a_cluster_s_wires():
    options = {"forward_s": 0.0, "backward_s": 0.0, "world_size": 32}
    found = ddp_time([[2**20]], inside=B200, **options)
    assert found.all_reduce_s == (
        pytest.approx(collective_s("all_reduce", "ring", nbytes=2**22, ranks=32, wires=B200)),
    )
    one_card = ddp_time([[2**20]], inside=B200.pair, between=B200.card, node_size=8, **options)
    assert one_card.all_reduce_s[0] > found.all_reduce_s[0]


def test_nccl_reaches_a_share_of_nvlink_and_all_of_a_card():
    reached = B200.as_nccl_reaches()
    assert (reached.inside_bytes_per_s, reached.pair.bandwidth_bytes_per_s) == pytest.approx((720e9, 720e9))
    assert reached.network_bytes_per_s == B200.network_bytes_per_s


def test_a_hierarchy_of_ranks_that_do_not_fill_their_domains_is_refused():
    with pytest.raises(ValueError, match=r"^comm_time all_reduce hierarchical: node_size=8, world_size=12; all"):
        collective_s("all_reduce", "hierarchical", nbytes=100, ranks=12, wires=B200)
