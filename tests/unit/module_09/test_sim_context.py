"""Long sequences in the simulator: three ways to share attention, each as many bytes as its formula in costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from course_lib.config import ModelConfig, load_model
from course_lib.costs import gathered_context, ring_attention, ulysses
from course_lib.costs.sweep.software import Software
from course_lib.hardware import load_cluster
from course_lib.sequence_cut import SequenceCut
from course_lib.sim.axes import context_s
from course_lib.sim.constants import rates_of
from course_lib.sim.machine import machine_of
from course_lib.sim.policies import CONTEXTS, Policies
from course_lib.sim.shape import shape_of

LLAMA, CLUSTER = load_model("llama3_1_8b"), load_cluster("dgx_h100")
WAYS = (ring_attention, gathered_context, ulysses)


def seconds_a_byte(rate: float):
    """Rates at which a byte takes as long on every wire, a message no time to set out, and nothing is hidden."""
    rates = rates_of(machine_of(CLUSTER), Software())
    wire = {"inside_bytes_per_s": rate, "pair_bytes_per_s": rate, "between_bytes_per_s": rate, "domain": 10**6}
    return replace(rates, **wire, inside_alpha_s=0.0, cp_exposed=1.0)


@pytest.mark.parametrize("way", range(3), ids=CONTEXTS)
@pytest.mark.parametrize("kv_heads", [32, 8, 1])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (1, 2), (1, 8), (4, 4), (2, 16)])
def test_bytes_are_those_of_costs(way, kv_heads, tp, cp):
    config, cut = replace(LLAMA, n_kv_heads=kv_heads), SequenceCut(4096, cp)
    passes = [WAYS[way](config, cut, batch=2, itemsize=2, tp=tp, when=when) for when in ("forward", "backward")]
    policy = Policies(cp=cp, tp=tp, sequence=4096, micro_batch=2, context=way)
    found = float(np.asarray(context_s(shape_of(config), seconds_a_byte(1.0), policy, 0.0)))
    assert found == pytest.approx(sum(one.sent_bytes[0] for one in passes))


def test_among_others_each_policy_has_the_price_of_its_own_way():
    rates, shape = rates_of(machine_of(CLUSTER), Software()), shape_of(LLAMA)
    fields = {"cp": 8, "tp": 4, "sequence": 131_072}
    together = context_s(shape, rates, Policies(**fields, context=np.arange(3)), 0.0)
    alone = [float(np.asarray(context_s(shape, rates, Policies(**fields, context=way), 0.0))) for way in range(3)]
    assert together == pytest.approx(alone)
    assert len(set(alone)) == 3 and min(alone) > 0


def test_attention_hides_a_ring_but_not_an_all_gather():
    rates, shape = rates_of(machine_of(CLUSTER), Software()), shape_of(LLAMA)
    policies = Policies(cp=8, sequence=131_072, context=np.arange(3))
    bare, hidden = (context_s(shape, rates, policies, attention) for attention in (0.0, 1.0))
    assert hidden[0] == pytest.approx(rates.cp_exposed * bare[0])
    assert hidden[1:] == pytest.approx(bare[1:])


def test_over_nodes_every_way_is_dearer():
    """8 GPUs of one node, and of two: the same bytes."""
    rates, model = rates_of(machine_of(CLUSTER), Software()), shape_of(LLAMA)
    policies = Policies(cp=8, sequence=65_536, context=np.arange(3))
    inside, across = (context_s(model, replace(rates, domain=domain), policies, 0.0) for domain in (8, 4))
    assert (across > inside).all()


def test_with_few_kv_heads_ulysses_loses_its_lead():
    """Bytes alone, 8 ranks: 32 kv heads make keys and values as wide as queries, one makes them a 32nd."""
    many, few = (
        context_s(
            shape_of(replace(LLAMA, n_kv_heads=heads)),
            seconds_a_byte(1.0),
            Policies(cp=8, sequence=8192, context=np.arange(3)),
            0.0,
        )
        for heads in (32, 1)
    )
    assert many.argmin() == CONTEXTS.index("ulysses")
    assert few.argmin() == CONTEXTS.index("all_gather")


def test_a_shape_with_a_latent_vector_is_priced_as_its_heads():
    model: ModelConfig = load_model("deepseek_v2")
    rates = seconds_a_byte(1.0)
    one = context_s(shape_of(model), rates, Policies(cp=2, sequence=4096), 0.0)
    assert one == pytest.approx(4 * 2 * 2048 * 2 * model.query_size)
