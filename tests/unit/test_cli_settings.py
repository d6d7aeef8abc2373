"""One table says what a command can be told: defaults, checks, help, the page and completion follow from it."""

from __future__ import annotations

import shutil
import subprocess
from typing import get_args

import pytest

from course_lib import __version__
from course_lib.cli import train_sharding, verify_arguments
from course_lib.cli.command_help import default_in_words, help_of, overview
from course_lib.cli.commands import COMMANDS, VERIFY
from course_lib.cli.main import main
from course_lib.cli.settings import every, names, said, typed
from course_lib.cli.train_config import read_train
from course_lib.cli.train_settings import RANKS, TRAIN
from course_lib.costs.comm import tensor as formulas
from course_lib.costs.model import checkpointing
from course_lib.parallel.tensors import region
from course_lib.savers import kept_results
from course_lib.training.learning_rate import Schedule
from course_lib.training.sharding import Strategy
from tools.paths import ROOT
from tools.settings_page import PAGE, page

OF_TRAIN = {setting.name: setting for setting in every(TRAIN)}
WRONG = {
    "whole": ("x", "is of whole numbers"),
    "positive": ("0", "is positive"),
    "number": ("fast", "is a number"),
    "word": ("[a]", "is a word"),
    "choice": ("nonsense", "not a known kind; choose from "),
    "switch": ("1", "is a switch"),
    "preset": ("nonsense", "there is no such model"),
}
WITH = {  # what has a meaning only beside others
    "zero_stage": {"*": ["dp=2"], "0": []},
    "strategy": {"*": ["dp=2", "zero_stage=3"], "HYBRID_SHARD": ["dp=2", "zero_stage=3", "shards=2"]},
    "precision": {"*": [], "bf16": ["dp=2", "zero_stage=3"]},
    "offload": {"*": ["dp=2", "zero_stage=3"]},
    "policy": {
        "*": ["dp=2", "zero_stage=1"],
        "by_block_group": ["dp=2", "zero_stage=1", "policy_size=2"],
    },
    "schedule": {"*": ["pp=2"]},
    "sequence_parallel": {"*": ["tp=2"]},
    "rank": {"*": ["adapter=lora"]},
    "context": {"*": ["cp=2"]},
    "order": {"*": ["cp=2"]},
    "lossy": {"*": ["dp=2"]},
    "gossip": {"*": ["dp=4"]},
}


def test_all_defaults_given_aloud_are_what_nothing_gives():
    aloud = [f"{name}={'null' if one.default is None else typed(one.default)}" for name, one in OF_TRAIN.items()]
    assert read_train(aloud).values == read_train([]).values


def test_every_choice_is_taken():
    for name, one in OF_TRAIN.items():
        for choice in one.choices if one.kind != "preset" else ():
            companions = WITH.get(name, {})
            run = read_train([f"{name}={choice}", *companions.get(choice, companions.get("*", []))])
            assert typed(run.values[name]) == choice


def test_choices_are_those_that_their_readers_know():
    assert OF_TRAIN["policy"].choices == tuple(train_sharding.POLICIES)
    assert OF_TRAIN["strategy"].choices == get_args(Strategy)
    assert OF_TRAIN["lr_schedule"].choices == get_args(Schedule)
    assert get_args(region.SequenceParallel) == get_args(formulas.SequenceParallel)
    assert get_args(kept_results.Keep) == get_args(checkpointing.Keep)
    dtype = next(one for one in every(VERIFY) if one.name == "dtype")
    assert set(dtype.choices) == set(verify_arguments.DTYPES)


