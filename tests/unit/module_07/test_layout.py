"""The table that says where every tensor lies: cutting, putting together, counting, and the cost formulas' table."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import prod

import pytest
import torch
from torch import nn

from course_lib.config import ModelConfig, ParallelConfig, load_model, model_names
from course_lib.costs.model.conventions import CONVENTIONS
from course_lib.costs.model.states import rank_parameters, state_bytes
from course_lib.costs.model.units import decoder_units
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.stages import cut, layers_of
from course_lib.parallel.sharding.wrapping import by_block, by_block_group
from course_lib.parallel.table.layout import Layout, coordinates, parameters_at
from course_lib.parallel.table.placement import Flat, Partial, Place, Replicate, Shard, Stretch, boxes_of
from course_lib.parallel.tensors.cutting import write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.styles import styles_of
from course_lib.schedules import make_schedule
from course_lib.split import split_sizes
from course_lib.training.sharding import write_rows
from course_lib.training.techniques import write_owners
from course_lib.viz import plot_layout
from tests.unit.test_viz_pictures import drawn_texts, flaws

SIZES = {"pp": 2, "dp": 3, "tp": 2}
FEW_KV_HEADS = ModelConfig(
    name="few kv heads",
    hidden_size=64,
    n_layers=2,
    n_heads=16,
    n_kv_heads=2,
    ffn_size=48,
    vocab_size=50,
    tied=True,
    biases=("qkv", "attention_output", "ffn"),
)


class Toy(nn.Module):
    """A matrix, a bias, a tied matrix, a scalar and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 5, bias=False)
        self.third = nn.Linear(5, 7, bias=False)
        self.third.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("noise", torch.ones(4))
        self.second.weight.requires_grad_(False)


def layout():
    """Rows and columns over tp, a flat row over dp, owners on pp."""
    table = Layout(Toy(), SIZES)
    row = Flat(axis="dp", row="all")  # of 27 numbers at tp 0, of 22 at tp 1
    table.write("first.weight", shard={"tp": Shard(0)}, owners=(1,))
    table.write("second.weight", shard={"tp": Shard(1)}, flat=row)
    table.write("first.bias", flat=row, partial=frozenset({"pp"}), owners=(0, 1))
    return table


def test_one_device_holds_everything():
    table = Layout(Toy(), {})
    assert table.parameters == ("scale", "first.weight", "first.bias", "second.weight")
    assert tuple(table.places) == (*table.parameters, "noise")
    assert table.first_name["third.weight"] == "first.weight"
    assert "second.weight" not in table.trained and "noise" not in table.trained and "scale" in table.trained
    assert all(place.counts({}) and not place.cut_along for place in table.places.values())
    assert {table.describe(name) for name in table.places} == {"on the one rank"}


@pytest.mark.parametrize("name", ["first.weight", "second.weight", "first.bias", "scale", "noise"])
def test_parts_are_put_together_again(name):
    table = layout()
    whole = torch.randn(table.places[name].shape)
    parts = {tuple(at.values()): table.part(name, whole, at) for at in coordinates(SIZES)}
    assert all(
        parts[tuple(at.values())].numel() == table.size_at(name, at) or not table.places[name].is_held(at)
        for at in coordinates(SIZES)
    )
    for at in coordinates(SIZES):
        joined = table.joined(name, lambda other: parts[tuple(other.values())], at)
        assert torch.equal(joined, whole)


def test_every_number_is_counted_once():
    table = layout()
    for name, place in table.places.items():
        counted = sum(table.size_at(name, at) for at in coordinates(SIZES) if place.counts(at))
        assert counted == prod(place.shape)


def test_along_the_cutting_axes_alone_each_replica_counts_once():
    table = layout()
    axes = table.cutting_axes
    assert axes == {"pp", "dp", "tp"}
    table.write("second.weight", flat=None)
    table.write("first.bias", flat=None)
    assert table.cutting_axes == {"pp", "tp"}
    for dp, (name, place) in product(range(3), table.places.items()):
        mine = [at for at in coordinates(SIZES) if at["dp"] == dp and place.counts(at, table.cutting_axes)]
        assert sum(table.size_at(name, at) for at in mine) == prod(place.shape)


