"""Faults of code on three ranks, the same for a function and for a cell: `rank`, `torch` and `dist` are there."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "nothing"
VARIABLES = "the ranks' variables"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Code, the call's limit, and what is expected; `result` is what a function returns and a cell pulls."""

    name: str
    done: str
    code: str
    said: str
    lost: str = NOTHING
    limit_s: float = 20.0
    within_s: float = 3.0


FAULTS = (
    Fault(
        name="raise",
        done="rank 1 raises, the others wait for it",
        code="if rank == 1:\n    raise KeyError('boom')\ndist.barrier()",
        said=r"^RankError: rank 1 failed at cell line \d+.*: KeyError: 'boom'; ranks 0, 2 wait in barrier.*restarted",
        lost=VARIABLES,
        within_s=4.0,
    ),
    Fault(
        name="SIGKILL",
        done="rank 1 is killed, the others wait for it",
        code="import os\nif rank == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()",
        said=r"^RankError: rank 1 died \(its process ended by SIGKILL: .*\).*restarted",
        lost=VARIABLES,
        within_s=4.0,
    ),
    Fault(
        name="SIGSTOP",
        done="rank 1 is stopped; limit 1 s",
        code="import os\nif rank == 1:\n    os.kill(os.getpid(), 19)",
        said=r"^RankTimeout: not finished after 1 s: rank 1 did not answer: its process was stopped by a signal",
        lost=VARIABLES,
        limit_s=1.0,
        within_s=4.0,
    ),
    Fault(
        name="sys.exit",
        done="rank 1 calls sys.exit(3)",
        code="import sys\nif rank == 1:\n    sys.exit(3)",
        said=r"^RankError: rank 1 failed at cell line \d+.*: SystemExit: 3$",
    ),
    Fault(
        name="os._exit",
        done="rank 1 calls os._exit(0)",
        code="import os\nif rank == 1:\n    os._exit(0)",
        said=r"^RankError: rank 1 died",
        lost=VARIABLES,
    ),
    Fault(
        name="fork",
        done="rank 1 forks, both processes go on to the end",
        code="import os, time\nif rank == 1 and os.fork():\n    time.sleep(0.5)",
        said=r"^RankError: ranks: process \d+, which rank 1 forked, answered task \d+ as well; .*os\._exit\(0\)",
        lost=VARIABLES,
    ),
    Fault(
        name="memory limit",
        done="rank 1 may have no more memory and asks for 10 GB",
        code=(
            "import resource\nif rank == 1:\n"
            "    resource.setrlimit(resource.RLIMIT_AS, (2**33, resource.RLIM_INFINITY))\n    bytes(10**10)"
        ),
        said=r"^RankError: rank 1 failed at cell line \d+.*: MemoryError",
    ),
    Fault(
        name="hung receive",
        done="rank 0 receives what nobody sends; limit 1 s",
        code="if rank == 0:\n    dist.recv(torch.ones(1), 1)",
        said=r"^RankTimeout: not finished after 1 s: rank 0 waits in recv from 1, cell line \d+; all ranks were",
        lost=VARIABLES,
        limit_s=1.0,
    ),
    Fault(
        name="hung in C code",
        done="rank 1 holds the interpreter lock; limit 1 s",
        code="if rank == 1:\n    sum(range(10**11))",
        said=r"^RankTimeout: not finished after 1 s: rank 1 still runs at cell line \d+",
        lost=VARIABLES,
        limit_s=1.0,
        within_s=4.0,
    ),
    Fault(
        name="mismatched collective",
        done="the ranks reduce tensors of different lengths",
        code="from course_lib import comm\ncomm.all_reduce(torch.ones(1 + rank))",
        said=r"^RankError: all ranks failed .*ValueError: all_reduce:",
    ),
    Fault(
        name="groups that differ",
        done="rank 0 calls all_reduce with another group; limit 1 s",
        code=(
            "one, all = dist.new_group([0, 1]), dist.new_group([0, 1, 2])\n"
            "dist.all_reduce(torch.ones(1), group=all if rank else one)"
        ),
        said=r"^RankTimeout: .*these groups differ",
        lost=VARIABLES,
        limit_s=1.0,
    ),
    Fault(
        name="unpicklable result",
        done="the result is a lock",
        code="import threading\nresult = threading.Lock()",
        said=r"^RankError: all ranks failed.*TypeError: cannot pickle '_thread.lock' object$",
    ),
    Fault(
        name="huge print",
        done="rank 1 prints 50 times 1 MB",
        code="if rank == 1:\n    for _ in range(50):\n        print('x' * 10**6)",
        said=r"^rank 1 │ … 49,\d{3},\d{3} characters are left out here …$",
        within_s=10.0,
    ),
    Fault(
        name="huge result",
        done="rank 1 returns 500 MB; limit 0.3 s",
        code="result = bytes(5 * 10**8 if rank == 1 else 1)",
        said=r"^RankTimeout: not finished after 0.3 s: rank 1 ",
        lost=VARIABLES,
        limit_s=0.3,
        within_s=5.0,
    ),
    Fault(
        name="late thread",
        done="a thread that an earlier task left running prints",
        code=(
            "import threading, time\nif 'late' not in vars(threading):\n    threading.late = threading.Thread("
            "target=lambda: [(time.sleep(0.05), print('late')) for _ in range(20)])\n    threading.late.start()\n"
            "else:\n    time.sleep(0.3)"
        ),
        said=r"^rank 0: what a thread or process of an earlier task said is left out",
    ),
)
