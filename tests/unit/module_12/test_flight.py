"""A flight recorder's dumps, made by hand: the lesson's hang, where rank 3 has a batch less than the others."""

from __future__ import annotations

import html
import io
import json
import pickle

import pytest

from course_lib.gauges import first_difference, flight, flight_calls, with_named_groups, write_for_torchfrtrace
from course_lib.gauges.flight import dumps_in, main, where_ranks_part
from course_lib.gauges.recorded_calls import unlike_most
from course_lib.gauges.waiting import groups_in, waits_in
from course_lib.ranks.ends import Ends, ends_of

LINES = {"step": 37, "evaluate": 55, "save": 59}
TORCH = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def entry(number, operation, where, *, group=("0", "default_pg"), done=True, p2p=False):
    frames = [
        (operation, TORCH, 3245),
        (where, "/mine/train.py", LINES[where]),
        ("main", "/mine/train.py", 70),
    ]
    return {
        "process_group": group,
        "collective_seq_id": number,
        "profiling_name": f"gloo:{operation}",
        "input_sizes": [] if operation == "barrier" else [[2, 3]],
        "retired": done,
        "state": "scheduled",
        "is_p2p": p2p,
        "frames": [{"name": name, "filename": file, "line": line} for name, file, line in frames],
    }


def hang_dump(rank):
    """What `range(23)[rank::4]` leads to: a step for each batch, then evaluate(), then save()."""
    steps = len(range(23)[rank::4])
    calls = [("all_reduce", "step")] * steps + [("all_reduce", "evaluate"), ("barrier", "save")]
    entries = [entry(n, *call, done=n < 7) for n, call in enumerate(calls[:7], start=1)]
    return {"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}, "entries": entries}


def hang_calls():
    return [flight_calls(hang_dump(rank)) for rank in range(4)]


def test_a_call_says_where_your_own_code_stood():
    last = hang_calls()[3][-1]
    assert last == (7, "barrier", (), False, "save, line 59")
    assert flight_calls(hang_dump(0))[5] == (6, "all_reduce", ((2, 3),), True, "step, line 37")


def test_json_has_no_frames_and_other_groups_and_sends_are_left_out():
    dump = hang_dump(0)
    dump["entries"] += [entry(1, "all_reduce", "step", group=("1", "undefined")), entry(8, "send", "step", p2p=True)]
    plain = json.loads(json.dumps(dump))
    for one in plain["entries"]:
        del one["frames"]
    assert [call.number for call in flight_calls(dump)] == [*range(1, 8)]
    assert [call.place for call in flight_calls(plain)] == [""] * 7


def test_ranks_part_one_call_before_they_hang():
    assert first_difference(hang_calls()) == (6, (3,))
    assert first_difference([calls[:5] for calls in hang_calls()]) is None
    assert first_difference([]) is None


def test_a_rank_that_never_calls_differs_and_what_one_has_forgotten_is_not_compared():
    calls = hang_calls()
    assert first_difference([calls[0], calls[1], calls[2][:4]]) == (5, (2,))
    assert first_difference([calls[0], []]) == (1, (1,))
    assert first_difference([calls[0], calls[1][3:]]) is None


def test_of_two_as_common_the_one_that_was_made_counts():
    calls = hang_calls()
    assert first_difference([calls[0][:4], calls[1]]) == (5, (0,))
    assert first_difference([calls[0], calls[3]]) == (6, (1,))


@pytest.mark.parametrize(("operation", "unlike"), [("scatter", ()), ("all_to_all", ()), ("all_reduce", (0,))])
def test_what_a_rank_gives_to_a_scatter_or_an_all_to_all_is_its_own_affair(operation, unlike):
    """FSDP over tensor-parallel layers scatters the weights of one rank, and the others give nothing."""
    root, *others = (flight_calls(dump_of(entry(1, operation, "step")))[0] for _ in range(3))
    assert unlike_most([root._replace(sizes=((4, 4),)), *others]) == unlike


def test_torchfrtrace_gets_each_rank_s_dump_under_its_name_with_a_named_group(tmp_path):
    (tmp_path / "dumps").mkdir()
    for rank in range(4):
        (tmp_path / "dumps" / f"trace_{rank}").write_bytes(pickle.dumps(hang_dump(rank)))
    write_for_torchfrtrace(tmp_path / "dumps", tmp_path / "named")
    files = sorted((tmp_path / "named").iterdir())
    assert [file.name for file in files] == [f"trace_{rank}" for rank in range(4)]
    assert [pickle.loads(file.read_bytes()) for file in files] == [with_named_groups(hang_dump(r)) for r in range(4)]


def test_groups_are_named_only_where_they_have_no_name():
    mended = with_named_groups(hang_dump(1), world_size=8)
    assert mended["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}}
    assert with_named_groups(mended) == mended


def test_a_folder_of_dumps_is_told_in_words(tmp_path):
    for rank in range(4):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(hang_dump(rank)))
    told = where_ranks_part(dumps_in(tmp_path)).splitlines()
    assert told[:2] == ["dumps of ranks 0, 1, 2, 3", "ranks part in call 6; unlike most: 3"]
    assert "  call 7, rank 3: barrier in save, line 59, waits" in told


@pytest.mark.parametrize("words", [[], ["localhost:1"], ["localhost:port"], ["no_such_folder"], ["{empty}"]])
def test_where_nothing_can_be_read_one_line_says_so(words, tmp_path, capsys):
    assert main([word.format(empty=tmp_path) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("flight: ") and said.count("\n") == 1 and "HOST:PORT of start_debug_server" in said
    assert ("there is no dump of any rank" in said) == (words == ["{empty}"])


def test_files_of_torchtitan_are_read_and_of_two_jobs_or_half_a_dump_one_line_says_so(tmp_path, capsys):
    for rank in (2, 10):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(hang_dump(0)))
    (tmp_path / "notes.txt").write_text("mine")
    assert [*dumps_in(tmp_path)] == [2, 10]
    (tmp_path / "rank_10").write_bytes(pickle.dumps(hang_dump(0))[:-9])
    assert main([str(tmp_path)]) == 2 and "rank_10 is no whole dump" in capsys.readouterr().err
    (tmp_path / "trace_0").write_bytes(pickle.dumps(hang_dump(0)))
    assert main([str(tmp_path)]) == 2 and "dumps of several jobs lie there: rank_, trace_;" in capsys.readouterr().err


def test_a_folder_of_dumps_is_told_in_a_terminal(tmp_path, capsys):
    for rank in range(4):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(hang_dump(rank)))
    assert main([str(tmp_path)]) == 0 and "\nranks part in call " in capsys.readouterr().out


def test_a_rank_that_does_not_answer_the_server_is_named_first(monkeypatch, capsys):
    """As torch 2.13's page has it when one of four processes is stopped."""
    blocks = [
        json.dumps(hang_dump(0)),
        json.dumps(hang_dump(1)),
        "Timeout: HTTPConnectionPool(host='vm'): Read timed out.",
    ]
    page = "".join(
        f"<h2>Rank {rank}: http://vm/</h2><pre>{html.escape(block)}</pre>" for rank, block in enumerate(blocks)
    )
    monkeypatch.setattr(flight, "urlopen", lambda url, timeout: io.BytesIO(page.encode()))
    assert main(["vm:29500"]) == 0
    assert capsys.readouterr().out == ("the debug server got no answer of rank 2; look there first (ps: stopped, T?)\n")


TP, DP = ("1", "mesh_tp"), ("3", "undefined")  # as two of the groups of a job on NCCL, which lists their ranks
LISTED = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "1": {"name": "1", "desc": "mesh_tp", "ranks": "[0, 1]"},
    "3": {"name": "3", "desc": "undefined", "ranks": "[1, 3]"},
}


