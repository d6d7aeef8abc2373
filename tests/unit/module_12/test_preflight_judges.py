"""Facts in, findings out: each finding of `preflight`, provoked by the facts that it is about."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from course_lib.cli import preflight_judges as judges
from course_lib.cli import preflight_started
from course_lib.cli.preflight import can_meet, say
from course_lib.cli.preflight_facts import Alone, Together
from course_lib.gauges import SweepRow, busbw
from course_lib.gauges.links_alone import LinkRow, rounds_of_links
from course_lib.hardware import load_cluster
from course_lib.units import GiB, MiB

ONE = Alone(
    rank=0,
    host="node1",
    local_ranks=2,
    python="3.11.7",
    torch="2.13.0",
    course="1",
    device="NVIDIA H100",
    gpus=2,
    interfaces=("lo", "eth0", "ib0"),
    gloo="",
    nccl="",
    address="10.0.0.1",
    free_port=True,
    disk_bytes=900 * GiB,
    shm_bytes=100 * GiB,
)
RANKS = [replace(ONE, rank=rank, host=f"node{1 + rank // 2}") for rank in range(4)]
HERE = [replace(one, host="node1", local_ranks=4, gpus=4) for one in RANKS]
MET = Together(dialled="", seen=4)


def with_rank(rank, ranks=RANKS, **changed):
    return [replace(one, **changed) if one.rank == rank else one for one in ranks]


def sweep(gigabytes_per_s, wrong=0):
    algbw = gigabytes_per_s * 1e9 / 1.5
    return [Together(dialled="", rows=(SweepRow(1 << 28, 1.0, algbw, busbw(algbw, 4), wrong),))] * 4


def alone(gigabytes_per_s, wrong=()):
    """Rows of links that some ranks have, by their rates."""
    return [LinkRow(one, 1 << 28, rate * 1e9, one in wrong) for one, rate in gigabytes_per_s.items()]


def test_an_allocation_in_order_is_ok():
    everything = [judge(RANKS) for judge in judges.ALONE]
    everything += [judges.ports(RANKS, [MET] * 4), judges.clocks(RANKS, [(0, 0)] + [(0.002, 0.001)] * 3)]
    everything += [judges.folder(RANKS, [MET] * 4, "runs"), judges.wires(RANKS, sweep(30), None)]
    assert [one.verdict for one in everything] == ["ok"] * 9 and can_meet(everything)
    assert not any(one.rule or one.way_out for one in everything)


@pytest.mark.parametrize(
    ("judge", "facts", "verdict", "said"),
    [
        ("versions", with_rank(3, torch="2.12.1"), "wrong", "rank 3: Python 3.11.7, torch 2.12.1, course 1"),
        ("versions", with_rank(0, python="3.12.1"), "wrong", "ranks 1-3: Python 3.11.7"),
        ("devices", with_rank(2, device="NVIDIA A100"), "wrong", "ranks 0, 1, 3: NVIDIA H100; rank 2: NVIDIA A100"),
        ("devices", with_rank(3, gpus=1), "wrong", "node2: 2 ranks on 1 GPUs; NCCL refuses two"),
        ("devices", [replace(one, device="cpu") for one in RANKS], "look", "node1 2, node2 2; ranks take GPUs when"),
        ("hosts", with_rank(1, host="node2"), "look", "node1 (rank 0), node2 (ranks 1-3); a mesh has as many"),
        ("hosts", with_rank(1, with_rank(2, host="node1"), host="node2"), "wrong", "node1 (ranks 0, 2), node2 (ranks "),
        ("interfaces", with_rank(2, gloo="eth7"), "wrong", "rank 2: GLOO_SOCKET_IFNAME=eth7, and node2 has lo, eth0, "),
        ("interfaces", with_rank(2, gloo="eth"), "wrong", "GLOO_SOCKET_IFNAME=eth, "),  # gloo takes whole names
        ("interfaces", with_rank(1, nccl="=ib"), "wrong", "rank 1: NCCL_SOCKET_IFNAME==ib, and node1 has "),
        ("interfaces", with_rank(1, nccl="^lo,eth,ib"), "wrong", "rank 1: NCCL_SOCKET_IFNAME=^lo,eth,ib, "),
        ("interfaces", [replace(one, gloo="lo") for one in RANKS], "wrong", "ranks 0-3: GLOO_SOCKET_IFNAME names lo "),
        ("interfaces", with_rank(3, address="127.0.1.1"), "look", "rank 3: node2 takes its own name for 127.0.1.1"),
        ("space", with_rank(3, disk_bytes=5 * GiB), "look", "5 GiB free on node2, /dev/shm 100 GiB on node1; a check"),
        ("space", with_rank(3, disk_bytes=MiB), "wrong", "1 MiB free on node2"),
        ("space", with_rank(1, shm_bytes=64 * MiB), "wrong", "/dev/shm 64 MiB on node1; NCCL and workers"),
        ("space", with_rank(1, shm_bytes=GiB), "look", "--shm-size=16g"),
    ],
)
def test_what_a_rank_has_is_judged(judge, facts, verdict, said):
    found = getattr(judges, judge)(facts)
    assert (found.what, found.verdict) == (judge, verdict) and said in found.line and found.rule and found.way_out
    assert can_meet([found]) == (judge != "interfaces" or verdict == "look")


@pytest.mark.parametrize("given", [{"nccl": "eth"}, {"nccl": "^docker"}, {"nccl": "=ib0"}, {"gloo": "eth0,ib0"}])
def test_names_of_interfaces_that_are_there_are_ok(given):
    assert judges.interfaces([replace(one, **given) for one in RANKS]).verdict == "ok"


def test_on_one_host_lo_is_an_interface_like_any_other():
    assert judges.interfaces([replace(one, gloo="lo", address="127.0.1.1") for one in HERE]).verdict == "ok"


def test_another_system_has_no_shm():
    assert judges.space([replace(one, shm_bytes=None) for one in RANKS]).seen == "900 GiB free on node1"


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (judges.ports(RANKS, [MET, replace(MET, dialled="node2:4711: timed out"), MET, MET]), "wrong", "rank 1 cannot"),
        (judges.ports(with_rank(0, free_port=False), [MET] * 4), "look", "node1: port 29500 is taken; torchrun takes"),
        (judges.clocks(RANKS, [(0, 0), (0, 0), (0.7, 0.1), (0, 0)]), "look", "rank 2 on node2 is off by 700 ms, give"),
        (judges.clocks(RANKS, [(0, 0), (-40, 0.1), (0.7, 0.1), (0, 0)]), "wrong", "rank 1 on node1 is off by 40 s"),
        (judges.folder(RANKS, [MET, MET, *[replace(MET, seen=2)] * 2], "runs"), "wrong", "ranks 2, 3 found 2 of 4"),
        (judges.folder(RANKS, [MET] * 3 + [replace(MET, folder="Read-only")], "runs"), "wrong", "runs: rank 3 cannot"),
        (judges.wires(RANKS, sweep(30, wrong=7), None), "wrong", "7 numbers of all-reduces came out wrong"),
    ],
)
def test_what_ranks_saw_of_each_other_is_judged(found, verdict, said):
    assert found.verdict == verdict and said in found.line and found.rule and found.way_out


def test_a_slow_answer_is_not_taken_for_a_wrong_clock():
    assert judges.clocks(RANKS, [(0, 0), (0.3, 0.35), (0, 0), (0, 0)]).verdict == "ok"


@pytest.mark.parametrize(
    ("ranks", "gigabytes_per_s", "verdict", "said"),
    [
        (HERE, 400, "ok", "0.89 of the 450 GB/s of NVSwitch 3"),
        (HERE, 100, "look", "0.22 of the 450 GB/s of NVSwitch 3"),
        (RANKS, 80, "ok", "0.8 of the 100 GB/s of InfiniBand NDR"),  # two ranks of a node: two of its eight cards
        (RANKS, 1.2, "wrong", "0.012 of the 100 GB/s of InfiniBand NDR; long messages reach at least 0.5"),
    ],
)
def test_wires_are_held_against_a_preset(ranks, gigabytes_per_s, verdict, said):
    found = judges.wires(ranks, sweep(gigabytes_per_s), load_cluster("dgx_h100"))
    assert found.verdict == verdict and said in found.line
    assert found.line.endswith("and at the lines of single links") == (ranks is RANKS and verdict != "ok")


@pytest.mark.parametrize(
    ("ranks", "cluster", "limit"),
    [
        (HERE, "kempner_h100", "of the 450 GB/s of NVLink 4"),  # no switch: a ring uses the links to all three others
        (RANKS, "gb200_nvl72", "of the 900 GB/s of NV"),  # two of a rack's hosts are one domain
    ],
)
def test_a_ring_is_held_against_what_the_one_model_of_wires_says(ranks, cluster, limit):
    assert limit in judges.wires(ranks, sweep(300), load_cluster(cluster)).line


INSIDE = {(0, 1): 400, (2, 3): 410}
BETWEEN = {(0, 2): 45, (1, 3): 47}
SIX = [replace(ONE, rank=rank, host=f"node{1 + rank // 2}") for rank in range(6)]
RING = dict.fromkeys([(0, 2), (1, 3), (2, 4), (3, 5), (0, 4), (1, 5)], 45)


def test_links_that_are_alike_are_a_line_for_each_kind():
    inside, between = judges.links(RANKS, alone(INSIDE | BETWEEN), load_cluster("dgx_h100"))
    assert inside.line == (
        "ok     inside      busbw of 2 links 400 to 410 GB/s at 256 MiB, the slowest 0.89 of the 450 GB/s of NVSwitch 3"
    )
    assert between.line == (
        "ok     between     busbw of 2 links 45 to 47 GB/s at 256 MiB, the slowest 0.9 of the 50 GB/s of InfiniBand NDR"
    )
    (single,) = judges.links([RANKS[0], replace(RANKS[1], host="node2")], alone({(0, 1): 45}), None)
    assert single.line == "ok     between     busbw of 1 link 45 GB/s at 256 MiB"


def test_of_one_host_no_link_is_judged():
    assert rounds_of_links(["node1"] * 4) == [] == judges.links(HERE, [], load_cluster("dgx_h100"))


@pytest.mark.parametrize(
    ("ranks", "rates", "cluster", "verdict", "said"),
    [
        (
            RANKS,
            INSIDE | {(2, 3): 20},
            None,
            "look",
            "slow: node2 (ranks 2, 3) 20 GB/s; a link reaches at least 0.5 of",
        ),
        (RANKS, INSIDE | {(2, 3): 20}, "dgx_h100", "wrong", "least 0.5 of a data sheet's bandwidth; leave out node2, "),
        (RANKS, BETWEEN | {(1, 3): 2}, None, "look", "slow: node1 with node2 (ranks 1, 3) 2 GB/s; a link"),
        (RANKS, BETWEEN | {(1, 3): 2}, "dgx_h100", "wrong", "GB/s; long messages reach at least 0.5 of a data sheet's"),
        (RANKS, BETWEEN | {(1, 3): 20}, "dgx_h100", "look", "these hosts, or leave them out until it is right"),
        (RANKS, {(0, 2): 20, (1, 3): 21}, "dgx_h100", "look", "bandwidth; look at NCCL_DEBUG=INFO for the interface"),
        (SIX, RING | {(0, 2): 2, (2, 4): 3}, None, "look", "2 GB/s, node2 with node3 (ranks 2, 4) 3 GB/s; a link"),
        (
            SIX,
            RING | {(0, 2): 2, (2, 4): 3},
            None,
            "look",
            "; leave out node2, or",
        ),  # a card of the node that both have
        (
            SIX,
            dict.fromkeys(RING, 2) | {(0, 4): 45, (1, 5): 45},
            None,
            "look",
            "; leave out node2, or",
        ),  # all its cards
        (SIX, RING | {(0, 2): 20}, "puhti_v100", "look", "slow: node1 with node2"),  # more than a share of two cards
    ],
)
def test_a_link_that_is_slow_is_named(ranks, rates, cluster, verdict, said):
    (found,) = judges.links(ranks, alone(rates), cluster and load_cluster(cluster))
    assert found.verdict == verdict and said in found.line and found.rule and found.way_out


def test_a_link_that_adds_up_wrong_is_named_however_fast():
    ok, wrong = judges.links(SIX, alone({(0, 1): 400} | RING, wrong=[(2, 4), (3, 5)]), None)
    assert ok.verdict == "ok" and wrong.verdict == "wrong"
    assert "2 numbers of all-reduces came out wrong: node2 with node3 (ranks 2, 4) 45 GB/s, node2 with" in wrong.line


def test_trays_of_one_rack_are_held_against_their_nvlink():
    rates = alone(INSIDE | {(0, 2): 800, (1, 3): 800})
    lines = [one.line for one in judges.links(RANKS, rates, load_cluster("gb200_nvl72"))]
    assert all("of the 900 GB/s of NV" in line for line in lines)


@pytest.mark.parametrize(("nodes", "rounds"), [(2, 2), (3, 4), (4, 3), (5, 4)])
def test_each_link_is_alone_once_and_no_node_in_two_pairs_at_a_time(nodes, rounds):
    inside, *between = found = rounds_of_links([f"node{rank // 2}" for rank in range(2 * nodes)])
    assert len(found) == rounds and inside == [(2 * node, 2 * node + 1) for node in range(nodes)]
    ring = {tuple(sorted((rank, (rank + 2) % (2 * nodes)))) for rank in range(2 * nodes)}
    assert sorted(link for links in between for link in links) == sorted(ring)
    assert all(len({rank for link in links for rank in link}) == 2 * len(links) for links in found)


def test_a_node_with_more_ranks_than_its_neighbour_has_no_partner_for_the_rest():
    assert rounds_of_links(["a", "a", "a", "b", "b"]) == [[(0, 1, 2), (3, 4)], [(0, 3), (1, 4)]]
    assert rounds_of_links(["a", "b"]) == [[(0, 1)]]


def test_a_line_each_and_a_status(capsys):
    looked = judges.Finding("space", "look", "5 GiB free", "rule", "way out")
    assert say([looked]) == 0 and say([looked, judges.interfaces(with_rank(2, gloo="eth7"))]) == 1
    first, summary, again, wrong, unseen, last = capsys.readouterr().out.splitlines()
    assert first == again == "look   space       5 GiB free; rule; way out"
    assert summary == "of 1 findings 1 to look at" and last == "of 2 findings 1 wrong, 1 to look at"
    assert (
        wrong.startswith("wrong  interfaces  rank 2: ")
        and unseen == "the rest was not looked at, for ranks cannot meet like this"
    )


def test_facts_survive_the_store():
    """As text that every version reads."""
    seen = replace(sweep(3)[0], clocks=((0.0, 0.0), (0.1, 0.2)), links=tuple(alone(INSIDE)))
    sent = json.loads(json.dumps([asdict(ONE), asdict(seen)]))
    assert preflight_started.alone_from(sent[0]) == ONE and preflight_started.together_from(sent[1]) == seen


def test_how_slurm_counts_the_tasks_of_a_node():
    assert [preflight_started.tasks_here("2(x3),1", node) for node in range(4)] == [2, 2, 2, 1]
    assert preflight_started.tasks_here("8", 0) == 8
