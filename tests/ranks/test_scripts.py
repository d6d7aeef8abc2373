"""One script that grows, in stages, and others to take home: PyTorch alone, and right under torchrun."""

from __future__ import annotations

import ast
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import kept_torchrun
import pytest
import torch

from course_lib import viz
from course_lib.training.step import loss_of
from tools.paths import ROOT

SCRIPTS = sorted((ROOT / "notebooks/scripts").glob("*.py"))
COLLECTIVES = ROOT / "notebooks/scripts/02_collectives.py"
FINE_TUNING = ROOT / "notebooks/scripts/07_llama_or_olmo.py"  # it reads and writes models
EXPERTS = ROOT / "notebooks/scripts/09_experts.py"  # a layer of its own
TWO_CLUSTERS = ROOT / "notebooks/scripts/10_two_clusters.py"  # it does not equal one device, on purpose
ADAPTERS = ROOT / "notebooks/scripts/11_adapters.py"  # a model of its own, and so has the next one
CHECKPOINTS = ROOT / "notebooks/scripts/11_checkpoint_and_accumulate.py"
STANDS_STILL = ROOT / "notebooks/scripts/12_stands_still.py"  # it never ends
GOES_ON = ROOT / "notebooks/scripts/12b_goes_on.py"  # a job's endings
SPREADS = ROOT / "notebooks/scripts/12_spreads.py"  # ranks that wait for each other
BESIDE = (COLLECTIVES, FINE_TUNING, EXPERTS, TWO_CLUSTERS, ADAPTERS, CHECKPOINTS, STANDS_STILL, SPREADS, GOES_ON)
STAGES = [path for path in SCRIPTS if path not in BESIDE]
ALONE, *ON_RANKS, RESUMING, LONG_CONTEXTS = STAGES
LINES = {COLLECTIVES: 60, FINE_TUNING: 122}
FEW = 4  # of twenty steps, each of which costs DTensor's Python half a second on every rank
STEP = re.compile(r"step (\d+): loss ([\d.]+), gradients of length ([\d.]+)")


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.stem)
def script(request):
    return request.param


def test_the_stages_are_those_of_the_lessons():
    assert [path.name[:2] for path in STAGES] == ["01", "03", "04", "05", "06", "07", "08", "09"]


def test_a_script_is_short_and_has_a_main(script):
    text = script.read_text()
    assert len(text.splitlines()) <= LINES.get(script, 142)
    assert "main" in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    if script != COLLECTIVES:
        assert max(map(len, text.splitlines())) <= 107  # what fits into a window 1300 pixels wide


def test_a_script_needs_pytorch_alone_or_with_transformers(script):
    nodes = list(ast.walk(ast.parse(script.read_text())))
    found = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    theirs = {"torch", "transformers"} if script == FINE_TUNING else {"torch"}
    assert found - theirs <= sys.stdlib_module_names and theirs <= found


def test_a_line_of_comment_is_a_sentence(script):
    comments = [line.strip() for line in script.read_text().splitlines() if line.strip().startswith("#")]
    assert len(comments) >= 2
    assert [line for line in comments if not (line[2].isupper() and line.endswith("."))] == []


@pytest.mark.parametrize(("old", "new"), [*pairwise(STAGES)], ids=lambda path: path.stem)
def test_a_stage_is_at_most_forty_lines_from_the_one_before(old, new):
    assert 0 < int(viz.show_difference(old, new).place.rpartition(": ")[2]) <= 40


@pytest.fixture(scope="module")
def kept():
    """What gives so many ranks of a torchrun, in which scripts run one after another."""
    with kept_torchrun.kept(4, SCRIPTS) as ready:
        yield ready.first


def ran(ready, script, *args, cwd, **variables):
    """What it printed, and nothing on stderr."""
    with ready.started(script, *args, cwd=cwd, **variables) as run:
        statuses = run.wait(400)
        if None in statuses:  # it hangs, maybe once in hundreds of runs: do not let it go without a trace
            run.say_where()
    assert (set(statuses), (cwd / "err").read_text()) == ({0}, "")
    return (cwd / "out").read_text()