def dump_of(*entries):
    return {"version": "2.10", "pg_config": LISTED, "entries": list(entries)}


def test_groups_are_those_that_a_dump_lists():
    dumps = {0: dump_of(entry(1, "all_reduce", "step", group=TP, done=False)), 1: dump_of()}
    found = [(group.kind, group.ranks) for group in groups_in(dumps)]
    assert found == [("default_pg", (0, 1, 2, 3)), ("mesh_tp", (0, 1))]
    assert waits_in(dumps, groups_in(dumps))[0].missing == (1,)


def test_waiting_is_followed_through_the_groups_to_its_end():
    past_tp, past_dp = (entry(4, "barrier", "step", group=group) for group in (TP, DP))
    waits_in_tp = dump_of(past_tp, entry(5, "all_reduce", "step", group=TP, done=False))
    waits_in_dp = dump_of(past_tp, past_dp, entry(5, "all_reduce", "save", group=DP, done=False))
    dumps = {0: waits_in_tp, 1: waits_in_dp, 2: dump_of(), 3: dump_of(past_dp)}
    assert where_ranks_part(dumps).splitlines() == [
        "dumps of ranks 0, 1, 2, 3",
        "look at rank 3 first: others wait, and it is held up by no recorded collective",
        "  rank 3: its last was barrier in step, line 37, ended",
        "  rank 1 waits for rank 3 in call 5 of group 3 (ranks 1, 3), all_reduce in save, line 59",
        "  rank 0 waits for rank 1 in call 5 of mesh_tp (ranks 0, 1), all_reduce in step, line 37",
    ]


