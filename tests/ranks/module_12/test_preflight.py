"""`preflight` on two ranks of this machine."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch.distributed as dist

from course_lib.cli import preflight, preflight_facts
from course_lib.cli.main import main
from course_lib.gauges.links_alone import time_links
from course_lib.ranks import RankError, run_ranks


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


def on_two_nodes():
    """As on nodes of two ranks each, with names that both lead here; their second link is slow."""
    really = dist.all_reduce

    def all_reduce(x, *args, group=None, **kwargs):
        if dist.get_process_group_ranks(group) == [1, 3]:
            time.sleep(0.1)
        really(x, *args, group=group, **kwargs)

    small = patch.object(preflight_facts, "_SIZES", {"cpu": (1 << 10, 1 << 12)})
    node = patch.object(socket, "gethostname", lambda: f"127.0.0.{1 + dist.get_rank() // 2}")
    with small, node, patch.object(dist, "all_reduce", all_reduce):
        alone = preflight_facts.look_alone(dist.get_rank(), 2, "cpu", None)
        return replace(alone, gloo=""), preflight_facts.look_together(None)  # a test's ranks may meet on lo


def test_of_two_nodes_the_slow_link_is_named(capsys):
    alone, together = zip(*run_ranks(on_two_nodes, 4), strict=True)
    assert [row.ranks for row in together[3].links] == [(0, 1), (2, 3), (0, 2), (1, 3)]
    assert together[0].links == together[3].links
    asked = preflight.Preflight(ranks=4, folder=None, cluster=None)
    assert preflight.report(asked, alone, together) == 0
    *_, wires, inside, between, last = capsys.readouterr().out.splitlines()
    assert "on 4 ranks of 2 hosts" in wires and last.startswith("of 10 findings ")
    assert re.match(r"(ok|look) +inside +busbw of 2 links \S+ to \S+ GB/s at 4 KiB", inside)
    assert re.match(r"look +between .*, slow: 127.0.0.1 with 127.0.0.2 \(ranks 1, 3\) \S+ GB/s; a link", between)


def recorded(hosts, nbytes, repeats):
    """The rows, and this rank's sums; those of ranks 1 and 2 come out wrong."""
    really, calls = dist.all_reduce, []

    def all_reduce(x, group):
        really(x, group=group)
        calls.append((tuple(dist.get_process_group_ranks(group)), x.nbytes))
        x[5] += calls[-1][0] == (1, 2)

    with patch.object(dist, "all_reduce", all_reduce):
        return time_links(hosts, nbytes, repeats), calls


def test_a_link_is_a_group_of_its_own_and_who_has_none_keeps_step():
    (rows, first), (_, second), (_, third) = run_ranks(recorded, 3, ["a", "b", "c"], 4096, 1)
    assert [(row.ranks, row.bytes, row.wrong) for row in rows] == [
        ((0, 1), 4096, 0),
        ((1, 2), 4096, 2 * 3),  # two ranks, two rounds to warm up and one that counts
        ((0, 2), 4096, 0),
    ]
    for calls, groups in (
        (first, [(0, 1), (0,), (0, 2)]),
        (second, [(0, 1), (1, 2), (1,)]),
        (third, [(2,), (1, 2), (0, 2)]),
    ):
        assert calls == [(group, 4096) for group in groups for _ in range(3)]


def one_link_is_dead():
    """Between ranks 1 and 3, whose calls end as gloo's do after their time limit."""
    really = dist.all_reduce

    def all_reduce(x, group):
        if dist.get_process_group_ranks(group) == [1, 3]:
            raise RuntimeError("Timed out waiting 60000ms for recv operation to complete")
        really(x, group=group)

    with patch.object(dist, "all_reduce", all_reduce):
        return time_links(["a", "a", "b", "b"], 4096, 1)


def test_a_link_that_does_not_answer_is_named_by_both_its_ends():
    with pytest.raises(RankError) as caught:
        run_ranks(one_link_is_dead, 4)
    assert "the link between a (rank 1) and b (rank 3) does not answer: Timed out waiting" in str(caught.value)
