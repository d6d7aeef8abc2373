"""Mixing matrices: what every gossip rests on, and how fast each comes together."""

from __future__ import annotations

import pytest
import torch

from course_lib.less import TOPOLOGIES, mixing, neighbours, spectral_gap


def test_every_topology_is_there():
    assert TOPOLOGIES == ("ring", "grid", "torus", "static_exponential", "one_peer_exponential", "complete")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rows_and_columns_sum_to_one(topology):
    for n in (1, 4, 8, 16):
        for matrix in mixing(topology, n):
            assert matrix.shape == (n, n)
            assert (matrix >= 0).all()
            assert torch.allclose(matrix.sum(0), torch.ones(n, dtype=torch.float64), atol=1e-15)
            assert torch.allclose(matrix.sum(1), torch.ones(n, dtype=torch.float64), atol=1e-15)


def gaps(n):
    return {topology: spectral_gap(*mixing(topology, n)) for topology in TOPOLOGIES}


def test_gaps_of_16_ranks_by_formula_where_there_is_one():
    found = gaps(16)
    angle = torch.tensor(2 * torch.pi / 16, dtype=torch.float64)
    assert found["ring"] == pytest.approx(1 - (1 + 2 * angle.cos().item()) / 3)
    assert found["static_exponential"] == pytest.approx(2 / (1 + 4))
    assert found["torus"] == pytest.approx(1 - 3 / 5)  # the slowest wave runs along one side: (1 + 2 + 2 cos 90) / 5
    assert found["one_peer_exponential"] == pytest.approx(1)
    assert found["complete"] == pytest.approx(1)
    assert found["ring"] < found["grid"] < found["torus"]


def test_the_gap_is_what_a_step_takes_from_the_slowest_disagreement():
    for topology in ("ring", "grid", "torus", "static_exponential"):
        (matrix,) = mixing(topology, 16)
        slowest = torch.linalg.svd(matrix - 1 / 16)[2][0]
        assert (matrix @ slowest).norm() == pytest.approx(1 - spectral_gap(matrix))


def test_one_peer_agrees_after_log2_n_steps_and_gossip_keeps_the_mean_to_the_bit():
    opinions = torch.randint(-1000, 1000, (16, 5), generator=torch.Generator().manual_seed(0)).double()
    mixed = opinions
    for step, matrix in enumerate(mixing("one_peer_exponential", 16)):
        mixed = matrix @ mixed
        assert torch.equal(mixed.mean(0), opinions.mean(0))
        assert torch.equal(mixed, opinions.mean(0).expand(16, 5)) == (step == 3)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_neighbours_together_are_the_matrix(topology):
    for matrix in mixing(topology, 8):
        again = torch.zeros_like(matrix)
        for rank in range(8):
            found = neighbours(matrix, rank)
            again[rank, rank] = found.own
            for other, weight in found.receive_from.items():
                again[rank, other] = weight
                assert rank in neighbours(matrix, other).send_to
            assert rank not in found.send_to
        assert torch.equal(again, matrix)


def test_how_many_each_rank_sends_to():
    most = {
        topology: max(len(neighbours(matrix, rank).send_to) for matrix in mixing(topology, 16) for rank in range(16))
        for topology in TOPOLOGIES
    }
    assert list(most.values()) == [2, 4, 4, 4, 1, 15]


def test_a_grid_is_as_square_as_it_can_be():
    (matrix,) = mixing("grid", 12)
    assert neighbours(matrix, 0).send_to == (1, 4)  # 3 rows of 4


@pytest.mark.parametrize(
    ("topology", "n", "message"),
    [
        ("star", 4, "mixing: topology='star'; not a known topology; choose one of ring, grid, torus"),
        ("ring", 0, "mixing: n=0; .*; give n >= 1 ranks"),
        ("grid", 7, "mixing: topology='grid', n=7; .*; choose n = rows x columns, or ring"),
        ("static_exponential", 6, "n=6; distances double .*; choose a power of two, such as 4 or 8"),
        ("one_peer_exponential", 12, "n=12; distances double .*; choose a power of two, such as 8 or 16"),
    ],
)
def test_what_cannot_be_says_what_can(topology, n, message):
    with pytest.raises(ValueError, match=message):
        mixing(topology, n)
