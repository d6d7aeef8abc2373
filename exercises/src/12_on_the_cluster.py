# %% [markdown]
# # Exercises 12: on the cluster
#
# [Lesson 12](../../notebooks/12_on_the_cluster.ipynb) stood before jobs that would not start, hung or were slow, and
# [12b](../../notebooks/12b_through_the_night.ipynb) before those that died or computed something wrong. Here you write the tools that
# answer, and half of them are files of your own that run without this course. If you have one hour, do 12.3, 12.7 and 12.9.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("12.1", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with what the course computes. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("12.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change.
#
# The folded cells under each exercise carry the points if a course is graded. If you work on your own, skip them: they say the same as the
# check above them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import json
import re
from math import sqrt

from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 12.1
#
# *Write · medium · useful · 25 minutes.* **You learn** which of Slurm's variables become which of PyTorch's, and what a node list says.
#
# `srun python train.py` starts your script once for each task, without torchrun. Slurm has told each of them who it is, but under names
# that PyTorch does not know, so `init_process_group` stops and asks for `RANK`. Here is what a task finds, the sixth of a job on three
# nodes:
#
# ```text
# SLURM_JOB_ID=7312645                  SLURM_PROCID=5      SLURM_LOCALID=1
# SLURM_JOB_NODELIST=node[01-02,07]     SLURM_NTASKS=10     SLURM_NODEID=1
# SLURM_TASKS_PER_NODE=4(x2),2          SLURM_JOB_NUM_NODES=3
# ```
#
# The job has node01, node02 and node07. The first two run four tasks each and the last one two, so this is task 1 on node02. Usually
# the tasks of a node have neighbouring numbers. But with `--distribution=cyclic` Slurm deals them out in turn, as one deals cards.

# %% [markdown]
# Write the few lines that a launcher without torchrun needs. They turn the variables of a task into these six, all of them text, so that
# `os.environ.update` takes them:
#
# | variable | what it says |
# | --- | --- |
# | `RANK`, `WORLD_SIZE` | which of all tasks this is, and how many there are |
# | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | which of its node's tasks this is, and how many the node has |
# | `MASTER_ADDR` | the first host of the list, where all of them meet for the **rendezvous** |
# | `MASTER_PORT` | 20000 plus the last four digits of the job's id, so that two jobs on a node do not meet |
#
# **Target:** the six variables of any task, and the list of all hosts, one name for each node. A node list may have several
# names with or without brackets, as in `gpu[09-10,14],login2`. The numbers keep the zeros in front.


# %% nbgrader={"grade": false, "grade_id": "12-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def from_slurm(variables):
    """Return two things: a dict of PyTorch's six variables, and a list of all hosts.

    variables: a dict of Slurm's own, as a task finds them; all values are text.
    """
    ### BEGIN SOLUTION
    hosts = []
    for name, inner in re.findall(r"([^,\[]+)(?:\[([^\]]+)\])?", variables["SLURM_JOB_NODELIST"]):
        if not inner:
            hosts.append(name)
        for numbers in inner.split(",") if inner else []:
            first, _, last = numbers.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts.append(f"{name}{number:0{len(first)}}")
    tasks = []
    for part in variables["SLURM_TASKS_PER_NODE"].split(","):
        number, _, often = part.rstrip(")").partition("(x")
        tasks += [number] * int(often or 1)
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_NTASKS"],
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": tasks[int(variables["SLURM_NODEID"])],
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(20000 + int(variables["SLURM_JOB_ID"]) % 10000),
    }, hosts
    ### END SOLUTION


check("12.1", from_slurm)
# hint("12.1")

# %% [markdown]
# ## 12.2
#
# *Predict · medium · core · 25 minutes.* **You learn** what an acceptance test must show before you believe that a cluster is healthy.
#
# You have been given some nodes, and before you train you run `all_reduce_perf` of nccl-tests on all of their GPUs. It prints two
# bandwidths. The **algorithm bandwidth**, algbw, is the size of the tensor over the time. The **bus bandwidth**, busbw, is what a link
# of a ring has carried in that time, and between nodes a link is all cards of a node together. Only busbw can be compared with a data sheet. But first you have to know what it
# should be, so predict it.

# %% nbgrader={"grade": false, "grade_id": "12-2-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
cluster = given("12.2", GRADE_SEED)
print(f"{cluster.nodes} nodes with {cluster.gpus} GPUs and {cluster.cards} network cards each")
print(f"a card carries {cluster.gbit} Gbit/s in each direction")
print(f"the test reduces a tensor of S = {cluster.S:,} bytes on all GPUs")
print(f"an ill card has come up at {cluster.slow_gbit} Gbit/s")
print(f"last night's test of the same size took {cluster.seen_ms} ms")

