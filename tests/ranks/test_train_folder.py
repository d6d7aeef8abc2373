"""A run's folder: what is the run's own may be removed, and nothing else; what is odd in it is told by name."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from test_train_resume import losses, run, run_stopped, short_text  # noqa: F401  (a fixture)

from course_lib.training import dcp_table, step_folders
from course_lib.training.checksums import SUMS, write_sums

GO_ON = "the same command goes on from there"


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """A run that stopped after its third step, with two checkpoints."""
    assert run_stopped(monkeypatch, "checkpoint_every=1", f"out={tmp_path}/run") == 1
    capsys.readouterr()
    return tmp_path / "run"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def on(folder, *overrides):
    return run("checkpoint_every=1", f"out={folder}", *overrides)


def test_two_checkpoints_stay(folder):
    assert names(folder) == ["LATEST", "config.yaml", "metrics.jsonl", "step-2", "step-3"]


def test_as_many_stay_as_are_asked_for(folder):
    assert on(folder, "keep_checkpoints=3") == 0
    assert [name for name in names(folder) if name.startswith("step")] == ["step-3", "step-4", "step-5"]
    assert on(folder, "keep_checkpoints=1", "steps=6") == 0 and "step-5" not in names(folder)


@pytest.mark.parametrize("copy", ["step-2.bak", "step-2-best", "step-02", "step-1x", "step-", "best"])
def test_a_copy_of_a_checkpoint_stays(folder, copy):
    shutil.copytree(folder / "step-2", folder / copy)
    assert on(folder, "steps=8") == 0
    assert names(folder) == sorted(["LATEST", "config.yaml", "metrics.jsonl", "step-7", "step-8", copy])
    assert names(folder / copy) == ["trainer.pt", "written_by.json"]


def test_a_copy_under_a_checkpoint_s_name_is_somebody_s(folder, capsys):
    """Its mark says another name: nothing proves that this run wrote it, so it is neither removed nor written over."""
    shutil.copytree(folder / "step-2", folder / "step-1")
    shutil.copytree(folder / "step-2", folder / "step-4")
    assert on(folder) == 1
    said = capsys.readouterr().err
    assert f"{folder}/step-4 is there, and this run did not write it: move it away, then go on" in said
    assert said.endswith(f"keeps step 3: {GO_ON}\n")
    (folder / "step-4").rename(folder / "mine")
    assert on(folder) == 0 and {"step-1", "mine"} <= {*names(folder)}


def test_another_run_s_checkpoint_stays(folder, tmp_path, monkeypatch):
    assert run_stopped(monkeypatch, "checkpoint_every=1", f"out={tmp_path}/other") == 1
    shutil.copytree(tmp_path / "other/step-2", folder / "step-1")
    (folder / "step-1/written_by.json").write_text(
        (tmp_path / "other/step-2/written_by.json").read_text().replace("step-2", "step-1")
    )
    assert on(folder) == 0 and "step-1" in names(folder)


def test_what_somebody_has_put_into_a_checkpoint_keeps_it(folder):
    (folder / "step-2/notes.txt").write_text("the best so far")
    assert on(folder) == 0 and (folder / "step-2/notes.txt").exists()


def test_a_link_is_not_followed(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine.txt").write_text("mine")
    (folder / "step-1").symlink_to(tmp_path / "elsewhere")
    assert on(folder) == 0 and (tmp_path / "elsewhere/mine.txt").exists()


@pytest.mark.parametrize("name", ["step-notes.txt", "step-9", "step-4.unfinished.txt"])
def test_a_file_of_such_a_name_does_no_harm(folder, name):
    (folder / name).write_text("mine")
    assert on(folder) == 0 and (folder / name).read_text() == "mine"


def test_without_its_pointer_the_last_whole_checkpoint_is_found(folder, capsys):
    (folder / "LATEST").unlink()
    assert on(folder) == 0
    assert "goes on after step 3 of 5" in capsys.readouterr().out


def a_folder(path):
    path.unlink()
    path.mkdir()


def binary(path):
    path.write_bytes(b"\xff\xfe\x00step")


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("LATEST", a_folder, "LATEST cannot be read (IsADirectoryError)"),
        ("LATEST", binary, "LATEST cannot be read (UnicodeDecodeError)"),
        ("LATEST", lambda path: path.write_text("step-77"), "LATEST names 'step-77'"),
        ("LATEST", lambda path: path.write_text("../run/step-3"), "LATEST names '../run/step-3'"),
        ("config.yaml", binary, "its config.yaml is of no run"),
        ("config.yaml", a_folder, "it is there already, and each run has its own"),
    ],
)
def test_what_cannot_be_read_is_named_and_nothing_is_lost(folder, capsys, name, harm, said):
    harm(folder / name)
    before = names(folder)
    assert on(folder) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and names(folder) == before
    if name == "LATEST":
        assert "; it names a folder with a whole checkpoint; write step-3 into it" in error


def rewritten(change):
    """The last checkpoint's content, changed, written whole: its checksums fit."""

    def harm(folder):
        path = folder / "step-3/trainer.pt"
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)

    return harm


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (rewritten(lambda content: content.pop("run")), "it says nothing of a run's steps"),
        (rewritten(lambda content: content.update(optimizer={})), "its optimizer is not the trainer's"),
        (rewritten(lambda content: content["run"].update(record=[{"loss": 1}])), "its steps are none"),
        (rewritten(lambda content: content["run"].update(record=3)), "its steps are none"),
        (rewritten(lambda content: content["run"].update(random=[{}])), "its random states are none"),
    ],
)
def test_a_checkpoint_of_something_else_is_one_line(folder, capsys, harm, said):
    harm(folder)
    assert on(folder) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert error.endswith(f"keeps step-2: write step-2 into {folder}/LATEST, and {GO_ON}\n")
    (folder / "LATEST").write_text("step-2")
    assert on(folder) == 0


