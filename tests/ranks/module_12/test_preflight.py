"""`preflight` on two ranks of this machine."""

from __future__ import annotations

import pytest

from course_lib.cli.main import main


def test_this_machine_is_looked_at(capsys, tmp_path):
    status = main(["preflight", "ranks=2", f"folder={tmp_path}", "cluster=dgx_h100"])
    out, err = capsys.readouterr()
    findings = {
        line.split()[1]: line.split()[0] for line in out.splitlines() if line.startswith(("ok", "look", "wrong"))
    }
    looked_at = ("versions", "devices", "hosts", "interfaces", "space", "ports", "clocks", "folder", "wires")
    assert status == 1 and err == "" and tuple(findings) == looked_at
    assert findings.pop("wires") == "wrong"  # no machine that runs these tests is a DGX
    assert [findings[one] for one in ("versions", "hosts", "interfaces", "clocks", "folder")] == ["ok"] * 5
    assert "# Out of bounds values : 0 OK" in out and f"{tmp_path}: every rank found the files of all 2" in out
    assert [*tmp_path.iterdir()] == []


def test_without_an_interface_no_rank_is_started(capsys, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    assert main(["preflight", "ranks=2"]) == 1
    out = capsys.readouterr().out
    assert "wrong  interfaces  rank 0: GLOO_SOCKET_IFNAME=ib7, and " in out and "the rest was not looked at" in out


def test_a_folder_that_is_not_there_is_wrong(capsys, tmp_path):
    assert main(["preflight", "ranks=2", f"folder={tmp_path / 'absent'}"]) == 1
    assert "ranks 0, 1 cannot write there: No such file or directory; every rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("ranks=65", "preflight: ranks=65; a machine has at most 64 here; start it on each node by torchrun or srun"),
        ("ranks=0", "preflight: ranks=0; ranks is positive; give ranks >= 1"),
        ("cluster=dgx", "load_cluster: name='dgx'; there is no such cluster; choose one of "),
        ("rank=2", "did you mean ranks=?"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(word, end, capsys):
    assert main(["preflight", word]) == 2
    err = capsys.readouterr().err
    assert end in err and err.count("\n") == 1