@pytest.mark.parametrize("name", [name for name, one in OF_TRAIN.items() if one.kind in WRONG])
def test_a_value_of_another_kind_is_refused(name):
    value, rule = WRONG[OF_TRAIN[name].kind]
    with pytest.raises(ValueError, match=rule) as refused:
        read_train([f"{name}={value}"])
    assert str(refused.value).startswith(f"train: {name}=") and "\n" not in str(refused.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_line_for_each_setting_and_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for one in every(COMMANDS[command].groups):
        (line,) = [line for line in lines if line.split()[:1] == [one.name]]
        assert line.split(None, 2)[1:] and default_in_words(one) in line and one.help in line
        assert f"[lesson {one.since}]" in line or not one.since
    assert all(group.title in lines for group in COMMANDS[command].groups)
    assert lines[-1].strip() == COMMANDS[command].example and f"course {command}" in lines[-1]


def test_every_lesson_that_help_names_is_there():
    since = {one.since for command in COMMANDS.values() for one in every(command.groups)} - {""}
    assert since <= {path.name[:2] for path in (ROOT / "notebooks/src").glob("[0-9]*.py")}


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_use_names_that_are_there(command):
    words = [word.partition("=")[0] for word in COMMANDS[command].example.split() if "=" in word]
    assert {word.split(".")[0] for word in words} <= set(names(COMMANDS[command].groups))


def test_every_command_starts_somewhere():
    starts = ("tour_command", "train_command", "doctor_command", "slurm_command", "preflight_command")
    starts += (
        "watch_command",
        "verify_command",
        "plan_command",
        "sweep",
        "predict_command",
        "calibrate_command",
        "completion_command",
    )
    assert tuple(command.function().__name__ for command in COMMANDS.values()) == starts


def test_doctor_and_slurm_take_all_that_train_takes():
    assert all(set(names(COMMANDS[name].groups)) > set(names(TRAIN)) for name in ("doctor", "slurm"))


def test_the_page_lists_every_setting():
    text = PAGE.read_text()
    assert text == page(text), "run `python -m tools.settings_page`, which writes the list anew"


def test_only_what_is_not_as_always_is_said():
    values = read_train(["dp=2", "tp=4"]).values
    assert said(RANKS, {**values, "model": "tiny_llama"}) == "dp=2 tp=4"


def test_the_version_and_the_commands(capsys):
    assert main(["--version"]) == 0 and main(["--help"]) == 0
    assert capsys.readouterr().out == f"course {__version__}\n{overview()}\n"
    assert all(f"  {name} " in overview() for name in COMMANDS) and help_of("train").startswith("usage: course train ")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["train", "ddp=2"], "; did you mean dp=?"),
        (["doctor", "zero_stge=2"], "; did you mean zero_stage=?"),
        (["slurm", "node=2"], "; did you mean nodes=?"),
        (["plan", "clutser=dgx_h100"], "; did you mean cluster=?"),
        (["verify", "a:b", "a:c", "rank=2"], "; did you mean ranks=?"),
        (["trian"], "; did you mean train?"),
        (["predict", "xyzzy=1"], "choose from runs, out, calibrate"),
        ([], f"course: no command; a command comes first; choose from {', '.join(COMMANDS)}"),
        (["train", "dp=2", "dp=4"], "train: dp=2 and dp=4; dp is given twice; give it once"),
        (
            ["verify", "a:b", "a:c", "ranks=2", "ranks=3"],
            "verify: ranks=2 and ranks=3; ranks is given twice; give it once",
        ),
        (["completion", "fish"], "completion: fish; a shell reads what this prints; choose bash or zsh"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest_right_one(words, end, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.endswith(f"{end}\n") and err.count("\n") == 1


def offered(shell, script, line):
    """What the script completes at the end of a line; the function is called as the shell calls it."""
    code = f'{script}\nCOMP_LINE={line!r}; COMP_POINT={len(line)}; _course; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run([shell, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("course pl", ["plan"]),
        ("course ", list(COMMANDS)),
        ("course train sequence", ["sequence_parallel=", "sequence="]),
        ("course train dp=2 engine=", ["own", "torch"]),
        ("course train dp=2 engine=t", ["torch"]),
        ("course train recompute=l", ["layers"]),
        ("course plan cluster=dgx_h", ["dgx_h100", "dgx_h200"]),
        ("course slurm no", ["nodes="]),
        ("course doctor tp=2 zero_", ["zero_stage="]),
        ("course completion z", ["zsh"]),
        ("course tour -", ["--ranks"]),
        ("course nonsense x", []),
    ],
)
def test_bash_completes(line, words, capsys):
    assert main(["completion", "bash"]) == 0
    assert offered("bash", capsys.readouterr().out, line) == words


def test_what_zsh_reads_is_the_same_function_with_its_own_ending(capsys):
    """zsh itself reads it, where it is installed."""
    main(["completion", "bash"])
    bash = capsys.readouterr().out
    assert main(["completion", "zsh"]) == 0
    zsh = capsys.readouterr().out
    end = bash.index("complete -o default")
    assert zsh.startswith(bash[:end]) and "bashcompinit" in zsh[end:]
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n", "-c", zsh], check=True)
