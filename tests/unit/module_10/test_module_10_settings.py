"""What `train` is told of averages that lose something, and one line for what cannot be."""

from __future__ import annotations

import pytest

from course_lib.cli.settings import every
from course_lib.cli.train_config import read_train
from course_lib.cli.train_less import averages_exactly, read_lossy
from course_lib.cli.train_settings import TRAIN
from course_lib.less import TOPOLOGIES

SETTINGS = {setting.name: setting for setting in every(TRAIN)}


def test_every_topology_that_is_offered_is_known():
    assert SETTINGS["gossip"].choices == TOPOLOGIES


@pytest.mark.parametrize("word", [*SETTINGS["lossy"].choices, "neolithic:0.05:2"])
def test_every_method_that_is_offered_is_known(word):
    assert read_train(["dp=2", f"lossy={word}"]).values["lossy"] == word
    assert read_lossy(word) is not None


@pytest.mark.parametrize(
    ("given", "exact"),
    [
        ("dp=2 lossy=sign", True),
        ("dp=2 local=1", False),
        ("dp=4 across=2 local=50 outer=0.7:0.9", True),
        ("dp=4 across=2 zero_stage=3 local=50", True),
        ("dp=4 gossip=one_peer_exponential", False),
        ("dp=2", True),
    ],
)
def test_inside_a_cluster_gradients_are_averaged_in_each_step(given, exact):
    assert averages_exactly(read_train(given.split()).values) == exact


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "dp=2 lossy=top_k",
            "lossy=top_k; it is a word that says what gradients lose, with its numbers; say top_k:0.01",
        ),
        ("dp=2 lossy=top_k:a", "lossy=top_k:a; it is a word that says what gradients lose, with its numbers; say top"),
        ("dp=2 lossy=sign:1", "lossy=sign:1; it is a word that says what gradients lose, with its numbers; say top_k"),
        ("dp=2 lossy=zip", "lossy=zip; it is a word that says what gradients lose, with its numbers; say top_k:0.01"),
        ("dp=2 lossy=qsgd:1.5", "lossy=qsgd:1.5; it is a whole number; say qsgd:1"),
        ("dp=2 lossy=power_sgd:0", "power_sgd: rank=0; a factor has a column; give rank >= 1"),
        ("dp=2 lossy=top_k:2", "top_k: fraction=2"),
        ("dp=2 local=0", "local=0; local is positive; give local >= 1"),
        ("local=5", "local=5 with dp=1; one copy has nobody to meet; give dp >= 2, or across >= 2"),
        ("lossy=sign", "lossy=sign with dp=1; one copy has nobody to meet; give dp >= 2"),
        (
            "dp=2 outer=0.7:0.9",
            "outer=0.7:0.9 without local; it is the step from one meeting to the next; give local=50",
        ),
        ("dp=2 local=5 outer=0.7", "outer=0.7; it is a learning rate and a momentum; say outer=0.7:0.9"),
        ("dp=2 local=5 outer=0.7:1", "outer=0.7:1; a rate is above 0, a momentum from 0 to below 1; say outer=0.7:0.9"),
        ("dp=2 local=5 lossy=sign", "lossy=sign and local=5; copies come together in one way; leave one of lossy, loc"),
        ("dp=4 across=2", "across=2; something says how clusters come together; give lossy, local or gossip, or leave"),
        (
            "dp=4 across=3 local=5",
            "across=3 with dp=4; each cluster has as many copies; give a dp that across=3 divides",
        ),
        (
            "dp=2 local=5 zero_stage=1",
            "local=5 with zero_stage=1; each copy has weights of its own along dp; choose zero",
        ),
        ("dp=4 across=2 lossy=sign zero_stage=3", "lossy=sign with zero_stage=3; gradients are averaged whole; choose"),
        (
            "dp=2 local=5 engine=torch",
            "engine=torch with local=5; PyTorch's engine averages gradients exactly here; cho",
        ),
        (
            "dp=2 gossip=ring optimizer=adamw8bit",
            "gossip=ring with optimizer=adamw8bit; a checkpoint has the copies' m",
        ),
        ("dp=2 tp=2 lossy=power_sgd:2", "lossy=power_sgd:2 with tp=2; its factors are a whole matrix's; choose tp=1"),
        ("dp=2 gossip=star", "mixing: topology='star'; not a known topology; choose one of ring, grid, torus"),
        ("dp=3 gossip=one_peer_exponential", "mixing: topology='one_peer_exponential', n=3; distances double until"),
    ],
)
def test_what_cannot_be_is_one_line(given, said):
    with pytest.raises(ValueError) as error:
        read_train(given.split())
    text = str(error.value).removeprefix("train: ")
    assert text.startswith(said) and "\n" not in text