# %% [markdown]
# NCCL lays one ring over all GPUs for each card of a node. Each ring leaves every node by its own card and gets an equal part of the tensor,
# and all rings run at the same time. NVLink inside a node is faster than all cards together, and the tensor is so large that latency does
# not count. GB are of 10⁹ bytes, as nccl-tests counts them.
#
# | name | number to give |
# | --- | --- |
# | `card_gb` | GB/s of one card |
# | `factor` | busbw over algbw, for an all-reduce on all GPUs |
# | `busbw_gb`, `algbw_gb` | what the test prints if all is well |
# | `time_ms` | milliseconds of that all-reduce |
# | `one_card_gb` | busbw if NCCL finds only one card of each node, because a variable names just that one |
# | `slow_gb` | busbw if all cards are used, and one card of one node is the ill one |
# | `pair_gb` | algbw of a test with one GPU on each of two nodes, whose only ring uses the ill card |
# | `seen_gb` | busbw of last night's test |
# | `seen_cards` | how many cards of a node have carried it, if all that did were healthy; it comes out near a whole number |

# %% nbgrader={"grade": false, "grade_id": "12-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
nodes, gpus, cards, gbit, S, slow_gbit, seen_ms = cluster
### BEGIN SOLUTION
n = nodes * gpus
card_gb = gbit / 8
factor = 2 * (n - 1) / n
busbw_gb = cards * card_gb
algbw_gb = busbw_gb / factor
time_ms = S / 1e6 / algbw_gb
one_card_gb = card_gb
slow_gb = cards * slow_gbit / 8
pair_gb = slow_gbit / 8
seen_gb = S / 1e6 / seen_ms * factor
seen_cards = seen_gb / card_gb
### END SOLUTION
bandwidths = ...
check("12.2", bandwidths, seed=GRADE_SEED)
# hint("12.2")

# %% [markdown]
# ## 12.3
#
# *Write · hard · core · 40 minutes.* **You learn** to find, among many ranks that wait, the one for which they wait.
#
# Four GPUs stand still. The **flight recorder** of `torch.distributed` has noted each rank's last collectives, and a thread of yours has
# written what `_dump_fr_trace()` returns into a file, one for each rank. Such a file is a pickle, and all of them are read already: your
# function is given a list with what `pickle.loads` makes of each, a dict. You need only its `entries`, a list with the oldest call first,
# and this is one entry:
#
# ```text
# {"process_group": ("1", "mesh_tp"),    the group's name, and a description
#  "collective_seq_id": 14,              which of this group's collectives it is
#  "profiling_name": "gloo:all_reduce",  the operation
#  "input_sizes": [[1024]],
#  "retired": False,                     whether it has come back
#  "state": "scheduled",                 over gloo it is never anything else
#  "frames": [{"filename": "/.../site-packages/torch/...", "line": 3245, ...},
#             {"filename": "/project/run/model.py", "line": 57, ...}, ...]}
# ```
#
# `frames` is the stack, the innermost call first: some lines of torch, then your own files. A rank's recorder is a ring buffer and keeps
# the last entries only, not the same number on each rank. But of each of its groups it has kept one call at least. Nor are all dumps from
# the same second: a rank may have gone on before it wrote its own, and have forgotten a call in which others wait in theirs. It has made
# that call if it has a later one of the same group.

# %% [markdown]
# Write the tool that reads them. A call that all members of its group have made alike is no problem, even if it has not come back
# yet. Otherwise one rank strays, in one of three ways:
#
# | how | what has happened | the operation | the place |
# | --- | --- | --- | --- |
# | `"missing"` | others wait in a call that this rank has not made, and it waits nowhere itself | that of a call in which others wait for it | where this rank made its last call, in whichever group |
# | `"operation"` | it has called another operation than most of its group | what it has called itself | where it has done so |
# | `"size"` | the same operation, with another size than most have | what it has called itself | where it has done so |
#
# With several groups most ranks that wait are victims. If rank 3 does not come to its tp group, rank 2 waits for it there, so rank 2 does
# not come to its dp group either, and rank 0 waits for rank 2. The stray is rank 3, even if that dp call is number 7 and the tp call number
# 14: each group counts its own, so numbers of two groups say nothing about which came first.
#
# `groups` knows each group by its name, `process_group[0]`. All groups of tp share a description, so do not go by that. One rank strays
# at most, and in one way, so you may look through the groups in any order. It calls something else only in a group of four or more. In
# a group of two nobody could say which of them is the odd one.
#
# **Target:** `None` if no rank strays, else four things: how, the rank, the operation as `profiling_name` has it, and the place as
# `"file:line"`, of the first frame that is not in `site-packages`.