def test_pieces_follow_tensor_split_and_may_be_empty():
    flat, stretch = Flat(axis="dp", row="all"), Stretch(start=30, length=7, total=40)
    whole = torch.arange(40)
    for size in (1, 2, 3, 7, 41):
        for rank, piece in enumerate(whole.tensor_split(size)):
            found = whole[30:37][flat.piece(stretch, rank, size)]
            assert torch.equal(found, piece[(piece >= 30) & (piece < 37)])


def test_chunks_follow_torch_and_runs_of_neighbours_have_copies():
    for length, parts in product((1, 2, 5, 6, 7, 8), (1, 2, 3, 4)):
        whole, shard = torch.arange(length), Shard(0, parts=parts, chunked=True)
        chunks = [*whole.chunk(parts), *[whole[:0]] * parts][:parts]
        for rank in range(2 * parts):
            assert torch.equal(whole[slice(*shard.span(length, rank, 2 * parts))], chunks[rank % parts])
    table = Layout(Toy(), {"dp": 6})
    table.write("first.weight", shard={"dp": Shard(0, parts=3, chunked=True)})
    assert table.describe("first.weight") == "dp: Shard(dim=0, parts=3, chunked)"
    whole, place = torch.randn(7, 5), table.places["first.weight"]
    parts = [table.part("first.weight", whole, {"dp": rank}) for rank in range(6)]
    assert [len(part) for part in parts] == [3, 3, 1] * 2 and [place.counts({"dp": n}) for n in (2, 3)] == [True, False]
    assert torch.equal(table.joined("first.weight", lambda at: parts[at["dp"]], {"dp": 4}), whole)


def test_a_stretch_of_numbers_is_a_few_boxes_in_its_order():
    for shape in ((), (7,), (4, 5), (3, 1, 4), (2, 3, 2, 2)):
        whole = torch.arange(prod(shape)).view(shape)
        for first, last in product(range(prod(shape) + 1), repeat=2):
            boxes = boxes_of(shape, first, last)
            assert len(boxes) <= max(2 * len(shape) - 1, 1)
            parts = [whole[tuple(map(slice, o, map(sum, zip(o, s, strict=True))))].flatten() for o, s in boxes]
            assert torch.cat([whole.flatten()[:0], *parts]).tolist() == [*range(first, last)]


def test_boxes_say_where_a_rank_s_part_lies():
    table = layout()
    for name, place in table.places.items():
        whole = torch.randn(place.shape)
        for at in coordinates(SIZES):
            part = table.part(name, whole, at).flatten()
            for offsets, sizes in table.boxes(name, at) if place.is_held(at) else []:
                box = whole[tuple(map(slice, offsets, map(sum, zip(offsets, sizes, strict=True))))]
                mine, part = part[: box.numel()], part[box.numel() :]
                assert torch.equal(box.flatten(), mine) and box.shape == sizes
            assert not place.is_held(at) or not len(part)


def test_a_missing_part_makes_the_whole_missing_unless_it_is_empty():
    table = layout()
    at = {"pp": 0, "dp": 0, "tp": 0}
    assert table.joined("scale", lambda other: None, at) is None
    assert table.joined("first.weight", lambda other: torch.ones(4, 5) if other["tp"] == 0 else None, at) is None
    table.write("first.bias", owners=None, partial=frozenset())
    # 27 numbers over 3 ranks are 9 each, and the bias comes first in the row: the first rank has all seven
    whole = table.joined("first.bias", lambda other: torch.ones(7) if other["dp"] == 0 else None, at)
    assert torch.equal(whole, torch.ones(7))


def test_an_optimizer_s_counter_is_no_part():
    table = layout()
    step = torch.tensor(3.0)
    assert table.part("first.weight", step, {"pp": 0, "dp": 0, "tp": 1}) is step
    assert torch.equal(table.joined("first.weight", lambda at: step, {"pp": 0, "dp": 0, "tp": 1}), step)


def test_it_prints_as_a_table():
    lines = {line.split()[0]: line for line in str(layout()).splitlines()}
    assert lines["first.weight"].endswith("7x5  pp: rank 1; dp: Replicate(); tp: Shard(dim=0)")
    assert lines["second.weight"].endswith("5x7  pp: Replicate(); dp: all[7:] of 27; tp: Shard(dim=1)")
    assert "pp: ranks 0, 1, gradient Partial(); dp: all[0:] of 27; tp: Replicate()" in lines["first.bias"]
    assert "number" in lines["scale"]
    assert (str(Shard(1)), str(Replicate()), str(Partial())) == ("Shard(dim=1)", "Replicate()", "Partial()")


