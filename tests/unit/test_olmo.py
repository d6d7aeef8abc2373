"""`make olmo` without its packages: what is pinned, the order of runs, and the committed page."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from course_lib import presets
from tools.olmo import page, runs
from tools.pip import SetupError
from tools.wild.exhibits import PIN


def test_every_pin_is_exact_and_none_is_torch():
    """Another torch would bring gigabytes of CUDA along; both environments see the learner's."""
    for name, first in (("core", "ai2-olmo-core==3.0.0"), ("classic", "ai2-olmo==0.6.0")):
        found = runs.pins(name)
        assert found[0] == first and all(PIN.fullmatch(pin) for pin in found)
        assert not any(pin.startswith(("torch==", "nvidia", "triton")) for pin in found)


def test_the_committed_page_is_what_the_kept_rows_say():
    rows = presets.read("wild", "olmo")
    assert page.PAGE.read_text() == page.page(rows)
    assert page.unequal(rows) == [] and [run["name"] for run in rows["trained"]] == [run.name for run in runs.RUNS]


def test_the_settings_are_the_workshops_and_our_jobs_follow_them():
    said = yaml.safe_load((runs.HERE / "workshop.yaml").read_text())
    for name in ("olmo_1b_ddp", "olmo_7b_fsdp"):
        ours = presets.read("job", name)["train"]
        assert ours["batch"] == said["global_train_batch_size"] and ours["steps"] == said["max_duration"]
        assert ours["lr"] == said["optimizer"]["learning_rate"] and ours["checkpoint_every"] == said["save_interval"]
        assert ours["sequence"] == said["model"]["max_sequence_length"] and ours["recompute"]
        assert said["scheduler"]["t_warmup"] > ours["steps"] > ours["warmup_steps"]  # where they do not follow
    assert (ours["policy"], ours["strategy"]) == (said["fsdp"]["wrapping_strategy"], said["fsdp"]["sharding_strategy"])


def test_a_loss_that_is_off_and_a_run_without_an_end_are_told():
    rows = presets.read("wild", "olmo")
    first, second, *rest = rows["trained"]
    longer = {**second, "losses": [loss * 1.001 for loss in second["losses"]]}
    stuck = {**second, "ended": False, "name": "stuck"}
    assert page.unequal({**rows, "trained": [first, longer, stuck, *rest]}) == ["DDP: 1.0e-03", "stuck: no end"]
    other = {**rows["read"], "losses": {**rows["read"]["losses"], "one more": 1.0}}
    assert page.unequal({**rows, "read": other})[0].startswith("units.py: losses ")


@pytest.fixture
def told(monkeypatch):
    """A program in torchrun's place."""

    start = subprocess.Popen
    monkeypatch.setattr(runs, "environment_for", lambda pins: None)
    monkeypatch.setattr(runs, "python_of", lambda environment: "bash")

    def run(text):
        monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(["bash", "-c", text], **options))

    return run


def test_the_last_line_counts_and_a_time_limit_is_no_line(told):
    told("echo noise; echo '{\"units\": 1}'; echo '{\"units\": 2}'")
    assert runs._torchrun("x", "core", 2, [], 20)["units"] == 2
    told("sleep 30")
    assert runs._torchrun("x", "core", 2, [], 0.2) == {"ended": False, "seconds": 0.2}
    told("echo 'ValueError: no' >&2; exit 3")
    with pytest.raises(SetupError, match="x: it broke: ValueError: no"):
        runs._torchrun("x", "core", 2, [], 20)
