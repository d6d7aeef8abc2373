"""Two runners as a learner meets them: `%%ranks` and ipyparallel's `%%px`, each in a shell without a screen.

ipyparallel runs at its fastest: no delays at start, quiet, no profile to read, cells through its direct view.
Run as a script with `ours` or `ipyparallel`, it prints the seconds from nothing to the first cell's results as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from course_lib import ranks

RANKS = 4
TRIVIAL = "x = 1"
ALL_REDUCE = "total = torch.ones(1); dist.all_reduce(total); assert int(total) == world_size"
JOIN = """
import torch, torch.distributed as dist
world_size = {ranks}
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=world_size)
"""


def new_shell() -> Any:
    """An IPython shell that keeps no history."""
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    return shell


class Ours:
    """The course's ranks."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        shell.run_line_magic("load_ext", "course_lib")

    def cell(self, code: str) -> None:
        """Run a cell on all ranks."""
        with redirect_stdout(StringIO()):
            self.shell.run_cell_magic("ranks", str(RANKS), code)

    def call(self) -> None:
        """Call a function that does nothing on all ranks."""
        ranks.run_ranks(int, RANKS)

    def ready(self) -> None:
        """Run the first cell that communicates."""
        self.cell(ALL_REDUCE)

    def restart(self) -> None:
        """End the processes, start new ones, communicate."""
        ranks.shutdown()
        self.ready()

    def stop(self) -> None:
        """End everything."""
        ranks.shutdown()


class IPyParallel:
    """ipyparallel's cluster of local engines."""

    def __init__(self) -> None:
        import ipyparallel
        from traitlets.config import Config

        quick = Config()
        quick.LocalEngineSetLauncher.delay = 0.0
        self.cluster = ipyparallel.Cluster(
            n=RANKS, delay=0.0, engines="local", log_level=40, load_profile=False, config=quick
        )
        self.cluster.start_cluster_sync()
        self.client = self.cluster.connect_client_sync()
        self.wait()

    def wait(self, gone: Collection[int] = ()) -> None:
        """Wait for all engines, not counting those that are `gone` but still on the controller's list."""
        while len(new := [number for number in self.client.ids if number not in gone]) < RANKS:
            time.sleep(0.005)
        self.view = self.client[new]

    def cell(self, code: str) -> None:
        """Run a cell on all engines."""
        self.view.execute(code, block=True)

    def call(self) -> None:
        """Call a function that does nothing on all engines."""
        self.view.apply_sync(int)

    def ready(self) -> None:
        """Join the engines in a group, as `%%ranks` finds them, and communicate."""
        self.view.scatter("rank", range(RANKS), flatten=True, block=True)
        self.cell(JOIN.format(ranks=RANKS, folder=tempfile.mkdtemp()) + ALL_REDUCE)

    def restart(self) -> None:
        """End the engines, start new ones, communicate."""
        gone = self.client.ids
        self.cluster.restart_engines_sync()
        self.wait(gone)
        self.ready()

    def stop(self) -> None:
        """End everything."""
        self.client.close()
        self.cluster.stop_cluster_sync()


def main(which: str) -> None:
    """Start one runner; print the seconds until a trivial cell and until a cell that communicates were done."""
    started = time.perf_counter()
    runner = Ours(new_shell()) if which == "ours" else IPyParallel()
    runner.cell(TRIVIAL)
    trivial_s = time.perf_counter() - started
    runner.ready()
    ready_s = time.perf_counter() - started
    runner.stop()
    print(json.dumps({"trivial_s": trivial_s, "ready_s": ready_s}))


if __name__ == "__main__":
    main(sys.argv[1])
