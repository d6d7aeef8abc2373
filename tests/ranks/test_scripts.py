"""Take-home scripts: PyTorch alone, short enough to read at a stretch, and right under torchrun."""

from __future__ import annotations

import ast
import math
import re
import runpy
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import kept_torchrun
import pytest
import torch
import torchrun

from course_lib.training.step import loss_of
from tools.paths import ROOT

SCRIPTS = sorted((ROOT / "notebooks/scripts").glob("*.py"))
FINE_TUNING = ROOT / "notebooks/scripts/07_fsdp_tp.py"  # to be kept and changed; it reads and writes models
DDP = ROOT / "notebooks/scripts/03_ddp.py"
LINES = {FINE_TUNING: 107}


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.stem)
def script(request):
    return request.param


def test_there_are_scripts():
    assert SCRIPTS


def test_a_script_is_short_and_has_a_main(script):
    text = script.read_text()
    assert len(text.splitlines()) <= LINES.get(script, 60)
    assert "main" in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_a_script_needs_pytorch_alone_or_with_transformers(script):
    nodes = list(ast.walk(ast.parse(script.read_text())))
    found = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    theirs = {"torch", "transformers"} if script == FINE_TUNING else {"torch"}
    assert found - theirs <= sys.stdlib_module_names and theirs <= found


def test_each_block_has_one_comment_that_is_a_sentence(script):
    comments = [line.strip() for line in script.read_text().splitlines() if line.strip().startswith("#")]
    assert len(comments) >= 3
    assert [line for line in comments if not (line[2].isupper() and line.endswith("."))] == []


def ran_alone(ranks, script, *args, cwd, **variables):
    """What it printed under a torchrun of its own, as people start it, and nothing on stderr."""
    with torchrun.started(ranks, script, *args, cwd=cwd, **variables) as process:
        process.wait(100)
    assert (process.returncode, (cwd / "err").read_text()) == (0, "")
    return (cwd / "out").read_text()


@pytest.fixture(scope="module")
def kept():
    """What gives so many ranks of a torchrun, in which scripts run one after another."""
    with kept_torchrun.kept(4, SCRIPTS) as ready:
        yield ready.first


def ran(ready, script, *args, cwd, **variables):
    """What it printed, and nothing on stderr."""
    with ready.started(script, *args, cwd=cwd, **variables) as run:
        statuses = run.wait(100)
    assert (set(statuses), (cwd / "err").read_text()) == ({0}, "")
    return (cwd / "out").read_text()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("lesson", [path for path in SCRIPTS if path != FINE_TUNING], ids=lambda path: path.stem)
def test_a_script_runs_under_torchrun_and_no_thread_can_abort_its_end(kept, lesson, ranks, tmp_path):
    assert ran(kept(ranks), lesson, cwd=tmp_path).startswith(f"{ranks} ranks agree")


def test_data_parallel_training_goes_on_where_it_stopped_and_gives_the_same_on_any_number_of_ranks(kept, tmp_path):
    (alone, in_two) = (tmp_path / name for name in ("alone", "in two"))
    alone.mkdir(), in_two.mkdir()
    losses = [re.search("a loss of (.+)", ran_alone(1, DDP, cwd=alone))[1]]
    losses.append(re.search("a loss of (.+)", ran(kept(2), DDP, cwd=in_two, EPOCHS="2"))[1])
    losses.append(re.search("a loss of (.+)", ran(kept(4), DDP, cwd=in_two))[1])
    assert losses[2] == losses[0] != losses[1]


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