def test_its_picture_has_every_rank_s_part():
    regions, places = layout().regions(), list(coordinates(SIZES))
    assert regions["first.weight"][:6] == [[]] * 6  # owned by pp 1
    assert regions["first.weight"][6:8] == [[(0, 4 / 7, 0, 1)], [(4 / 7, 1, 0, 1)]]
    shapes = layout().shapes()
    for name, parts in regions.items():
        area = [sum((last - first) * (end - start) for first, last, start, end in part) for part in parts]
        assert area == pytest.approx([layout().size_at(name, at) / prod(shapes[name]) for at in places])
    picture = plot_layout({name: parts[:8] for name, parts in regions.items()}, shapes, places[:8])
    assert (
        "first.weight (7 × 5): rank 0 nothing" in picture.description
        and "rank 7 rows 57% to 100%" in picture.description
    )
    assert "ranks: 0 (pp 0 dp 0 tp 0)" in picture.description and "</svg>" in picture.svg
    badges = [patch for patch in picture.figure.axes[0].patches if patch.get_zorder() == 4]
    sides = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in badges]
    assert len(sides) == 8 and all(end + 0.05 < start for (_, end), (start, _) in pairwise(sides))
    assert list(flaws(picture.figure)) == []
    with pytest.raises(ValueError, match="plot_layout: 25 tensors; this picture holds 24; give some of the regions"):
        plot_layout({str(number): parts[:8] for number in range(25)}, shapes, places[:8])


def test_a_small_picture_shows_every_number():
    """Of twelve numbers in the lower rows, the last five: a row without its first, and no rounded band."""
    table = Layout(nn.Linear(6, 4), {"dp": 2, "tp": 2})
    for name in ("weight", "bias"):
        table.write(name, shard={"tp": Shard(0)}, flat=Flat(axis="dp", row="all"))
    places = list(coordinates(table.sizes))
    assert table.regions()["weight"][3] == [(3 / 4, 1, 1 / 6, 1)]
    for rows, ends in ((4, "a square is a number"), (40, "boxes are not to scale")):
        picture = plot_layout(table.regions(), {**table.shapes(), "weight": (rows, 6)}, places)
        assert list(flaws(picture.figure)) == []
        assert any(text.endswith(ends) for text, _, _ in drawn_texts(picture.figure))


def test_a_place_is_a_value():
    assert Place(shape=(2,)) == Place(shape=(2,)) and replace(Place(shape=(2,)), owners=(0,)).cut_along == {"pp"}


def is_ours(name):
    """Whether the course's decoder has such layers: one block, two norms, queries and keys as they come."""
    config = load_model(name)
    return (config.n_experts, config.norms_per_layer, config.qk_norm) == (1, 2, "none")


@pytest.mark.parametrize(
    "config", [*(load_model(name) for name in model_names() if is_ours(name)), FEW_KV_HEADS], ids=lambda c: c.name
)
def test_tensor_parallelism_leaves_the_fullest_rank_what_the_formulas_table_says(config):
    """Where kv heads are fewer than ranks each lies on several: in the last case, and of most others at tp 16."""
    config = replace(config, n_layers=1)  # all layers are alike
    for tp in (1, 2, 4, 8, 16):
        with torch.device("meta"):
            model = Decoder(config)
        table = Layout(model, {"tp": tp})
        if legal(config, tp):
            write_table(model, table, styles_of(model, plan_for(model)))
            want = rank_parameters(config, ParallelConfig(tp=tp)).total
            assert max(parameters_at(table, at) for at in coordinates(table.sizes)) == want
        else:
            with pytest.raises(ValueError, match="^tensor: .*choose tp in"):
                write_table(model, table, styles_of(model, plan_for(model)))


def legal(config, tp):
    try:
        ParallelConfig(tp=tp).check(config)
    except ValueError:
        return False
    return True


def decoder(name):
    """A published shape without memory, with few enough layers to build quickly."""
    config = load_model(name)
    with torch.device("meta"):
        return config, Decoder(config)