def steps_of(printed):
    """The number of each step, its loss and its gradients' length; every line has to be one of these."""
    return [[float(number) for number in STEP.fullmatch(line).groups()] for line in printed.splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(Path(runpy.__file__).read_text())
    return path


def alone(*args):
    run = subprocess.run([sys.executable, ALONE, *args], capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stderr) == (0, "")
    return steps_of(run.stdout)


@pytest.fixture(scope="module")
def steps(text):
    """What the stage for one device prints of this text."""
    found = alone(text)
    assert [step for step, _, _ in found] == list(range(1, 21)) and found[-1][1] < found[0][1] - 1
    return found


def same(steps):
    """Rounding may move the last of four digits by one or two."""
    return [pytest.approx(step, abs=2.01e-4) for step in steps]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_collectives_run_under_torchrun(kept, ranks, tmp_path):
    assert ran(kept(ranks), COLLECTIVES, cwd=tmp_path).startswith(f"{ranks} ranks agree")


def test_a_signal_to_one_rank_ends_all_after_a_step_and_the_next_start_goes_on(kept, tmp_path):
    whole, broken = (tmp_path / name for name in ("whole", "broken"))
    for folder in (whole, broken):
        folder.mkdir()
    ran(kept(2), GOES_ON, whole, cwd=whole)
    with kept(2).started(GOES_ON, broken, cwd=broken) as run:
        until = time.monotonic() + 100
        while "step 3" not in (broken / "out").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill([*run.pids.values()][1], signal.SIGUSR1)
        assert run.wait(100) == [0, 0]
    [step] = set(re.findall(r"leaves after step (\d+)", (broken / "out").read_text()))
    assert 3 < int(step) < 60
    again = ran(kept(2), GOES_ON, broken, cwd=broken)
    goes_on = re.findall(rf"goes on after step {step}(?!\d)", again)  # another rank may speak before the line's end
    assert len(goes_on) == 2 and again.count("leaves after step 60") == 2
    states = [torch.load(folder / "state.pt") for folder in (whole, broken)]
    assert states[0]["step"] == states[1]["step"] == 60
    assert all(torch.equal(states[0]["model"][name], value) for name, value in states[1]["model"].items())


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_on_ranks_are_one_device_s(kept, ranks, tmp_path):
    assert ran(kept(ranks), EXPERTS, cwd=tmp_path).startswith(f"{ranks} ranks agree")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("script", [ADAPTERS, CHECKPOINTS], ids=lambda path: path.stem)
def test_adapters_and_recomputed_layers_on_ranks_are_one_device_s(kept, script, ranks, tmp_path):
    assert ran(kept(ranks), script, cwd=tmp_path).startswith(f"{ranks} ranks agree")


@pytest.mark.parametrize(
    ("stage", "ranks"),
    [(stage, ranks) for stage in STAGES[1:] for ranks in (2, 4) if stage != RESUMING],  # which is killed below
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_stage_trains_as_one_device_does_and_no_thread_can_abort_its_end(kept, text, stage, ranks, steps, tmp_path):
    (tmp_path / stage.name).write_text(with_few_steps(stage.read_text()))
    assert steps_of(ran(kept(ranks), tmp_path / stage.name, text, cwd=tmp_path)) == same(steps[:FEW])


def with_few_steps(stage, steps=FEW):
    short = stage.replace("LENGTH, STEPS, RATE = 16, 4, 32, 20,", f"LENGTH, STEPS, RATE = 16, 4, 32, {steps},")
    assert short != stage
    return short


def test_without_a_text_all_read_the_same(kept, tmp_path):
    assert steps_of(ran(kept(2), ON_RANKS[0], cwd=tmp_path)) == same(alone())


@pytest.mark.parametrize("stage", ["03_ddp", "06_fsdp", "07_fsdp_tp"])
def test_a_batch_that_does_not_divide_says_so(kept, stage, tmp_path):
    text = next(path for path in STAGES if path.stem == stage).read_text()
    changed = text.replace("LENGTH, STEPS, RATE = 16, 4,", "LENGTH, STEPS, RATE = 18, 4,")
    assert changed != text
    (tmp_path / "changed.py").write_text(changed)
    with kept(4).started(tmp_path / "changed.py", cwd=tmp_path) as run:
        assert set(run.wait(100)) - {0, None}
    assert "AssertionError: all micro-batches are equally long" in (tmp_path / "err").read_text()


@pytest.mark.parametrize(
    ("stage", "ranks", "layers", "says"),
    [
        ("04_pipeline", 4, 3, "each stage has a block at least"),
        ("05_tensor_parallel", 3, 4, "each rank has whole heads"),
        ("07_fsdp_tp", 3, 4, "each group along tp is whole"),
        ("09_long_contexts", 3, 4, "each group along cp is whole"),
    ],
)
def test_ranks_that_cannot_share_the_model_say_so(kept, stage, ranks, layers, says, tmp_path):
    text = next(path for path in STAGES if path.stem == stage).read_text()
    (tmp_path / "changed.py").write_text(text.replace("BYTES = 64, 4, 4, 256", f"BYTES = 64, 4, {layers}, 256"))
    with kept(ranks).started(tmp_path / "changed.py", cwd=tmp_path) as run:
        assert set(run.wait(100)) - {0, None}
    assert f"AssertionError: {says}" in (tmp_path / "err").read_text()


def changed(stage, *edits):
    """A stage as a reader changes it, when a lesson says "your turn"."""
    text = next(path for path in STAGES if path.stem == stage).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


def test_gathered_scores_give_the_same_losses_as_lesson_05_says(kept, tmp_path, text, steps):
    gathered = changed(
        "05_tensor_parallel",
        ('{"output_layouts": Shard(-1), "use_local_output": False}', '{"output_layouts": Replicate()}'),
        ("with tp.loss_parallel():", "if True:"),
        ("loss.detach().to_local()", "loss.detach()"),
    )
    (tmp_path / "changed.py").write_text(with_few_steps(gathered))
    assert steps_of(ran(kept(2), tmp_path / "changed.py", text, cwd=tmp_path)) == same(steps[:FEW])


def test_models_drawn_from_other_seeds_are_seen_as_lesson_11_says(kept, tmp_path):
    text = ADAPTERS.read_text()
    (tmp_path / "changed.py").write_text(text.replace("torch.manual_seed(0)", "torch.manual_seed(rank)"))
    with kept(2).started(tmp_path / "changed.py", cwd=tmp_path) as run:
        assert set(run.wait(100)) - {0, None}
    assert "AssertionError: " in (tmp_path / "err").read_text()


def test_positions_in_order_give_the_same_losses_as_lesson_09_says(kept, tmp_path, text, steps):
    edits = ("chunk(2 * CP)", "chunk(CP)"), ("torch.cat((pieces[rank], pieces[-1 - rank]))", "pieces[rank]")
    in_order = changed(LONG_CONTEXTS.stem, *edits)
    (tmp_path / "changed.py").write_text(with_few_steps(in_order))
    assert steps_of(ran(kept(2), tmp_path / "changed.py", text, cwd=tmp_path)) == same(steps[:FEW])


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        (
            (('    cut(model.to(device), mesh["tp"])', "    model.to(device)\n    #"),)
            + (('    shard(model, mesh["dp"])', '    shard(model, mesh["dp"])\n    cut(model, mesh["tp"])'),),
            "only accepts torch.Tensor but got <class 'torch.distributed.tensor.DTensor'>",
        ),
        ((('(dp, TP), mesh_dim_names=("dp", "tp")', '(TP, dp), mesh_dim_names=("tp", "dp")'),), "in ascending order"),
    ],
    ids=["FSDP first", "tp as the outer axis"],
)
def test_pytorch_refuses_the_other_orders_as_lesson_07_says(kept, tmp_path, edits, says):
    (tmp_path / "changed.py").write_text(changed("07_fsdp_tp", *edits))
    with kept(4).started(tmp_path / "changed.py", cwd=tmp_path) as run:
        assert set(run.wait(100)) - {0, None}
    assert says in (tmp_path / "err").read_text()


