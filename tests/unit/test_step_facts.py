"""What the ladder says where it has seen no cause, without ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course_lib.verify.step_facts import how_ranks_share

SHARES, BLOCKS = "give each rank its own share of the batch", "add up a block's terms over the ranks once"
STAGES = "let each stage take what the one before it gives"


@pytest.mark.parametrize(
    ("n_shares", "place", "words"),
    [
        (1, "whole", []),
        (2, "whole", [SHARES]),
        (1, "tp: Shard(0)", [BLOCKS]),
        (1, "pp: rank 1", [STAGES]),
        (2, "tp: Shard(1), pp: rank 0", [SHARES, BLOCKS, STAGES]),
    ],
)
def test_only_what_these_ranks_share_is_spoken_of(n_shares, place, words):
    said = how_ranks_share(SimpleNamespace(n_shares=n_shares, ranks=[SimpleNamespace(places={"weight": place})]))
    assert [one for one in (SHARES, BLOCKS, STAGES) if one in said] == words
    assert said.endswith("and ") == bool(words)