def test_a_circle_is_told_apart_from_those_who_wait_for_it_and_from_an_end():
    assert ends_of({0: (1,), 1: (0,), 2: (1,), 3: (4,), 5: (4, 0), 6: ()}) == Ends((4,), (0, 1))
    assert ends_of({0: {1}, 1: {2}, 2: {3}}) == Ends((3,), ())
    assert ends_of({}) == Ends((), ())


def test_ranks_that_part_in_a_group_of_their_own_are_named_by_their_ranks():
    one, other = (dump_of(entry(1, name, "step", group=DP, done=False)) for name in ("all_reduce", "barrier"))
    assert where_ranks_part({0: dump_of(), 1: one, 2: dump_of(), 3: other}).splitlines() == [
        "dumps of ranks 0, 1, 2, 3",
        "ranks part in call 1 of group 3 (ranks 1, 3)",
        "  call 1, rank 1: all_reduce in step, line 37, waits",
        "  call 1, rank 3: barrier in step, line 37, waits",
    ]


def test_a_call_to_which_all_have_come_is_named_and_sends_are_not_compared():
    comes = entry(1, "all_reduce", "step", done=False)
    said = where_ranks_part(dict.fromkeys(range(4), dump_of(comes))).splitlines()
    assert said[2:] == ["all have come to call 1, all_reduce in step, line 37, and it has not ended"]
    sends = dump_of(entry(1, "send", "step", done=False, p2p=True), comes)
    said = where_ranks_part(dict.fromkeys(range(4), sends)).splitlines()
    assert said[1:] == [
        "their recorded collectives agree, and none is ahead",
        "sends and receives are not compared",
    ]


@pytest.mark.parametrize("lost", [1, 3])
def test_a_rank_without_a_dump_keeps_its_number_and_is_named_first(lost, tmp_path):
    for rank in {0, 1, 2, 3} - {lost}:
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump_of(entry(1, "barrier", "save", done=False))))
    said = where_ranks_part(dumps_in(tmp_path)).splitlines()
    assert said[1] == f"no dump of rank {lost}: look there first, whether its process still runs"
    assert said[-1] == f"  rank {2 if lost == 3 else 3} waits for rank {lost} in call 1, barrier in save, line 59"


def test_of_a_thousand_ranks_a_few_lines_are_told():
    listed = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(1000)])}}
    waits = {"pg_config": listed, "entries": [entry(1, "all_reduce", "step", done=False)]}
    said = where_ranks_part(
        {0: {"pg_config": listed, "entries": []}, **dict.fromkeys(range(1, 1000), waits)}
    ).splitlines()
    assert said[0] == "dumps of ranks 0, 1, 2, 3, 4, 5, 6, 7, and 992 more"
    assert said[1].startswith("look at rank 0 first: others wait")
    assert said[-1] == "  and 991 more wait" and len(said) == 12


