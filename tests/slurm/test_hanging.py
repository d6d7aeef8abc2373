"""A job that hangs on two nodes: lesson 12's own lines look at each rank from beside."""

from __future__ import annotations

import re

from tools.lesson import cells
from tools.paths import ROOT

LESSON = ROOT / "notebooks/src/12_on_the_cluster.py"
SCRIPT = ROOT / "notebooks/scripts/12_stands_still.py"
JOB = f"""\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --output=hanging.out
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d \\
    --rdzv-endpoint="$first_node:$((10000 + SLURM_JOB_ID % 20000))" {SCRIPT} .
"""
HANGS_S = 90.0  # torchrun on two nodes, and six steps


def of_lesson():
    """What stands in its one block of shell."""
    text = "\n".join(cell.source for cell in cells(LESSON) if cell.cell_type == "markdown")
    [block] = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return block


def test_py_spy_over_srun_names_the_line_of_each_rank(cluster, tmp_path):
    (tmp_path / "job.sh").write_text(JOB)
    job = cluster.run("sbatch", "--parsable", "job.sh", folder=tmp_path).stdout.strip()
    out = tmp_path / "hanging.out"
    try:
        cluster.wait_for(lambda: len(list(tmp_path.glob("trace_*"))) == 4, HANGS_S)
        assert "step 6" in out.read_text()
        looked = cluster.run("bash", "-c", f"JOB={job}\n{of_lesson()}", folder=tmp_path)
        places = re.findall(r"^(\d): +(evaluate|save) \(", looked.stdout, re.MULTILINE)
        assert sorted(place for _, place in places) == ["evaluate"] * 3 + ["save"], looked.stdout + looked.stderr
        assert {node for node, _ in places} == {"0", "1"}  # srun's labels: both nodes have answered
    finally:
        cluster.run("scancel", job, folder=tmp_path)
