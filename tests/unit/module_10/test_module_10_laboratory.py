"""What stays exact when equality is given up, on workers that are rows of one tensor; and what the rows learn."""

from __future__ import annotations

import math

import pytest
import torch

from course_lib import less
from course_lib.less.methods import Memory
from course_lib.less.quadratics import GROWTH
from course_lib.less.workers import SHAPES, SIZE

TOP = less.top_k(0.06)
LOSSY = [
    less.alone(TOP),
    less.error_feedback(TOP),
    less.ef21(TOP),
    less.double_squeeze(TOP),
    less.neolithic(TOP, 2),
    less.alone(less.qsgd(4, 16)),
    less.error_feedback(less.sign()),
    less.error_feedback(less.rand_k(0.06, scaled=False)),
]


def whole_numbers(steps, workers=8, size=50):
    """Gradients whose sums over workers and steps float64 holds exactly."""
    draws = torch.Generator().manual_seed(0)
    return torch.randint(-1000, 1000, (steps, workers, size), generator=draws).double()


def memory(size=50):
    return Memory(shapes=[(size,)])


@pytest.mark.parametrize("compressor", [TOP, less.rand_k(0.06, scaled=False)], ids=str)
def test_all_that_was_sent_and_what_is_left_are_all_gradients_to_the_bit(compressor):
    gradients, kept = whole_numbers(200), memory()
    agreed = [less.error_feedback(compressor).agree(gradient, kept) for gradient in gradients]
    residual = kept.kept["residual"]
    assert (residual != 0).any()
    assert torch.equal(torch.stack(agreed).sum(0) + residual.mean(0), gradients.sum(0).mean(0))


def test_both_ends_of_double_squeeze_keep_all_that_they_do_not_send():
    gradients, kept = whole_numbers(200), memory()
    agreed = [less.double_squeeze(TOP).agree(gradient, kept) for gradient in gradients]
    left = kept.kept["residual"].mean(0) + kept.kept["served"]
    assert (kept.kept["served"] != 0).any()
    assert torch.equal(torch.stack(agreed).sum(0) + left, gradients.sum(0).mean(0))


@pytest.mark.parametrize("method", LOSSY, ids=str)
def test_a_method_stopped_and_resumed_goes_on_to_the_bit(method):
    gradients, through, stopped = whole_numbers(6), memory(), memory()
    straight = [method.agree(gradient, through) for gradient in gradients]
    for gradient in gradients[:3]:
        method.agree(gradient, stopped)
    draws = torch.Generator()
    draws.set_state(stopped.draws.get_state())
    again = Memory(shapes=[(50,)], kept={name: x.clone() for name, x in stopped.kept.items()}, draws=draws)
    resumed = [method.agree(gradient, again) for gradient in gradients[3:]]
    assert all(torch.equal(a, b) for a, b in zip(straight[3:], resumed, strict=True))


@pytest.mark.parametrize("method", LOSSY, ids=str)
def test_methods_lose_something_and_none_if_all_is_sent(method):
    gradient = whole_numbers(1)[0]
    assert not torch.allclose(method.agree(gradient, memory()), gradient.mean(0))


@pytest.mark.parametrize("make", [less.alone, less.error_feedback, less.double_squeeze])
def test_top_k_of_all_numbers_is_psgd_to_the_bit(make):
    lossy = less.descend(less.Workers(seeds=2), make(less.top_k(1)), gradients=20)
    assert lossy.losses == less.descend(less.Workers(seeds=2), less.psgd(), gradients=20).losses
    assert lossy.losses[-1] != lossy.losses[0]


def test_ef21_s_model_of_a_gradient_that_is_wholly_sent_is_the_gradient():
    gradients, kept = whole_numbers(5), memory()
    for gradient in gradients:
        assert torch.equal(less.ef21(less.top_k(1)).agree(gradient, kept), gradient.mean(0))


def test_rounds_leave_a_share_of_what_was_left_and_send_all_in_the_end():
    x, draws = whole_numbers(1)[0], torch.Generator()
    left = [((x - less.in_rounds(less.top_k(0.1), x, rounds, draws)) ** 2).sum() for rounds in range(11)]
    assert all(later <= (1 - 0.1) * before for before, later in zip(left[:-1], left[1:], strict=True))
    assert left[9] > 0
    assert left[10] == 0


@pytest.mark.parametrize(("how", "kept"), [("merged", True), ("first", False), ("none", False)])
def test_from_8_workers_to_4_the_mean_of_the_memories_loses_nothing(how, kept):
    before, after, memory_8, memory_4 = whole_numbers(50), whole_numbers(50, workers=4), memory(), memory()
    agreed = [less.error_feedback(TOP).agree(gradient, memory_8) for gradient in before]
    residual = memory_8.kept["residual"]
    memory_4.kept["residual"] = {
        "merged": less.merged(residual, 4),
        "first": residual[:4].clone(),
        "none": torch.zeros_like(residual[:4]),
    }[how]
    agreed += [less.error_feedback(TOP).agree(gradient, memory_4) for gradient in after]
    total = torch.stack(agreed).sum(0) + memory_4.kept["residual"].mean(0)
    gradients = before.mean(1).sum(0) + after.mean(1).sum(0)
    assert torch.allclose(total, gradients, atol=1e-9) == kept