def test_gloo_s_only_group_tells_how_many_ranks_there_are():
    """The highest rank is missed like any other."""
    dumps = {rank: hang_dump(rank) for rank in range(3)}
    assert where_ranks_part(dumps).splitlines()[1].startswith("no dump of rank 3: look there first")


def test_a_rank_between_others_is_missed_though_nobody_called_with_all():
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    dump = {"pg_config": config, "entries": [entry(1, "all_reduce", "step", group=TP)]}
    assert where_ranks_part({0: dump, 2: dump}).splitlines()[1].startswith("no dump of rank 1: look there first")


def test_of_a_group_that_no_dump_lists_nobody_claims_that_all_have_come():
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    waits = {"pg_config": config, "entries": [entry(1, "all_reduce", "step", group=TP, done=False)]}
    idle = {"pg_config": config, "entries": []}
    assert where_ranks_part({0: waits, 1: waits, 2: idle}).splitlines()[1:] == [
        "look at rank 2 first: others wait, and it is held up by no recorded collective",
        "  rank 2: it has called none",
        *(
            f"  rank {rank} waits in call 1 of mesh_tp (called by ranks 0, 1), all_reduce in step, line 37; "
            "who else is in it is not known"
            for rank in (0, 1)
        ),
    ]


def test_a_rank_in_a_receive_says_so():
    receives = {
        **entry(1, "recv 1<-0", "step", done=False, p2p=True),
        "profiling_name": "nccl:recv 1<-0",
        "state": "started",
    }
    waits = dump_of(entry(1, "all_reduce", "step", group=TP, done=False))
    assert "  rank 1: waits in nccl:recv 1<-0" in where_ranks_part({0: waits, 1: dump_of(receives)}).splitlines()


def test_a_root_may_call_from_a_line_of_its_own_and_unequal_sizes_are_shown():
    other_line = [entry(1, "broadcast", where) for where in ("save", "step", "step")]
    assert first_difference([flight_calls(dump_of(one)) for one in other_line]) is None
    short = entry(1, "all_reduce", "step") | {"input_sizes": [[2]]}
    long = dump_of(entry(1, "all_reduce", "step"))
    assert where_ranks_part({0: long, 1: long, 2: long, 3: dump_of(short)}).splitlines()[1:] == [
        "ranks part in call 1; unlike most: 3",
        *(
            f"  call 1, rank {rank}: all_reduce of [[{2 if rank == 3 else '2, 3'}]] in step, line 37, ended"
            for rank in range(4)
        ),
    ]


@pytest.mark.parametrize(
    ("state", "retired", "done"), [("completed", False, True), ("started", True, False), ("scheduled", False, False)]
)
def test_over_nccl_the_state_tells_what_is_done(state, retired, done):
    """Its watchdog retires what has timed out, and what is completed some time later."""
    call = entry(1, "all_reduce", "step") | {"profiling_name": "nccl:all_reduce", "state": state, "retired": retired}
    assert flight_calls(dump_of(call))[0].done == done


def test_a_call_that_is_left_out_makes_a_circle_too():
    """As lesson 12 says: all call tp and then dp, but ranks 1 and 2 leave the second tp out."""
    groups = {"tp": [("1", (0, 1)), ("2", (2, 3))], "dp": [("3", (0, 2)), ("4", (1, 3))]}
    dumps = {}
    for rank, kinds in enumerate((["tp", "dp", "tp"], ["tp", "dp", "dp"], ["tp", "dp", "dp"], ["tp", "dp", "tp"])):
        entries = []
        for place, kind in enumerate(kinds):
            name = next(name for name, ranks in groups[kind] if rank in ranks)
            number = 1 + kinds[:place].count(kind)
            entries.append(entry(number, "all_reduce", "step", group=(name, f"mesh_{kind}"), done=place < 2))
        dumps[rank] = {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}, "entries": entries}
    assert where_ranks_part(dumps).splitlines()[1].startswith("ranks 0, 1, 2, 3 wait in a circle: ")
