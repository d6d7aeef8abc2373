"""`%%ranks` in a real kernel, driven as JupyterLab drives one."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from tests.ranks.deadlines import at_most

ROOT = Path(__file__).parents[3]


@dataclass
class Reply:
    text: str = ""
    error: str = ""
    traceback: str = ""
    updates: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Kernel:
    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(ROOT))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=300)

    def run(self, code, interrupt_after=None):
        started = time.monotonic()
        message = self.client.execute(code)
        reply = Reply()
        while True:
            if interrupt_after is not None and time.monotonic() - started > interrupt_after:
                self.manager.interrupt_kernel()
                interrupt_after = None
            try:
                received = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                assert time.monotonic() - started < 300, "the cell never ended"
                continue
            if received["parent_header"].get("msg_id") != message:
                continue
            kind, content = received["msg_type"], received["content"]
            if kind == "stream" and content["name"] == "stdout":
                reply.text += content["text"]
            elif kind == "execute_result":
                reply.text += content["data"]["text/plain"]
            elif kind == "update_display_data":
                reply.updates.append(content["data"]["text/plain"])
            elif kind == "error":
                reply.error = f"{content['ename']}: {content['evalue']}"
                reply.traceback = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                reply.seconds = time.monotonic() - started
                return reply


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    assert kernel.run("%load_ext course_lib").error == ""
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def test_a_cell_runs_on_every_rank_with_its_names(kernel):
    reply = kernel.run("%%ranks 4\nx = torch.tensor([rank])\ndist.all_reduce(x)\nprint(device, world_size)\nint(x)")
    assert reply.error == ""
    expected = [line for rank in range(4) for line in (f"rank {rank} │ cpu 4", f"rank {rank} → 6")]
    assert reply.text.splitlines() == expected


def test_a_cell_says_at_once_that_it_starts_processes_and_the_next_one_does_not(kernel):
    first, second = (kernel.run("%%ranks 3\nNone") for _ in range(2))
    assert (first.updates[0], first.updates[-1]) == ("starting 3 processes, which takes a few seconds …", "")
    assert second.updates == []


def test_state_stays_between_cells(kernel):
    kernel.run("%%ranks 4\nmine = 10 * rank")
    assert kernel.run("%%ranks 4\nmine + 1").text.splitlines()[3] == "rank 3 → 31"


def test_a_function_of_a_cell_can_be_looked_at(kernel):
    kernel.run("%%ranks 4\nimport inspect\ndef f(x):\n    return (\n        x\n    )")
    reply = kernel.run("%%ranks 4 --only 1\ninspect.getsource(f)")
    assert reply.text == r"rank 1 → 'def f(x):\n    return (\n        x\n    )\n'" + "\n"


def test_a_semicolon_silences_the_value(kernel):
    assert kernel.run("%%ranks 4\nrank;").text == ""


def test_only_some_ranks(kernel):
    assert kernel.run("%%ranks 4 --only 0,2\nrank").text == "rank 0 → 0\nrank 2 → 2\n"


def test_push_and_pull(kernel):
    kernel.run("scale = 3\ndef triple(x):\n    return scale * x")
    reply = kernel.run("%%ranks 4 --push triple,scale --pull result\nresult = triple(rank)")
    assert (reply.error, reply.text) == ("", "")
    assert kernel.run("result").text == "[0, 3, 6, 9]"


def test_a_name_known_only_in_the_notebook_brings_the_hint(kernel):
    kernel.run("secret = 1")
    reply = kernel.run("%%ranks 4\nsecret + rank")
    assert "all ranks failed at cell line 2 `secret + rank`: NameError" in reply.error
    assert reply.error.endswith("add --push secret")


def test_an_error_keeps_the_variables_of_ranks_and_notebook(kernel):
    kernel.run("%%ranks 4\nkept = rank")
    kernel.run("kept_here = 5")
    assert "ZeroDivisionError" in kernel.run("%%ranks 4\nif rank == 1:\n    1 / 0").error
    assert kernel.run("%%ranks 4 --only 3\nkept").text == "rank 3 → 3\n"
    assert kernel.run("kept_here").text == "5"


def test_an_error_shows_the_learners_lines_only(kernel):
    reply = kernel.run("%%ranks 4\ndef half(x):\n    return x / 0\nhalf(rank)")
    assert "return x / 0" in reply.traceback and "half(rank)" in reply.traceback
    assert "course_lib" not in reply.traceback
    assert reply.error.startswith("RankError: all ranks failed at cell line 3 `return x / 0`")


def test_a_deadlock_names_call_and_line_and_the_pool_heals(kernel):
    cell = "%%ranks 4 --timeout 1\nfrom course_lib import comm\nx = torch.ones(1)\nif rank == 2:\n    dist.recv(x, 1)\n"
    reply = kernel.run(cell + "else:\n    comm.all_reduce(x)")
    assert "ranks 0, 1, 3 wait in all_reduce #1, cell line 7" in reply.error
    assert "rank 2 waits in recv from 1, cell line 5" in reply.error
    assert reply.seconds < 1 + at_most(2)
    assert kernel.run("%%ranks 4\nrank").text.splitlines()[3] == "rank 3 → 3"


def test_an_interrupt_ends_an_endless_loop_and_is_raised(kernel):
    reply = kernel.run("%%ranks 4\nwhile True:\n    pass", interrupt_after=1.0)
    line = "interrupted; all ranks were ended, and their variables are gone; the next cell starts new ones"
    assert reply.error == f"KeyboardInterrupt: {line}"
    assert reply.traceback == reply.error
    assert reply.seconds < 1 + at_most(3)
    assert kernel.run("%%ranks 4\nrank").text.splitlines()[0] == "rank 0 → 0"


def test_output_is_live_while_the_ranks_run(kernel):
    kernel.run("%%ranks 2\npass")
    reply = kernel.run("%%ranks 2\nimport time\nfor i in range(3):\n    print(i)\n    time.sleep(0.2)")
    assert any("rank 0 │ 0" in text and "│ 2" not in text for text in reply.updates)
    assert reply.updates[-1] == ""
    assert reply.text.splitlines() == [f"rank {rank} │ {i}" for rank in range(2) for i in range(3)]


def test_another_number_of_ranks_starts_new_ones(kernel):
    kernel.run("%%ranks 2\nold = 1")
    reply = kernel.run("%%ranks 3\nrank")
    assert reply.text.splitlines() == [
        "3 new ranks replace the 2 from before, whose variables are gone",
        *(f"rank {rank} → {rank}" for rank in range(3)),
    ]
    assert "NameError" in kernel.run("%%ranks 2\nold").error


def test_a_rank_that_dies_between_two_cells_is_told(kernel):
    kernel.run("%%ranks 2\nimport os, threading\nif rank: threading.Timer(0.2, os.kill, (os.getpid(), 9)).start()")
    time.sleep(0.5)
    lines = kernel.run("%%ranks 2\nrank").text.splitlines()
    assert lines[0] == "rank 1 died after the last task; all ranks were restarted, their variables are gone"
    assert lines[1:] == ["rank 0 → 0", "rank 1 → 1"]
    assert "rank 1 died" in kernel.run("%%ranks 2\nimport os\nif rank: os.kill(os.getpid(), 9)").error
    assert kernel.run("%%ranks 2\nrank").text.splitlines() == ["rank 0 → 0", "rank 1 → 1"]  # said once


def test_very_much_output_is_cut_live_and_in_the_end(kernel):
    reply = kernel.run("%%ranks 2\nfor _ in range(20): print('x' * 10**6)")
    assert reply.error == "" and all(len(text) < 10_000 for text in reply.updates)
    assert len(reply.text) < 500_000 and "characters are left out here" in reply.text


def test_classes_of_a_cell_can_be_pickled(kernel):
    cell = "%%ranks 2\nimport pickle\nclass Point:\n    pass\ntype(pickle.loads(pickle.dumps(Point()))) is Point"
    assert kernel.run(cell).text == "rank 0 → True\nrank 1 → True\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "%%ranks: no number of ranks given; "),
        ("four", "%%ranks: N is 'four'; "),
        ("0", "ranks: world_size=0; a pool has 1 to 32 ranks; "),
        ("33", "ranks: world_size=33; a pool has 1 to 32 ranks; "),
        ("4 --only 4", "%%ranks: --only 4 with 4 ranks; ranks are 0 to 3; "),
        ("4 --only x", "%%ranks: --only is 'x'; "),
        ("4 --timeout -1", "%%ranks: --timeout -1; "),
        ("4 --timeout nan", "%%ranks: --timeout nan; "),
        ("4 --timeout soon", "%%ranks: --timeout is 'soon'; "),
        ("4 --push", "%%ranks: --push has no value; "),
        ("4 --push nowhere", "%%ranks: --push nowhere; "),
        ("4 --push a-b", "%%ranks: 'a-b' is no list of names; "),
        ("4 --device tpu", "%%ranks: --device tpu; "),
        ("4 --fast yes", "%%ranks: unknown option --fast; "),
        ("4 'open", "%%ranks: No closing quotation; "),
    ],
)
def test_a_wrong_first_line_is_one_line_and_costs_nothing(kernel, line, message):
    kernel.run("untouched = 7")
    reply = kernel.run(f"%%ranks {line}\nrank")
    assert reply.error.startswith(f"ValueError: {message}")
    assert "\n" not in reply.error
    assert reply.traceback == reply.error
    assert kernel.run("untouched").text == "7"


@pytest.mark.parametrize("limit", ["inf", "1e308"])
def test_a_cell_may_run_without_a_limit(kernel, limit):
    assert kernel.run(f"%%ranks 2 --timeout {limit}\nrank").text.endswith("rank 0 → 0\nrank 1 → 1\n")


def test_a_missing_pull_is_one_line(kernel):
    reply = kernel.run("%%ranks 2 --pull nothing\nx = 1")
    assert "%%ranks --pull: nothing is not defined on the ranks; " in reply.error


def test_a_syntax_error_is_shown_before_any_rank_runs(kernel):
    assert kernel.run("%%ranks 2\nx = (").error.startswith("SyntaxError")


TUTORIAL = """%%ranks 2
import os
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
print(os.environ["LOCAL_RANK"], model.module.weight.grad.sum().item())
dist.destroy_process_group()"""


def test_a_script_of_a_tutorial_pasted_into_a_cell_runs_twice(kernel):
    for _ in range(2):
        reply = kernel.run(TUTORIAL)
        assert (reply.error, reply.text.splitlines()[1:]) == ("", ["rank 0 │ 0 8.0", "rank 1 │ 1 8.0"])


def test_the_switch_is_said_and_set_and_a_wrong_word_is_one_line(kernel):
    assert kernel.run("%device").text == "ranks compute on cpu\n"
    wrong = kernel.run("%device gpu")
    assert (
        wrong.traceback
        == "ValueError: ranks: device='gpu'; a rank computes on cpu or cuda; choose one of them; "
        + ("which GPU a rank has follows from its number")
    )
    assert kernel.run("%device cuda").text == "ranks compute on cuda\n"
    assert "torch sees no GPU" in kernel.run("%%ranks 2\nrank").error
    assert kernel.run("%device cpu\nimport os\nos.environ['COURSE_LIB_DEVICE']").text.startswith(
        "ranks compute on cpu\n"
    )
    assert kernel.run("%%ranks 2\nstr(device)").text == "rank 0 → 'cpu'\nrank 1 → 'cpu'\n"


def test_an_allocation_that_is_not_there_is_one_line(kernel):
    said = {
        "%attach": "ValueError: %attach: no per_node; it is the number of ranks on each node; ",
        "%attach ranks=4": "ValueError: %attach: ranks=4; it takes per_node, nodes, job and srun; ",
        "%attach per_node=2": "ValueError: attach: this notebook runs in no Slurm job; ranks come from a job's nodes; ",
    }
    for code, start in said.items():
        reply = kernel.run(code)
        assert reply.traceback.startswith(start) and "\n" not in reply.traceback
    assert kernel.run("%detach").error == ""