@pytest.mark.parametrize("name", [name for name in model_names() if is_ours(name)])
def test_the_formulas_table_has_as_many_parameters_on_every_rank(name):
    """`costs` says by formula what a rank of a pipeline holds; the layout says it of the real model's tensors."""
    config, model = decoder(name)
    layers = len(layers_of(model))
    degrees = [pp for pp in (1, 2, 4, 8) if config.n_layers % pp == 0 and pp <= config.n_layers]
    for pp, dp in product(degrees, (1, 2)):
        table = Layout(model, {"pp": pp, "dp": dp})
        sizes = [config.n_layers // pp] * pp
        sizes[0] += 1
        sizes[-1] += 1
        assert sum(sizes) == layers
        write_owners(table, cut(model, sizes), make_schedule("1f1b", pp, pp))
        for stage, share in product(range(pp), range(dp)):
            want = rank_parameters(config, ParallelConfig(pp=pp, dp=dp), stage=stage).total
            assert parameters_at(table, {"pp": stage, "dp": share}) == want


POLICIES = {("by_block", None): by_block, ("by_block_group", 3): by_block_group(3)}


@pytest.mark.parametrize("wrapping", POLICIES, ids=str)
@pytest.mark.parametrize("name", ["llama3_1_8b", "gpt3_small", "olmo_1b"])
def test_sharding_leaves_every_rank_what_the_formula_says(name, wrapping):
    """By rank, exactly. Each unit's row is cut by itself, so that the first ranks may have a number more of each."""
    config, model = decoder(name)
    rows = [unit.numbers(trained=True) for unit in decoder_units(config, *wrapping)]
    for dp, parts in [(1, 1), (3, 3), (8, 8), (8, 4), (64, 64)]:
        table = Layout(model, {"dp": dp})
        write_rows(table, model, POLICIES[wrapping], parts=parts)
        sizes = [split_sizes(numbers, parts) for numbers in rows]
        for rank in range(dp):
            held = parameters_at(table, {"dp": rank})
            assert held == sum(of_row[rank % parts] for of_row in sizes)
            even = state_bytes(sum(rows), CONVENTIONS["zero"], zero_stage=3, shards=parts, rank=rank % parts)
            assert abs(held - even.weights // CONVENTIONS["zero"].weights) <= len(rows)


def test_frozen_weights_are_cut_unless_weights_stay_whole():
    model = Toy()
    for resident in (False, True):
        table = Layout(model, {"dp": 3})
        write_rows(table, model, by_block, parts=3, resident=resident)
        assert (table.places["second.weight"].flat is None) == resident
        assert table.places["noise"].flat is None and table.places["scale"].flat is not None


@pytest.mark.parametrize(("tp", "dp"), [(2, 64), (8, 3), (16, 8)])  # 16 ranks share 8 heads of keys and values
def test_two_axes_leave_every_rank_what_the_formula_says(tp, dp):
    (config, model), (_, whole) = decoder("llama3_1_8b"), decoder("llama3_1_8b")
    table = Layout(model, {"dp": dp, "tp": tp})
    write_table(model, table, styles_of(model, plan_for(model)))
    write_rows(table, whole, by_block, parts=dp)
    rows = [split_sizes(unit.numbers(trained=True), dp) for unit in decoder_units(config, tp=tp)]
    for at in ({"dp": dp - 1, "tp": 0}, {"dp": 0, "tp": tp - 1}):
        assert parameters_at(table, at) == sum(row[at["dp"]] for row in rows)
    total = sum(map(sum, rows))
    assert total == rank_parameters(config, ParallelConfig(tp=tp)).total


def test_what_is_cut_unevenly_has_a_row_of_its_own():
    """The others then begin at the same place on all ranks along tp."""
    model = Toy()
    table = Layout(model, {"dp": 3, "tp": 2})
    table.write("first.weight", shard={"tp": Shard(0)})  # 4 and 3 rows
    table.write("first.bias", shard={"tp": Shard(0)})
    write_rows(table, Toy(), by_block, parts=3)
    assert table.uneven == {"first.weight", "first.bias"}
    assert (table.places["scale"].flat.row, table.places["first.weight"].flat.row) == ("root", "root'")
    whole = torch.randn(7, 5)
    parts = {tuple(at.values()): table.part("first.weight", whole, at) for at in coordinates(table.sizes)}
    for at in coordinates(table.sizes):
        assert torch.equal(table.joined("first.weight", lambda other: parts[tuple(other.values())], at), whole)
