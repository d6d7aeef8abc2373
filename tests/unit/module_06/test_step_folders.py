"""What a killed run leaves is nobody's obstacle, and what somebody else wrote is nobody's to remove."""

from __future__ import annotations

import pytest

from course_lib.training import step_folders
from course_lib.training.checksums import SUMS


def written(folder, run, *files):
    step_folders.mark(folder, run)
    for name in files:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("files", [(), ("__0_0.distcp",), ("__0_0.distcp", ".metadata", SUMS)])
def test_a_run_that_was_killed_before_it_gave_the_last_name_is_in_nobodys_way(tmp_path, files):
    """With every file there, too: thirty kills found that moment."""
    left = written(tmp_path / "step-3.unfinished", "the killed run", *files)
    assert step_folders.whole_folders(tmp_path) == []
    step_folders.make_room(tmp_path / "step-3", "another run")
    assert not left.exists()


def test_a_whole_checkpoint_of_another_run_and_a_folder_without_a_mark_stay(tmp_path):
    whole = written(tmp_path / "step-3", "another run", SUMS)
    unmarked = tmp_path / "step-4.unfinished"
    unmarked.mkdir()
    (unmarked / "notes.txt").write_text("mine")
    for folder in (whole, tmp_path / "step-4"):
        with pytest.raises(FileExistsError, match="this run did not write it"):
            step_folders.make_room(folder, "this run")
    assert whole.exists() and (unmarked / "notes.txt").exists()