def test_power_sgd_of_full_rank_loses_nothing_and_of_rank_1_keeps_the_rest():
    shapes = [(4, 6), (6,)]
    gradients = whole_numbers(5, size=30)
    full = less.power_sgd(4).agree(gradients[0], Memory(shapes=shapes))
    assert torch.allclose(full, gradients[0].mean(0), atol=1e-9)
    kept = Memory(shapes=shapes)
    agreed = torch.stack([less.power_sgd(1).agree(gradient, kept) for gradient in gradients])
    assert torch.equal(agreed[:, 24:], gradients[:, :, 24:].mean(1))
    residual = kept.kept["residual"].mean(0)
    assert residual[:24].norm() > 1
    assert torch.allclose(agreed.sum(0) + residual, gradients.mean(1).sum(0), atol=1e-9)


def test_one_call_gives_each_worker_s_gradient_on_its_own_points():
    workers = less.Workers(seeds=2, workers=3, batch=5)
    inputs, labels = less.Workers(seeds=2, workers=3, batch=5)._batches()
    rows = workers.gradients(workers.start)
    assert rows.shape == (2, 3, SIZE)
    first, bias, second, last = (
        x.view(shape).requires_grad_()
        for x, shape in zip(workers.start[1].split([math.prod(s) for s in SHAPES]), SHAPES, strict=True)
    )
    scores = torch.relu(inputs[1, 2] @ first + bias) @ second + last
    torch.nn.functional.cross_entropy(scores, labels[1, 2]).backward()
    alone = torch.cat([x.grad.flatten() for x in (first, bias, second, last)])
    assert torch.allclose(rows[1, 2], alone, atol=1e-6)
    assert not torch.allclose(rows[1, 1], alone, atol=1e-2)


@pytest.mark.parametrize("rate", [0.05, 0.001])
def test_three_quadratics_grow_under_top_1_and_only_under_it(rate):
    top_1 = less.top_k(0.3)
    grown = less.three_quadratics(less.alone(top_1), rate=rate, steps=50)
    growth = [after / before for before, after in zip(grown[:-1], grown[1:], strict=True)]
    assert growth == pytest.approx([(1 + GROWTH * rate) ** 2] * 50)
    for method in (less.psgd(), less.error_feedback(top_1), less.ef21(top_1)):
        assert less.three_quadratics(method, rate=rate, steps=200)[-1] < grown[0]