# %% nbgrader={"grade": false, "grade_id": "12-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def find_stray(dumps, groups):
    """Return None, or how a rank strays, which one, its operation and a place as "file:line".

    dumps: a list of what the ranks have recorded, as dicts, rank 0 first.
    groups: for each group's name a list of its ranks.
    """

    ### BEGIN SOLUTION
    def place(entry):
        frame = next(one for one in entry["frames"] if "site-packages" not in one["filename"])
        return f"{frame['filename']}:{frame['line']}"

    waiting = [any(not entry["retired"] for entry in dump["entries"]) for dump in dumps]
    for name, members in groups.items():
        calls = {
            rank: {
                entry["collective_seq_id"]: entry
                for entry in dumps[rank]["entries"]
                if entry["process_group"][0] == name
            }
            for rank in members
        }
        for number in {n for rank in members for n in calls[rank] if not calls[rank][n]["retired"]}:
            made = {rank: calls[rank][number] for rank in members if number in calls[rank]}
            for rank in members:
                if rank not in made and not waiting[rank] and max(calls[rank]) < number:
                    missed = next(iter(made.values()))["profiling_name"]
                    return "missing", rank, missed, place(dumps[rank]["entries"][-1])
            for how, field in (("operation", "profiling_name"), ("size", "input_sizes")):
                values = [entry[field] for entry in made.values()]
                usual = max(values, key=values.count)
                for rank, entry in made.items():
                    if len(made) == len(members) and entry[field] != usual:
                        return how, rank, entry["profiling_name"], place(entry)
    return None
    ### END SOLUTION


check("12.3", find_stray)
# hint("12.3")

# %% [markdown]
# ## 12.4
#
# *Own file · medium · useful · 30 minutes.* **You learn** to ask of a trace which collective makes a step longer. It need not be the one that takes longest.
#
# In 08.11 you profiled a step on CPUs. On a GPU the same `torch.profiler` writes more. There the CPU only launches kernels, and these run
# later, in **streams**. What counts is what the GPU did. A collective of NCCL is a kernel as well, and it costs a step little as long as
# another stream computes. The rest of it is **exposed communication**.
#
# Here are four events of such a trace, as they stand under `traceEvents`. Times are in microseconds:
#
# ```text
# {"ph": "X", "cat": "kernel", "tid": 20, "ts": 5000100.0, "dur": 1104.2,
#  "name": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ...}
# {"ph": "X", "cat": "kernel", "tid": 7, "ts": 5000060.0, "dur": 540.5,
#  "name": "nvjet_tst_128x256_64x4_TNT", ...}
# {"ph": "X", "cat": "cpu_op", "tid": 1, "ts": 5000040.0, "dur": 1194.2,
#  "name": "aten::mm", ...}
# {"ph": "X", "cat": "gpu_memcpy", "tid": 7, "ts": 5001120.3, "dur": 20,
#  "name": "Memcpy HtoD (Pinned -> Device)", ...}
# ```

# %% [markdown]
# In these traces collectives are the kernels whose name begins with `ncclDevKernel_`. (Some versions of NCCL, and AMD's, name them
# otherwise: look into yours first.) What follows, up to the next character that is no letter, is the collective's name: here `AllGather`. The GPU computes while any other event with `cat` equal to `kernel` runs. Copies do not count,
# nor does what the CPU did, nor an event whose `cat` is `gpu_user_annotation`. Events come in any order, and those without `"ph": "X"` have no duration.
#
# A collective's name is exposed while at least one collective of this name runs and no kernel computes. Two collectives of different
# names that run at the same time do not hide each other. One that waits for a late rank is exposed, too; 12.8 finds that rank.
#
# Write a script that reads traces. Started by `python script.py FOLDER`, it opens every file of the folder whose name ends in `.json`, and no
# other. Each is a dict, as `export_chrome_trace` has written it, with its events under `traceEvents`. The script prints a line for each
# collective's name in it: the file, the name, and the exposed microseconds of the whole file with a digit behind the point. A name that is
# never exposed has a line, too. The most exposed name of a file comes first, so you know where to begin.
#
# ```text
# rank3.json ReduceScatter 840.9
# rank3.json AllGather 76.3
# ```
#
# **Target:** the lines of each file are right, in this order. The script needs nothing but Python's standard library, so it also runs on a
# cluster's login node. Point it at the traces of your own run.
#
# To start it yourself, run `save_script("12.4", exposed)`. It puts two traces beside your file.