def test_of_a_damaged_checkpoint_it_is_said_what_remains(folder, tmp_path, monkeypatch, capsys):
    assert run(f"out={tmp_path}/whole") == 0
    path = folder / "step-3/trainer.pt"
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert on(folder) == 1
    way_out = f"keeps step-2: write step-2 into {folder}/LATEST, and {GO_ON}\n"
    assert capsys.readouterr().err.endswith(way_out)
    (folder / "LATEST").write_text("step-2\n")
    assert on(folder) == 0 and losses(folder) == losses(tmp_path / "whole")


def test_if_both_are_damaged_nothing_is_promised(folder, capsys):
    for step in (2, 3):
        (folder / f"step-{step}/trainer.pt").write_bytes(b"PK")
    assert on(folder) == 1
    error = capsys.readouterr().err
    assert error.endswith("keeps no other checkpoint\n") and "goes on" not in error


# --- what a stranger may have written ---


class Payload:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.system, (f"touch {self.file}",))


@pytest.fixture
def pieces(tmp_path, monkeypatch, capsys):
    """A run whose checkpoints are in pieces."""
    asked = ["dp=2", "zero_stage=3", "checkpoint_every=1", f"out={tmp_path}/run"]
    assert run_stopped(monkeypatch, *asked) == 1
    capsys.readouterr()
    return tmp_path / "run", asked


def test_a_table_that_asks_for_more_is_not_run(pieces, tmp_path, capsys):
    folder, asked = pieces
    table = dcp_table.Reader(folder / "step-3").read_metadata()
    table.planner_data = Payload(tmp_path / "ran")
    (folder / "step-3" / dcp_table.FILE).write_bytes(pickle.dumps(table))
    sums = folder / "step-3" / SUMS
    sums.unlink()
    write_sums(sums.parent, None)  # whoever can write one file can write the other
    assert run(*asked) == 1
    error = capsys.readouterr().err
    assert "it asks for posix.system, which no table of a checkpoint needs" in error and error.count("\n") == 1
    assert error.endswith(f"keeps step-2: write step-2 into {folder}/LATEST, and {GO_ON}\n")  # not from step 3
    assert not (tmp_path / "ran").exists()


def test_an_object_among_the_pieces_is_not_run(tmp_path):
    torch.save(Payload(tmp_path / "ran"), tmp_path / "object")
    with open(tmp_path / "object", "rb") as file, pytest.raises(pickle.UnpicklingError):
        dcp_table.read_object(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", [("os", "system"), ("builtins", "eval"), ("torch", "load"), ("torch.serialization", "load")]
)
def test_a_table_gets_only_what_tables_are_made_of(tmp_path, name):
    module, function = name
    (tmp_path / dcp_table.FILE).write_bytes(b"\x80\x04c" + f"{module}\n{function}\n".encode() + b".")
    with pytest.raises(pickle.UnpicklingError, match="no table of a checkpoint needs"):
        dcp_table.Reader(tmp_path).read_metadata()


@pytest.mark.parametrize("file", ["written_by.json", ".metadata", "__0_0.distcp", "__1_0.distcp", "checksums.json"])
def test_one_bit_in_any_file_of_a_checkpoint_is_told_and_the_one_before_remains(pieces, capsys, file):
    folder, asked = pieces
    path = folder / "step-3" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    assert run(*asked) == 1
    error = capsys.readouterr().err
    # A checksum that was altered blames the file that it is of: one of the two is wrong.
    assert (file in error or file == "checksums.json") and error.count("\n") == 1
    assert error.endswith(f"keeps step-2: write step-2 into {folder}/LATEST, and {GO_ON}\n")


def test_the_names_are_those_of_whole_folders(tmp_path):
    for name in ("step-1", "step-2", "step-10", "step-3.bak"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer.pt").touch()
    assert [path.name for path in step_folders.whole_folders(tmp_path)] == ["step-1", "step-2", "step-10"]
    assert step_folders.latest(tmp_path) == Path(tmp_path / "step-10")