def test_local_after_every_step_is_psgd_and_gossip_with_all_is_too():
    plain = less.descend(less.Workers(seeds=2), less.psgd(), gradients=20, momentum=0.0, rate=0.5)
    for averaged in (
        less.local(less.Workers(seeds=2), 1, steps=20, rate=0.5),
        less.gossip(less.Workers(seeds=2), "complete", steps=20, rate=0.5),
    ):
        assert averaged.bytes_a_step > 0
        for one, other in zip(averaged.losses, plain.losses, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    rarely = less.local(less.Workers(seeds=2, sorted_by_label=True), 10, steps=20, rate=0.5)
    often = less.local(less.Workers(seeds=2, sorted_by_label=True), 1, steps=20, rate=0.5)
    assert rarely.loss > often.loss
    assert rarely.bytes_a_step == pytest.approx(often.bytes_a_step / 10)


def test_tracking_finds_the_optimum_that_gossip_alone_misses():
    plain, tracked = (
        less.gossip(less.Bowls(workers=8), "ring", track=track, steps=1500, rate=0.05, decays=False)
        for track in (False, True)
    )
    assert plain.loss > 1e-4
    assert tracked.loss < 1e-20
    assert tracked.bytes_a_step == 2 * plain.bytes_a_step == 2 * 2 * 10 * 8


def test_a_small_gap_leaves_models_apart_and_a_cycle_s_gap_says_less_than_it_seems():
    """Workers pull in their own directions in every step, so what counts is how much one step brings together."""
    apart = {
        topology: less.gossip(less.Bowls(), topology, steps=400, rate=0.05, decays=False).settled_apart
        for topology in less.TOPOLOGIES
    }
    assert apart["ring"] > 4 * apart["grid"] > 8 * apart["torus"] > 8 * apart["static_exponential"] > 0
    assert apart["complete"] < 1e-20
    assert less.spectral_gap(*less.mixing("one_peer_exponential", 16)) > less.spectral_gap(*less.mixing("torus", 16))
    assert apart["one_peer_exponential"] > apart["torus"]


def test_with_equal_curvatures_the_mean_of_gossip_is_psgd_s_on_every_topology():
    def last(topology):
        bowls = less.Bowls(workers=8, noise=1.0)
        bowls.curvatures = torch.ones_like(bowls.curvatures)
        return less.gossip(bowls, topology, steps=100, rate=0.1).model

    for topology in ("ring", "torus", "one_peer_exponential"):
        assert torch.allclose(last(topology), last("complete"), atol=1e-13)


def test_opinions_keep_their_mean_and_one_peer_makes_them_one():
    first = [float(rank) for rank in range(16)]
    for topology in ("ring", "one_peer_exponential"):
        seen = less.opinions(topology, first, 4)
        spreads = [less.disagreement(held) for held in seen]
        assert seen[0] == first
        assert [sum(held) for held in seen] == pytest.approx([sum(first)] * 5)
        assert spreads == sorted(spreads, reverse=True)
        assert (spreads[-1] == 0) == (topology == "one_peer_exponential")


def test_workers_that_meet_seldom_end_elsewhere():
    off = {every: less.drift(every, steps=192).off for every in (1, 8, 64)}
    assert off[1] < 1e-3 < off[8] < off[64]
    assert len(less.drift(64, steps=192).means) == 4


@pytest.mark.parametrize("staleness", [0, 1, 2, 8])
def test_a_stale_gradient_converges_just_below_the_limit_and_not_above(staleness):
    limit = less.largest_rate(staleness)
    below, above = (less.stale_quadratic(staleness, rate=share * limit, steps=2000) for share in (0.95, 1.05))
    assert abs(below[-1]) < 0.01
    assert max(map(abs, above[-50:])) > 10


def test_fresh_gradients_are_psgd_s_and_stale_ones_learn_less_at_a_large_rate():
    fresh, old = (less.stale(less.Workers(seeds=2), staleness, steps=40, rate=1.0) for staleness in (0, 16))
    plain = less.descend(less.Workers(seeds=2), less.psgd(), gradients=40, momentum=0.0)
    assert fresh.losses == plain.losses
    assert old.loss > fresh.loss + 0.05


def test_a_staleness_of_two_has_the_golden_ratio_as_its_limit_and_none_is_descent():
    assert less.largest_rate(2) == pytest.approx((5**0.5 - 1) / 2)
    assert less.stale_quadratic(0, rate=0.1, steps=20)[-1] == pytest.approx(0.9**20)


@pytest.mark.parametrize("rule", less.RULES)
def test_equal_workers_are_believed_by_every_rule(rule):
    one = torch.randint(-1000, 1000, (2, 1, 50), generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(less.aggregate(rule, one.expand(-1, 10, -1), 2), one[:, 0])


def test_one_liar_pulls_the_mean_alone():
    votes = torch.tensor([[1.0], [1.1], [0.9], [1.05], [-100.0]], dtype=torch.float64)
    found = {rule: less.aggregate(rule, votes, 1).item() for rule in less.RULES}
    assert found == pytest.approx({"mean": -19.19, "median": 1.0, "trimmed mean": 2.95 / 3, "krum": 1.05})


def test_krum_without_a_liar_costs_more_than_the_mean_when_data_differ():
    mean, krum = (
        less.attacked(less.Workers(seeds=1, workers=10, sorted_by_label=True), rule, steps=60)
        for rule in ("mean", "krum")
    )
    assert krum.loss > 2 * mean.loss


def test_a_little_is_enough_for_the_median():
    quiet, lied = (
        less.attacked(less.Workers(seeds=1, workers=10), "median", attack, steps=60)
        for attack in ("", "a little is enough")
    )
    assert lied.loss > 1.5 * quiet.loss


def test_the_number_that_is_followed_is_sent_when_enough_has_gathered():
    gradients = torch.ones(12, 4, dtype=torch.float64) * torch.tensor([4.5, 1.0, 0.0, 0.0])
    followed = less.follow_number(less.top_k(0.25), gradients, place=1)
    assert followed.gradients == [1.0] * 12
    assert followed.sent == [0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0]
    assert [sum(followed.sent[: t + 1]) + kept for t, kept in enumerate(followed.kept)] == list(range(1, 13))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: less.Workers(workers=0), "Workers: .*workers=0.*; give at least one"),
        (lambda: less.Bowls(size=0), "Bowls: .*size=0.*; give at least one"),
        (lambda: less.neolithic(TOP, 0), "neolithic: rounds=0; .*; choose rounds >= 1"),
        (lambda: less.power_sgd(0), "power_sgd: rank=0; .*; choose rank >= 1"),
        (lambda: less.ef21(TOP, 1.0), "ef21: momentum=1.0; .*; choose 0 <= momentum < 1"),
        (lambda: less.local(less.Bowls(), 0), "local: every=0; .*; choose every >= 1"),
        (lambda: less.drift(8, steps=12), "drift: every=8, steps=12; .*; choose steps as a multiple"),
        (
            lambda: less.aggregate("mode", torch.zeros(5, 2), 1),
            "aggregate: rule='mode'; .*; choose one of mean, median",
        ),
        (
            lambda: less.aggregate("krum", torch.zeros(6, 2), 2),
            "6 workers, liars=2; .*; give liars >= 0 and at least 7 workers",
        ),
        (lambda: less.attacked(less.Bowls(), "mean", "bribe"), "attack='bribe'; .*; choose one of sign flip"),
    ],
)
def test_what_cannot_be_says_what_can(make, message):
    with pytest.raises(ValueError, match=message):
        make()