def test_a_run_goes_on_bit_by_bit_where_it_was_killed_and_on_another_number_of_ranks(kept, tmp_path, text, steps):
    """Three steps are taken twice: the second shows what was restored of the optimizer, the third what that did."""
    first = killed(kept(4), RESUMING, text, cwd=tmp_path, lines=8)
    for later in (10, 15, 20):  # if they were fast
        shutil.rmtree(tmp_path / f"checkpoints/{later}", ignore_errors=True)
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "two/checkpoints")
    (tmp_path / "ends.py").write_text(with_few_steps(RESUMING.read_text(), 10))
    second = ran(kept(4), tmp_path / "ends.py", text, cwd=tmp_path).splitlines()
    assert second[:3] == first[5:] and len(second) == 5
    assert steps_of("\n".join(first[:5] + second)) == same(steps[:10])
    on_two = ran(kept(2), tmp_path / "ends.py", text, cwd=tmp_path / "two")
    assert steps_of(on_two) == same(steps[5:10])


def small_llama(folder):
    """Its weights are large enough for the loss to tell them from others; head and embedding are one."""
    import transformers

    shape = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "tie_word_embeddings": True, "initializer_range": 0.2}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.LlamaConfig(**shape, **heads, **ends, vocab_size=256)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def on_one_device(folder, text):
    """The same training by transformers alone, in float32: losses, and weights."""
    from transformers import AutoModelForCausalLM

    of = SimpleNamespace(**runpy.run_path(str(FINE_TUNING)))
    model, tokens = AutoModelForCausalLM.from_pretrained(folder), torch.tensor([*text.read_bytes()])
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=of.RATE, weight_decay=0.1), []
    for step in range(of.STEPS):
        starts = torch.randint(len(tokens) - of.LENGTH, (of.BATCH,), generator=torch.Generator().manual_seed(step))
        rows = torch.stack([tokens[start : start + of.LENGTH + 1] for start in starts])
        loss = loss_of(model(rows[:, :-1]).logits, rows[:, 1:]) / rows[:, 1:].numel()
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        cosine = (1 + math.cos(math.pi * step / of.STEPS)) / 2
        optimizer.param_groups[0]["lr"] = of.RATE * min((step + 1) / of.WARM_UP, cosine)
        optimizer.step()
        optimizer.zero_grad()
    return losses, model.state_dict()