# %% nbgrader={"grade": false, "grade_id": "12-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
exposed = """
import json
import re
import sys
from pathlib import Path


### BEGIN SOLUTION
def exposed_us(events):
    # Exposed microseconds by the collectives' names: a walk along all edges, with a count of what is open.
    edges, computing = {}, []
    for event in events:
        if event["ph"] != "X" or event["cat"] != "kernel":
            continue
        found = re.match("ncclDevKernel_([A-Za-z]+)", event["name"])
        into = edges.setdefault(found[1], []) if found else computing
        own = "collective" if found else "computing"
        into += [(event["ts"], own, 1), (event["ts"] + event["dur"], own, -1)]
    exposed = {}
    for name, mine in edges.items():
        running, total, before = {"collective": 0, "computing": 0}, 0.0, 0.0
        for time, own, change in sorted(mine + computing):
            if running["collective"] > 0 and running["computing"] == 0:
                total += time - before
            running[own] += change
            before = time
        exposed[name] = total
    return exposed


### END SOLUTION
def main(folder):
    ### BEGIN SOLUTION
    for path in sorted(Path(folder).glob("*.json")):
        found = exposed_us(json.loads(path.read_text())["traceEvents"])
        for name in sorted(found, key=found.get, reverse=True):
            print(path.name, name, round(found[name], 1))
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("12.4", exposed)
# hint("12.4")

# %% [markdown]
# ## 12.5
#
# *Write · medium · core · 30 minutes.* **You learn** to say how fast a run is from what it has written itself, and how much of its time was of use.
#
# A run writes a line of JSON for each event, and all ranks write into the same file. Here are some lines of one:
#
# ```text
# {"t": 1012.4, "event": "start", "rank": 0, "resumed_at": 0}
# {"t": 1041.0, "event": "step", "rank": 1, "step": 1, "step_s": 9.81, "tokens": 262144}
# {"t": 1041.0, "event": "step", "rank": 0, "step": 1, "step_s": 9.70, "tokens": 262144}
# {"t": 1071.9, "event": "checkpoint", "step": 5, "seconds": 3.1}
# {"t": 1098.2, "event": "st
# {"t": 1131.7, "event": "start", "rank": 0, "resumed_at": 5}
# ```
#
# In the fifth line the run was killed. It went on from its last checkpoint, so the steps after 5 stand there twice: they were made, lost,
# and made again.

# %% [markdown]
# | | what is asked |
# | --- | --- |
# | **throughput** | tokens a second: all tokens over all seconds of the steps that count |
# | **MFU** | the model's own operations at this throughput, six for each parameter and token, as a share of the dense peak of all GPUs |
# | **goodput** | seconds of all steps that were not lost, as a share of the time from the file's first line to its last |
#
# - A step takes as long as it does on its slowest rank. `tokens` are those of the whole batch, on each line.
# - A start at step n loses all later steps that were made before, whether they are made again or not. Of a step that was made twice the
#   last time counts. Rank 0 alone writes of a start, and a line that was cut is none.
# - For the throughput, the first `warm_up` steps after **each** start do not count, since they compile and fill caches. For the goodput
#   they do: they have trained.
# - The data sheet advertises its TFLOP/s with sparsity, as most of them do. The dense peak is half of that.
#
# **Target:** the three numbers, MFU and goodput as shares between 0 and 1.


# %% nbgrader={"grade": false, "grade_id": "12-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def speed(lines, parameters, gpus, sheet, warm_up):
    """Return three numbers: tokens a second, MFU and goodput.

    lines: a list of strings. parameters: of the model. sheet: TFLOP/s of a GPU on its
    data sheet, with sparsity. warm_up: so many steps after each start do not count.
    """
    ### BEGIN SOLUTION
    steps, times, first = {}, [], 0
    for text in lines:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        times.append(line["t"])
        if line["event"] == "start":
            first = line["resumed_at"]
            steps = {number: step for number, step in steps.items() if number <= first}
        elif line["event"] == "step":
            number = line["step"]
            before = steps.get(number, (0, 0.0, 0))
            steps[number] = (line["tokens"], max(before[1], line["step_s"]), number - first)
    counted = [step for step in steps.values() if step[2] > warm_up]
    tokens_per_s = sum(step[0] for step in counted) / sum(step[1] for step in counted)
    mfu = 6 * parameters * tokens_per_s / (gpus * sheet / 2 * 1e12)
    goodput = sum(step[1] for step in steps.values()) / (times[-1] - times[0])
    return tokens_per_s, mfu, goodput
    ### END SOLUTION


check("12.5", speed)
# hint("12.5")

# %% [markdown]
# ## 12.6
#
# *Own file · hard · useful · 45 minutes.* **You learn** to write checkpoints that a kill cannot spoil, and to end a run in time when Slurm says so.
#
# A job on a cluster ends in one of three ways. It is done; or its time is up, and Slurm sends it a signal some seconds before; or it is
# killed, in the middle of whatever it is doing, and perhaps that is the writing of a checkpoint. Write a script for `torchrun` that
# survives all three.
#
# The check starts your script **twice**. Both starts get the same folder as an argument. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict at the beginning |
# | `batches` | pairs `(x, y)` of all 8 rows of a batch, one for each step |
# | `rate` | AdamW's rate |
# | `every` | a checkpoint is due after each step whose number this divides |
# | `keep` | so many checkpoints are kept, the newest ones |
# | `ends` | how the first start ends; only the functions that are given look there |
#
# Three functions are given. `train` makes one step, and steps count from 1. `cluster` plays Slurm: it sends rank 1 a signal, either before
# the group is there or in the middle of a step. `write` is `torch.save` on rank 0, but all ranks call it, since in one case all of them
# are killed there, and half a file is left. It also prints the number that the file system gives the file, its inode.

# %% [markdown]
# - **Names.** The checkpoint after step 4 is `checkpoints/step_4.pt`, a dict with `step`, `weights` and `optimizer`. Whatever stands there
#   under such a name is whole at all times. There is a whole one as long as there was one before.
# - **Going on.** A start goes on from the newest checkpoint, if there is one.
# - **Keeping.** In the end the folder `checkpoints` holds the newest `keep` of them, and nothing else.
# - **Signals.** SIGUSR1 or SIGTERM may come to any rank, at any time from the first line of `main` on. All ranks finish the step in
#   which it came, or the first one of this start if it came before, write a checkpoint after it, and end with status 0.
#
# **Target:** after both starts the last checkpoint has one device's weights after all steps, and no step was made once more than it had to be.
#
# To start it yourself, run `save_script("12.6", survivor)`. Start the file twice.

# %% nbgrader={"grade": false, "grade_id": "12-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
survivor = """
import os
import re
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def make_model():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).double()


def train(model, optimizer, folder, task, step):
    # One step on this rank's rows, with the ranks' average of the gradients.
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y = (part.chunk(ranks)[rank] for part in task["batches"][step - 1])
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    cluster(folder, task, step)
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad.copy_(part.view_as(p) / ranks)
    optimizer.step()


def cluster(folder, task, step):
    # Slurm before the time limit: rank 1 gets a signal, once.
    ends, sent = task["ends"], f"{folder}/sent"
    if ends["signal"] and ends["step"] == step and os.environ["RANK"] == "1" and not os.path.exists(sent):
        open(sent, "w").close()
        os.kill(os.getpid(), getattr(signal, ends["signal"]))


def write(folder, task, state, path):
    # torch.save on rank 0; every rank calls it. In one case the whole job is killed meanwhile, once.
    ends, killed = task["ends"], f"{folder}/killed"
    dies = not ends["signal"] and ends["step"] == state["step"] and not os.path.exists(killed)
    if dist.get_rank() == 0:
        torch.save(state, path)
        print(f"step {state['step']}: file {os.stat(path).st_ino} is {path}")
    if dies:
        dist.barrier()  # all have looked
        if dist.get_rank() == 0:
            open(killed, "w").close()
            os.truncate(path, os.path.getsize(path) // 2)
        dist.barrier()
        os._exit(0)


def main(folder):
    task = torch.load(f"{folder}/task.pt")
    os.makedirs(f"{folder}/checkpoints", exist_ok=True)
    ### BEGIN SOLUTION
    signals = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: signals.append(number))
    ### END SOLUTION
    cluster(folder, task, 0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    model.load_state_dict(task["weights"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    ### BEGIN SOLUTION
    names = f"{folder}/checkpoints/step_{{}}.pt"
    unfinished = f"{folder}/checkpoints/unfinished"

    def whole():
        found = map(re.compile(r"step_([0-9]+)[.]pt").fullmatch, os.listdir(f"{folder}/checkpoints"))
        return sorted(int(name[1]) for name in found if name)

    done = max(whole(), default=0)
    if done:
        state = torch.load(names.format(done))
        model.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()  # nobody writes before all have looked
    for step in range(done + 1, len(task["batches"]) + 1):
        train(model, optimizer, folder, task, step)
        stop = torch.tensor(len(signals))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop or step % task["every"] == 0:
            state = {"step": step, "weights": model.state_dict(), "optimizer": optimizer.state_dict()}
            write(folder, task, state, unfinished)
            if rank == 0:
                os.replace(unfinished, names.format(step))
                for old in whole()[: -task["keep"]]:
                    os.remove(names.format(old))
        if stop:
            break
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("12.6", survivor)
# hint("12.6")

# %% [markdown]
# ## 12.7
#
# *Own file · medium · core · 40 minutes.* **You learn** to go on in the middle of an epoch, with another number of GPUs, and to lose no row.
#
# A run on two GPUs was killed in the middle of its data, and goes on with four. Its weights come from the last checkpoint, as in 07.11.
# But which rows had it read by then? If each rank stores the state of its own `DataLoader`, four ranks find two states, and none of them fits.
# In the lesson 40 of 96 rows were lost this way, and no program complained. Write a sampler that loses none.
#
# The check starts your script **twice**, the second time on another number of processes. Both get the same folder as an argument. In it lies
# `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `rows` | how many rows there are, with the numbers 0 to `rows` - 1; this is no multiple of `batch` |
# | `seed` | epoch e has the order `torch.randperm(rows, generator=torch.Generator().manual_seed(seed + e))`, e counts from 0 |
# | `batch` | rows of a step on all ranks together, the same in both starts |
# | `every` | after each step whose number this divides there is a checkpoint; you write only the part of it that says where the data is |
# | `steps` | so many steps the run makes in all; they count from 1 |
# | `workers` | so many workers each rank's `DataLoader` has; they read ahead. `make_loader` makes it |
#
# All epochs behind each other make one long order, and each step takes its next `batch` rows, also where an epoch ends in the middle of
# them. The ranks share these evenly, in whichever way; `batch` can be divided by their number.

# %% [markdown]
# Every rank calls `train` for each of its steps, with the step's number and the rows that it has got from its loader. In the first start **the
# check kills all processes in the middle of such a step**, by SIGKILL, and does not say in which one. So no handler runs, no `finally`, and
# nothing is saved any more.
#
# What the second start needs has to be there before. After each step that `every` divides, when a run saves its weights, rank 0 saves the
# state of the data as `state.pt`, at most ten numbers. A start that finds this file goes on from there. Steps that were made after
# the last checkpoint are undone in the weights, so their rows are read again, and no others. Unlike in
# 12.6 nobody is killed while you save, so you need no rename here. In a run of your own you do.
#
# **Target:** in every step of both starts, all ranks together read just the rows that one process would have read in it that was never killed,
# and the second start begins with the step after the last checkpoint. The check does this twice: from 2 processes to 4 without workers,
# and from 4 to 2 with two workers each.
#
# To start it yourself, run `save_script("12.7", resumed_rows)`. Nobody kills it then, so let `train` do it in step 12, with
# `os.kill(os.getpid(), 9)`. Take this line out again before you start the file on 4. The files `rank*` list the rows of each step. Delete
# them and `state.pt` before you begin once more, or the script takes its run for finished.

# %% nbgrader={"grade": false, "grade_id": "12-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
resumed_rows = """
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    # Row n holds the number 1000 + n.
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, number):
        return 1000 + number


def make_loader(task, sampler):
    # Workers ask the sampler for the next batches while this one is trained on.
    workers = task["workers"]
    context = "fork" if workers else None
    rows = Rows(task["rows"])
    return DataLoader(rows, batch_sampler=sampler, num_workers=workers, multiprocessing_context=context)


def train(folder, step, rows):
    # One step, which only notes this rank's rows. By sys.audit the check sees in which step it is.
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with open(f"{folder}/rank{rank}_of_{ranks}.txt", "a") as notes:
        print(step, *map(int, rows), file=notes)
    sys.audit("train.step", step)


### BEGIN SOLUTION
class Sampler:
    # This rank's rows of each step, from a step on.
    def __init__(self, task, done):
        self.task, self.done = task, done

    def order(self, epoch):
        dice = torch.Generator().manual_seed(self.task["seed"] + epoch)
        return torch.randperm(self.task["rows"], generator=dice).tolist()

    def __iter__(self):
        rows, batch = self.task["rows"], self.task["batch"]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for step in range(self.done, self.task["steps"]):
            places = range(step * batch + rank, (step + 1) * batch, ranks)
            yield [self.order(place // rows)[place % rows] for place in places]


### END SOLUTION
def main(folder):
    dist.init_process_group("gloo")
    rank, task, path = dist.get_rank(), torch.load(f"{folder}/task.pt"), f"{folder}/state.pt"
    state = torch.load(path) if os.path.exists(path) else None
    dist.barrier()  # rank 0 saves a new one only after all have looked
    ### BEGIN SOLUTION
    done = state["step"] if state else 0
    sampler = Sampler(task, done)
    for step, rows in enumerate(make_loader(task, sampler), start=done + 1):
        train(folder, step, rows)
        if rank == 0 and step % task["every"] == 0:
            torch.save({"step": step}, path)
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("12.7", resumed_rows)
# hint("12.7")

# %% [markdown]
# ## 12.8
#
# *Own file · medium · useful · 30 minutes.* **You learn** to find the rank that slows all others down, although every rank's steps take equally long.
#
# A GPU that is too warm runs at a lower clock. It is not dead, there is no error, and the run is a third slower than yesterday. A look at the
# step times does not tell which rank it is: in each step everybody waits for the slowest, so all of them have measured the same. What
# tells is each rank's **own work**, the seconds from the step's beginning to its first collective. The slow one is a **straggler**.
#
# Write a script for `torchrun` that watches a run. The check starts it on 4 and on 2 processes and gives it one argument, a folder. In it
# lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `own` | seconds of own work, a tensor of steps × ranks; a rank may look at its own column alone |
# | `window` | after so many steps the watchdog judges; what is left over at the end is no window |
# | `factor` | above which a rank is slow |
#
# So that nothing depends on how busy your machine is, nobody really works here: `measure` gives this rank the seconds of a step.

# %% [markdown]
# A rank is slow in a window if the **median** of its own seconds there is more than `factor` times the smallest median of all ranks in the same
# window. So nobody is accused for one slow step, for noise, or if all ranks are slower together.
#
# What does it cost? A step lasts as long as the own work of its slowest rank. The cost of a window is the time of all its steps, over the
# time that they would take without the slow ranks. If nobody is slow, this is 1.
#
# Rank 0 saves a dict as `answer.pt`: under `slow` a list with a list of ranks for each window, and under `cost` a list of numbers.
#
# **Target:** both are right, and in each window a rank makes one call of a collective, with its own seconds and no more.
#
# To start it yourself, run `save_script("12.8", watchdog)`.

# %% nbgrader={"grade": false, "grade_id": "12-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
watchdog = """
import sys

import torch
import torch.distributed as dist


def measure(task, step):
    # The seconds of this rank's own work in a step; steps count from 0.
    return task["own"][step, dist.get_rank()].item()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    steps = len(task["own"])
    ### BEGIN SOLUTION
    slow, cost, mine = [], [], []
    for step in range(steps):
        mine.append(measure(task, step))
        if len(mine) < task["window"]:
            continue
        found = [torch.empty(task["window"], dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(found, torch.tensor(mine, dtype=torch.float64))
        mine = []
        own = torch.stack(found)
        medians = own.median(dim=1).values
        is_slow = medians > task["factor"] * medians.min()
        slow.append(is_slow.nonzero().flatten().tolist())
        cost.append((own.amax(dim=0).sum() / own[~is_slow].amax(dim=0).sum()).item())
        if rank == 0 and slow[-1]:
            print(f"step {step}: {slow[-1]} slow, a step takes {cost[-1]:.2f} x as long")
    if rank == 0:
        torch.save({"slow": slow, "cost": cost}, f"{folder}/answer.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("12.8", watchdog)
# hint("12.8")

# %% [markdown]
# ## 12.9
#
# *Own file · medium · core · 30 minutes.* **You learn** to find by tools why a run stands still, before you read its code.
#
# A colleague writes: "For months it ran under DDP. Since I use `fully_shard` it stands still, always after the second step. The GPUs are
# busy, there is no error, and the loss was fine." Here is the script.


# %% nbgrader={"grade": false, "grade_id": "suspect-evaluates", "locked": true, "schema_version": 3, "solution": false, "task": false}
suspect_evaluates = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def make_model():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(8, 4)).double()


@torch.no_grad()
def evaluate(model, x, y):
    # The mean loss over all rows of the validation set.
    model.eval()
    loss = F.cross_entropy(model(x), y)
    model.train()
    return loss.item()


def main(folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    mesh = dist.init_device_mesh("cpu", (ranks,))
    for layer in model[:-1]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    metrics = []
    for step, (x, y) in enumerate(task["batches"], start=1):
        rows, targets = (part.chunk(ranks)[rank] for part in (x, y))
        F.cross_entropy(model(rows), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % task["every"] == 0 and rank == 0:
            metrics.append(evaluate(model, *task["validation"]))
            print(f"step {step}: validation loss {metrics[-1]:.4f}")
            if metrics[-1] > min(metrics):
                break  # it has begun to overfit
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save({"metrics": metrics, "weights": weights}, f"{folder}/answer.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

# %% [markdown]
# It is given a folder, and there `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which every process starts |
# | `batches` | pairs `(x, y)` of all 8 rows of a batch, one for each step |
# | `validation` | a pair `(x, y)` of 11 rows |
# | `every` | it evaluates after so many steps, here 2 |
# | `rate` | AdamW's rate |
#
# Run `save_script("12.9", suspect_evaluates)` to get it as a file, with a task, and start it by `torchrun --standalone --nproc-per-node 2`. It
# prints one loss, stands still, and ends after ten seconds, since it has told `init_process_group` to wait no longer. Before you read
# any further, ask the ranks where they are. In another terminal, `py-spy dump --pid PID` shows a process's stack. Without py-spy, let
# `faulthandler.dump_traceback_later(5)` be the first line of `main`. You will find both ranks in a *training* step, in the same line.
#
# Then start it with `TORCH_DISTRIBUTED_DEBUG=DETAIL` in its environment. Each rank says which call it is in, and which the other one.
# Believe a rank only what it says of *itself*. To compare, DETAIL calls a collective too, and here that has met another call of the other
# rank. So it reads numbers that mean something else, and names operations that stand nowhere in the script.
#
# Neither tool shows where the ranks parted. Only the flight recorder does. Let a thread write what `_dump_fr_trace()` returns after five
# seconds, as `watch` does in [lesson 12's script](../../notebooks/scripts/12_stands_still.py), and compare the last calls of both ranks
# and their `frames`. On one rank `evaluate` is among them. Why did the next calls fit all the same?

# %% [markdown]
# Then copy it into the cell below, in place of the line with `NotImplementedError`, and mend it.
#
# **Target:** on 2 and on 4 processes rank 0 saves in `answer.pt`, under `metrics`, the mean loss over all rows of the validation set each time it
# evaluates, and under `weights` the whole weights at the end. The run stops as soon as a loss is above the smallest one so far. All of
# this is as on one device, and the model stays cut by `fully_shard`. Whether every rank evaluates all rows or its share of them is up to you. Which is faster on 64 GPUs?

# %% nbgrader={"grade": false, "grade_id": "12-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
mended_evaluates = """
### BEGIN SOLUTION
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def make_model():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(8, 4)).double()


@torch.no_grad()
def evaluate(model, x, y):
    # The mean loss over all rows of the validation set.
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model.eval()
    outputs = model(x.tensor_split(ranks)[rank])
    model.train()
    loss = F.cross_entropy(outputs, y.tensor_split(ranks)[rank], reduction="sum")
    dist.all_reduce(loss)
    return loss.item() / len(x)


def main(folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    mesh = dist.init_device_mesh("cpu", (ranks,))
    for layer in model[:-1]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    metrics = []
    for step, (x, y) in enumerate(task["batches"], start=1):
        rows, targets = (part.chunk(ranks)[rank] for part in (x, y))
        F.cross_entropy(model(rows), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % task["every"] == 0:  # a forward gathers weights, so every rank makes it
            metrics.append(evaluate(model, *task["validation"]))
            if rank == 0:
                print(f"step {step}: validation loss {metrics[-1]:.4f}")
            if metrics[-1] > min(metrics):
                break  # it has begun to overfit
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save({"metrics": metrics, "weights": weights}, f"{folder}/answer.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
### END SOLUTION
"""

check("12.9", mended_evaluates)
# hint("12.9")

# %% [markdown]
# ## 12.10
#
# *Find the wrong number · easy · extra · 20 minutes.* **You learn** to check a famous table in a minute, and to plan checkpoints by it.
#
# Llama 3 405B was trained on 16,384 GPUs. For 54 days its authors counted each stop of the run: 466 in all, of which 47 were planned. Their
# [paper](https://arxiv.org/abs/2407.21783) lists the causes of the other 419 in table 5, and these lines have been quoted ever since. Here
# are its first five. One of the shares is wrong.

# %% nbgrader={"grade": false, "grade_id": "12-10-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
table = given("12.10", GRADE_SEED)
causes = ("faulty GPU", "HBM3 memory", "software bug", "switch or cable", "host maintenance")
print("line  cause              stops   share")
for line, row in enumerate(zip(causes, table.counts, table.printed, strict=True), start=1):
    print(f"{line:4}  {row[0]:17} {row[1]:6} {row[2]:6.1f} %")
print(f"\n{table.stops} stops in {table.days} days, {table.unexpected} of them not planned")
print(f"a smaller run would have {table.small_gpus} GPUs instead of {table.gpus:,}")
print(f"a checkpoint takes {table.write_s:g} s in which nothing is trained")

# %% [markdown]
# With `GRADE_SEED = 0` the table is the printed one. In a graded copy another line is the wrong one. In the paper thirteen shorter lines follow,
# and the counts of all eighteen add up to 419.
#
# If you write a checkpoint too often, you pay for writing. If you write too seldom, each stop undoes more, half an interval on
# average. **Young's interval** makes the sum of both small: √(2 · seconds of a checkpoint · seconds between two stops).
#
# | name | number to give; shares are between 0 and 1 |
# | --- | --- |
# | `wrong_line` | the line whose share does not fit the other ones |
# | `right_share` | what should stand there |
# | `fitting_count` | how many stops the printed share would be right for; it need not be whole |
# | `between_h` | hours between two unplanned stops |
# | `small_h` | the same for the smaller run, if its GPUs stop as often as these |
# | `gpu_years` | years of 365 days between two stops, if the large run had only one GPU |
# | `interval_s` | Young's interval for the large run, in seconds |
# | `lost` | what checkpoints and undone work cost at this interval, each as a share: δ/τ + τ/2M, with the interval τ, a checkpoint's seconds δ, and M seconds between two stops |

# %% nbgrader={"grade": false, "grade_id": "12-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
counts, printed, stops, unexpected, days, gpus, small_gpus, write_s = table
### BEGIN SOLUTION
off = [abs(100 * count / unexpected - share) for count, share in zip(counts, printed, strict=True)]
wrong_line = 1 + off.index(max(off))
right_share = counts[wrong_line - 1] / unexpected
fitting_count = printed[wrong_line - 1] / 100 * unexpected
between_h = days * 24 / unexpected
small_h = between_h * gpus / small_gpus
gpu_years = between_h * gpus / 24 / 365
interval_s = sqrt(2 * write_s * between_h * 3600)
lost = write_s / interval_s + interval_s / 2 / (between_h * 3600)
### END SOLUTION
reasons = ...
check("12.10", reasons, seed=GRADE_SEED)
# hint("12.10")

# %% [markdown]
# ## Where this leads
#
# You can say who a process is, what its wires should carry, for whom a job waits, what its steps pay for, how fast it is, and how it survives a
# kill. Take the files with you: `find_stray` and the script of 12.4 read what PyTorch writes on any cluster, and the sampler, the
# checkpoints and the watchdog belong into every training loop that runs for longer than a day.