def killed(ready, script, *args, cwd, lines):
    """So many lines that it printed; then all its processes are killed."""
    with ready.started(script, *args, cwd=cwd) as run:
        while len(found := (cwd / "out").read_text().splitlines()) < lines:
            assert set(run.wait(0.01)) == {None}, (cwd / "err").read_text()
    assert set(run.statuses.values()) == {-signal.SIGKILL}
    return found[:lines]


def test_fine_tuning_is_one_device_s_and_goes_on_bit_by_bit_where_it_was_killed(kept, tmp_path):
    from transformers import AutoModelForCausalLM

    text, (four, two) = tmp_path / "text", (tmp_path / str(ranks) for ranks in (4, 2))
    text.write_text(Path(runpy.__file__).read_text())
    small_llama(tmp_path / "llama")
    losses, weights = on_one_device(tmp_path / "llama", text)
    for folder in (four, two):
        folder.mkdir()
    first = killed(kept(4), FINE_TUNING, tmp_path / "llama", text, cwd=four, lines=5)
    shutil.rmtree(four / "checkpoints/6", ignore_errors=True)  # if they were fast
    second = ran(kept(4), FINE_TUNING, tmp_path / "llama", text, cwd=four).splitlines()
    assert second[:2] == first[3:]
    for lines in (first[:3] + second, ran(kept(2), FINE_TUNING, tmp_path / "llama", text, cwd=two).splitlines()):
        found = [float(re.match(r"step \d+: loss ([\d.]+), norm", line)[1]) for line in lines]
        assert found == pytest.approx(losses, rel=0.01)  # they compute in bfloat16
    for folder in (four, two):
        trained = AutoModelForCausalLM.from_pretrained(folder / "trained").state_dict()
        assert trained.keys() == weights.keys()
        assert all(torch.allclose(trained[name], x, atol=0.01) for name, x in weights.items())
