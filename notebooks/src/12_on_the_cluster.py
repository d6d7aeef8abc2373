# %% [markdown]
# # 12 · On the cluster: sixteen GPUs stand still
#
# Your OLMo 7B trained well on the laptop, for a few steps of a small likeness. Now it has four nodes of four GPUs, and the whole night. The log says `step 6`. Five minutes later it still says `step 6`. There is no error, and `nvidia-smi` shows every GPU at work, because a GPU that waits for others in NCCL looks busy.
#
# Sixteen GPUs stand still, and nobody says why. What do you look at, and in which order?
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace
from pathlib import Path

import torch

from course_lib import gauges, planner, predict, run_ranks, score, viz
from course_lib.costs import GiB, load_cluster
from course_lib.planner import Space, search
from course_lib.training import load_model

# %%
viz.plot_first_questions()

# %% [markdown]
# This page is the whole lesson, and you can print it. A job that is not well *hangs*, or is *slow*, or computes something *wrong*, or is *dead*. Each column has its questions in order, cheap ones first, and behind each question the tool that answers it. You will use most of them here, each on a job that really has the illness.
#
# You will be able to
# - read a job file line by line, and say who starts whom.
# - find the line of code for which a hanging job waits.
# - measure whether a cluster's wires are what they should be, and what of the communication is exposed.
# - let a job survive a dead rank and its time limit, and lose no row of the data.
# - predict OLMo 7B on your nodes before you queue for them.
#
# *One hour; the exercises come on top. No GPU, no Slurm and no root is needed.*
#
# <details><summary>Before you start</summary>You need data parallelism from lesson 03, FSDP from 06, and Young's formula from 08. Everything on this page ran on CPUs over gloo. What needs Slurm is run by <code>make test-slurm</code> on two nodes that it makes itself; NCCL did not run for this page, and sentences about it say so.</details>

# %% [markdown]
# ## Who starts whom?
#
# A job can hang before its first line. To know where, you have to know who starts whom. So we read the file that starts it, made by `python -m course_lib slurm job=olmo_7b_fsdp nodes=4 dp=16`.

# %%
from course_lib.cli.slurm import slurm_command

assert slurm_command(["job=olmo_7b_fsdp", "nodes=4", "dp=16"]) == 0

# %% [markdown]
# `sbatch` puts the file into Slurm's queue. When four nodes are free, Slurm runs it **once**, on the first of them. The lines with `#SBATCH` say what you ask Slurm for: how many nodes, for how long, and one *task* for each node.
#
# `srun` then starts that task on **all** nodes. The task is no training yet, it is `torchrun`. Each `torchrun` must find the other three, and for that they meet at one address, the first node and a port that is made from the job's number. This meeting is the **rendezvous**. Only when all four have come does each start a process for each of its GPUs, and tells it in environment variables who it is.
#
# | line | what for |
# | --- | --- |
# | `--signal`, `--max-restarts`, `--signals-to-handle`, `--requeue` | to go on after an end; we come to it |
# | `--shutdown-timeout=100` | so many seconds torchrun gives its ranks to write a checkpoint |
# | `status=$?`, and the block at the end | the status of the run, and whether time was all that was missing |
# | `--open-mode=append`, `--output=%x-%j.out` | one log, with the job's name and number, also after a restart |
# | `--kill-on-bad-exit=1` | if one node's task fails, Slurm ends the others |
# | `--rdzv-id`, `--rdzv-backend=c10d` | a name for this meeting, and PyTorch's own way to hold it |
#
# **Predict.** The nodes count from 0, and so do the GPUs of a node. Which `RANK` has GPU 1 of node 2, if the nodes keep their order?

# %%
predict(
    "RANK of GPU 1 on node 2, of four nodes with four GPUs",
    guess=None,
    answer=2 * 4 + 1,
    think="how many ranks the nodes before it have",
)
viz.plot_who_starts(nodes=4, gpus_per_node=4, rank=9)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Two nodes stand before it with four ranks each, so it is rank 9. Within its node it is 1, its `LOCAL_RANK`, and that is the number of the GPU to take. A script that takes `RANK` instead asks node 2 for its GPU 9, and there is none.
#
# Follow the variables down the tree. Slurm's are known to the task, torchrun's only to the ranks. If the ranks of your script need `SLURM_PROCID`, then somebody has left torchrun out, and `srun` starts the ranks itself. Kempner's OLMo jobs do so; then the script has to make `RANK` from `SLURM_PROCID` before `init_process_group` asks for it.
#
# One trap: torchrun numbers the nodes by itself, sorted by their names as words are. So `node10` stands before `node2`, whatever Slurm says. Look for rank 0's log where it is, and not where you expect it.
#
# </details>
#
# Now a job that has printed nothing since "Initializing" stands most often at one of three places. Is it in the queue? `squeue` says so. Has a `torchrun` not come to the rendezvous? Then the others wait for it, because `--nnodes` is a promise. Or are all ranks there, and cannot talk? Then the **interface** is often wrong, the network card on which a library listens. (And if it is none of them, look whether Python is still importing, from a slow shared disk.)
#
# > **To keep.** Slurm starts tasks, torchrun starts ranks. When a job prints nothing, ask which of the two has not come.

# %% [markdown]
# ## It hangs
#
# Our patient is [`scripts/12_stands_still.py`](scripts/12_stands_still.py), a training of 23 batches with everything left out but its messages. It needs PyTorch alone, and prepares three things of which you will see the use. One of its imports begins with an underscore: PyTorch may move it in another release.

# %%
viz.show_source(Path("scripts/12_stands_still.py"))

# %% [markdown]
# Read `main`. Each rank takes every fourth batch, adds up its loss with the others after each step, evaluates once at the end, and saves. There is a bug in it, and it is a common one. If you see it, keep it to yourself for five minutes: nobody sees it in a script of two thousand lines.
#
# We start it as one does on a cluster. With `--redirects 3` and `--log-dir` each rank writes into files of its own, so that sixteen ranks do not talk at once. The cell waits until no step was made for three seconds.

# %% varies="the process's numbers"
import socket
import subprocess
import sys
import time
from tempfile import mkdtemp

logs = Path(mkdtemp())
with socket.create_server(("", 0)) as free:
    port = free.getsockname()[1]
traces = logs / "traces"
traces.mkdir()
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
separate = ["--redirects=3", f"--log-dir={logs}"]
job = subprocess.Popen(
    [*torchrun, *separate, "scripts/12_stands_still.py", str(traces), str(port)], stderr=subprocess.DEVNULL
)


def log_of(rank, kind="stdout"):
    return next(logs.glob(f"*/attempt_0/{rank}/{kind}.log")).read_text()


while len([*traces.glob("trace_*")]) < 4 and job.poll() is None:
    time.sleep(0.2)
print(log_of(0))

# %% [markdown]
# Six steps, and then nothing. Look at the losses once more before you go on. Something is odd about the last one, and we come back to it.
#
# Nothing will come of waiting but an end: each group has a time limit, here two minutes, and then a hang looks like a death. torchrun then prints a table with the rank whose patience ended first, and that need not be the one at fault. So look while it hangs.
#
# **Where does each rank wait?** Three ways to ask, from the most to the least preparation. The script has registered Python's own `faulthandler`, so a signal lets a rank write where it is. It has started PyTorch's **debug server**, by which one address answers for all ranks, while they hang. And `py-spy` reads the stack of any Python process from outside, and needs no preparation at all, but the right to look into the process: as root, or as its owner where the system allows it.


# %% varies="a learner's folder"
import os
import re
import signal
from importlib.metadata import files
from urllib.request import urlopen


def own_lines(text):
    """Where the script's main thread is: function and line, the innermost first."""
    found = re.findall(
        r"12_stands_still.py\W+line (\d+) in (\w+)|(\w+) \(.*12_stands_still.py:(\d+)\)", text
    )
    return [
        f"{b or c}, line {a or d}"
        for a, b, c, d in found
        if "watch" not in (b, c) and "main" not in (b, c)
    ]


pids = [int(log_of(rank).split()[4]) for rank in range(4)]
for pid in pids:
    os.kill(pid, signal.SIGUSR2)
time.sleep(1)
print("by their signal: ", [own_lines(log_of(rank, "stderr"))[:1] for rank in range(4)])

page = urlopen(f"http://localhost:{port}/stacks").read().decode()
print("debug server:    ", [own_lines(part)[:1] for part in page.split("Rank ")[1:5]])

py_spy = next(file.locate() for file in files("py-spy") if file.name.startswith("py-spy"))
plain = {**os.environ, "CLICOLOR_FORCE": "0"}
looks = [[py_spy, "dump", "--pid", str(pid)] for pid in pids]
seen = [subprocess.run(look, env=plain, capture_output=True, text=True) for look in looks]
print("py-spy:          ", [own_lines(look.stdout)[:1] or look.stderr for look in seen])

# %% [markdown]
# All three agree. Ranks 0, 1 and 2 wait in `evaluate`, and rank 3 waits in `save`. So rank 3 is *ahead*. It has evaluated already, alone. But how can an all-reduce end for one rank, when the other three have not ended theirs?
#
# A stack cannot say. It knows where a rank is now, and nothing of how it came there. For that somebody must have kept a diary.
#
# PyTorch keeps one. The **flight recorder** holds the last two thousand collectives of each rank, with their numbers, sizes and lines of code. Over gloo it is always on. Our script wrote it to a file, one for each rank, when no step was made. `flight_calls` takes from each entry what we need.

# %%
import pickle

from course_lib.gauges import flight_calls

dumps = [pickle.loads((traces / f"trace_{rank}").read_bytes()) for rank in range(4)]
calls = [flight_calls(dump) for dump in dumps]
for call in calls[3]:
    print(call)

# %% [markdown]
# That is the diary of rank 3: six all-reduces that are done, and a barrier that is not. Each rank numbers its calls, and call 5 of one rank meets call 5 of the others. Within one group of ranks nothing else decides who meets whom, and this is the key to all that follows.
#
# **Predict.** In which call did the ranks part first? Not where they wait, but where one did something else than the others.

# %%
predict(
    "number of the first call in which not all ranks do the same",
    guess=None,
    answer=gauges.first_difference(calls).number,
    think="how many batches each rank has, and what each calls next",
)
viz.plot_calls(calls, title="The last calls of four ranks that stand still")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look along the columns. Up to call 5 all four stand in the same line. In call 6 all four call all-reduce, with the same size, and it is *done*. But ranks 0 to 2 called it from the loop, and rank 3 from `evaluate`. It had one batch less: 23 batches on four ranks are 6, 6, 6 and 5.
#
# So rank 3's score was added to the others' losses. Nothing hung and nothing was said, because the calls fit. That is why step 6 had an odd loss: it was no loss. In call 7 they do not fit any more, an all-reduce here and a barrier there, and everybody waits.
#
# The place of the hang is one call *after* the place of the bug. In a real training it may be a thousand calls after it.
#
# </details>
#
# > **To keep.** A stack says where a rank waits. The flight recorder says where the ranks parted, and that comes first.

# %% [markdown]
# PyTorch has a reader for these files too, `torchfrtrace`. Over gloo it needs a mend in version 2.13: gloo's dumps name no group, at which the reader stops with a `KeyError`. `write_for_torchfrtrace` writes the names. What does the reader say of our case, and whom does it accuse?

# %% varies="a learner's folder"
import shlex

gauges.write_for_torchfrtrace(traces, logs / "mended")
torchfrtrace = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
told = subprocess.getoutput(shlex.join([*torchfrtrace, "-p", "trace_", str(logs / "mended")]))
job.terminate()
job.wait()
print(re.search("error msg.*", told)[0].replace(", ", ",\n    "))

# %% [markdown]
# (`python -m course_lib.gauges.flight FOLDER` says in a terminal what our picture shows.) It finds call 7, and that a barrier met all-reduces. But it takes one rank's call for the right one and calls the three others the culprits. And of call 6 it says nothing, because there the operations agree, and it does not compare lines.
#
# That is no reason to leave it out. On a cluster of a thousand ranks it names the odd call in seconds. But it names a difference, not a cause.
#
# One tool is left, for when you can start the job again. With `TORCH_DISTRIBUTED_DEBUG=DETAIL` all ranks compare each call *before* they make it. **Before you run the cell**, say at which step it will stop.

# %% varies="the order in which ranks speak"
strict = subprocess.run(
    [*torchrun, "scripts/12_stands_still.py", str(logs)],
    env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    capture_output=True,
    text=True,
)
print(strict.stdout.splitlines()[-1])
own = r"\[rank(\d)\]: RuntimeError: Detected mismatch.*?Rank \1 is.*?SequenceNumber=(\d+).*?OpType=(\w+)"
for who, number, operation in sorted(set(re.findall(own, strict.stderr))):
    print(f"rank {who} is about to call {operation}, its number {int(number) + 1}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# It made step 6, and stopped before call 7, at once, and not after minutes of waiting. Each rank prints two halves, and here you see what ranks say of *themselves*. What they say of the other is not to be trusted: the comparison is a collective as well, and may have met another one. Call 6 fits in its operation and its size, and DETAIL compares no lines either. Besides it makes every call slower, so you start a short job with it, and not the long one.
#
# </details>
#
# | tool | before the hang you must have | it says | it cannot know |
# | --- | --- | --- | --- |
# | `py-spy dump --pid` | nothing, but the right to look | where a rank waits | how it came there |
# | `faulthandler.register` | one line | the same, in each rank's log | how it came there |
# | `start_debug_server` | one line, a free port | the same for all ranks, at one address | how they came there; over gloo its page of the recorder fails |
# | flight recorder | a line that writes it (NCCL: its watchdog) | all calls, in order, with their lines | why a rank called |
# | `torchfrtrace` | the files of all ranks | the first call that does not fit | who is right |
# | `DETAIL` | a new start, and time | the call that does not fit, at once | calls that fit by chance, and what the other rank did |
#
# The mend is that all ranks make equally many steps. `DistributedSampler` does so, by reading some rows twice, and 03.11 lets you write it without that.
#
# **Your turn.** Copy the script, mend it there, and start the copy in a terminal: `torchrun --standalone --nproc-per-node 4 mended.py .` It has to end by itself, and no step may have a loss that does not fit.
#
# <details><summary>One way to do it</summary>Leave out the batches that do not go round: <code>range(BATCHES - BATCHES % ranks)[rank::ranks]</code>. Then all ranks make five steps. Whoever may not leave rows out lets a rank without a batch add 0, and divides by the number of those that had one.</details>

# %% [markdown]
# ## It is slow
#
# The job runs again, but a step takes twice as long as `plan` said. Is it the cluster, or is it you?
#
# Ask the cluster first, because that takes a minute: an **acceptance test**. All ranks add up tensors of growing size, and print how fast. NVIDIA's `nccl-tests` prints two speeds. The **algorithm bandwidth**, `algbw`, is the tensor's bytes over the seconds. But a ring sends almost two tensors over each wire, $2(p-1)/p$ of one. So the bus bandwidth, `busbw`, is that factor times `algbw`. It is what a link of the ring has really carried, and between nodes a link is all cards of a node together. So you can hold it against a data sheet, whatever the number of ranks. An `algbw` of 20 GB/s<!-- =20 --> on 16 ranks is a `busbw` of 37.5 GB/s<!-- =gauges.busbw(20, 16) -->.

# %% varies="measured times"
# %%ranks 4
from course_lib.gauges import sweep_all_reduce, sweep_table

rows = sweep_all_reduce([2**10, 2**14, 2**18, 2**22])
print(sweep_table(rows)) if rank == 0 else None

# %% [markdown]
# Read a column downwards. Small tensors are slow by any measure, because their time is latency. `busbw` climbs with the size. On a cluster it levels off, at what the wire can do. Here the ranks share the processors of one machine, so you see gloo at work, and no wire. Two things would worry you on a cluster: a plateau at half of the preset, and a `#wrong` that is not 0. `python -m course_lib preflight` makes this test on every rank of a job, and looks at versions, clocks, folders and interfaces besides.
#
# What should the plateau be? Lesson 02 priced 4 GiB<!-- =4 --> over 32 B200s, in nodes with eight cards each:

# %%
from course_lib.sim.collectives import priced

row = next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB))
for name, seconds in {
    "measured": row.measured_s,
    "a ring through all eight cards": row.by("ring"),
    "a ring through one card": row.one_card_s,
}.items():
    bus = gauges.busbw(row.nbytes / seconds, row.ranks) / 1e9
    print(f"{name:31} {1e3 * seconds:4.0f} ms, busbw {bus:4.0f} GB/s")

# %% [markdown]
# Eight cards of 50 GB/s<!-- =wires(load_cluster("dgx_b200")).card.bandwidth_bytes_per_s / GB --> each would carry 400, and what was measured comes near. So if your busbw is an eighth of what it should be, count the cards that NCCL uses: its log at `NCCL_DEBUG=INFO` lists them.
#
# > **To keep.** Test the wires before you doubt your code: a minute's sweep, and busbw against the preset.

# %% [markdown]
# ### What is exposed?
#
# The wires are good, and the step is still slow. Then it may be that messages travel while nobody computes. Such communication is exposed. Lesson 03 hid it behind backward, and now you look whether it is hidden, with PyTorch's own **profiler**. It writes a trace: a list of spans, each with a name, a beginning and an end.


# %% varies="measured times"
import json


def traced_step(bucket_cap_mb):
    """The events of two steps of DDP on this rank, and the name of the file that Perfetto would open."""
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile

    layers = [nn.Linear(1024, 1024) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb)
    x = torch.randn(256, 1024)
    for _ in range(2):  # the first step is never like the others
        model(x).square().mean().backward()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(2):
            model(x).square().mean().backward()
    trace.export_chrome_trace(file := f"{mkdtemp()}/trace.json")
    return json.loads(Path(file).read_text())["traceEvents"]


runs = {f"buckets of {size} MB": run_ranks(traced_step, 2, size)[0] for size in (1000, 1)}
viz.plot_trace(runs, title="Two steps of DDP, as the profiler saw rank 0")

# %% [markdown]
# In the upper run all gradients fit into one bucket, which is full when backward has ended. So everything that it sends is exposed. In the lower run a bucket leaves as soon as a layer's gradients are there, and a part of the messages lies beneath the computing of other layers.
#
# Now look at the lengths beside the shares. The share falls, but the exposed time may not: in small buckets there is more communication in all, and here it needs the same few processors as the computing that should hide it. A GPU has other hardware for messages. So let the trace say *what* is exposed, and the clock whether a change has helped.
#
# Take all spans in which a message is under way, and cut away those in which this rank computes: that is all that `exposed` does, which *Going deeper* shows. On a GPU the same parser reads the kernels instead, where NCCL's begin with `nccl`. Over gloo you see only DDP's overlap: FSDP on CPUs has no streams, so its gathers are always exposed, and a trace from a laptop says nothing about them.
#
# ### Who is last?
#
# Sixteen ranks wait for the slowest one, the straggler. Which is it? The log has the seconds of each step, from each rank. Below, four ranks work and then add up; one of them is slow on purpose.
#
# **Predict.** Each rank measures its whole step, from its beginning to the end of the all-reduce. Three work 20 ms<!-- =20 -->, one 50. How long does a *fast* rank say that its step took?

# %%
# %%ranks 4 --pull own,whole
import time

own, whole = [], []
for _ in range(8):
    begin = time.perf_counter()
    time.sleep(0.05 if rank == 2 else 0.02)  # this rank's own work
    own.append(time.perf_counter() - begin)
    dist.all_reduce(torch.ones(1000))
    whole.append(time.perf_counter() - begin)

# %% varies="measured times"
predict(
    "ms that a fast rank's step takes",
    guess=None,
    answer=50,
    unit="ms",
    tolerance=0.1,
    think="what it does when its own work is done",
)
for rank in range(4):
    mine, step = 1e3 * min(own[rank]), 1e3 * min(whole[rank][1:])
    print(f"rank {rank}: own work {mine:.0f} ms, whole step {step:.0f} ms")
print(gauges.stragglers([*zip(*own, strict=True)]))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Fifty, as long as the slow rank's, because the all-reduce lets it wait. Whoever reads step times sees sixteen ranks that are equally slow. Only the time of a rank's own work tells them apart, from the beginning of the step to its first collective.
#
# </details>
#
# A rank may be last because its GPU is hot, because its rows are longer, or because it waits for its data. The last is measured in the same way: take the time around `next(batches)` alone.
#
# > **To keep.** In a synchronous training a step takes equally long on all ranks. Measure own work, or the straggler stays invisible.

# %% [markdown]
# ## It is dead
#
# In a run of weeks something dies. Meta counted 419 unplanned stops in 54 days on 16,384 GPUs. With so many a restart must not need a person. `torchrun --max-restarts=1` sees that a rank has gone, ends the others, and starts all of them anew. Whether that helps is up to the script: it has to find its last checkpoint by itself.
#
# Our `train` does. The cell starts it on two ranks, lets it make thirty steps, and kills one of them as the kernel of a full node does, without a word.

# %% varies="measured times, and the process's numbers"
import psutil

out = Path(mkdtemp()) / "run"
command = ["train", "dp=2", "model=tiny_gpt", "steps=60", "checkpoint_every=10", f"out={out}"]
two = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "course_lib"]
with open(logs / "restarted", "w") as file:
    job = subprocess.Popen(
        [*torchrun[:3], *two, *command],
        stdout=file,
        stderr=file,
        env={**os.environ, "COURSE_LIB_DEVICE": "cpu"},
    )
    metrics = out / "metrics.jsonl"
    while job.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 30):
        time.sleep(0.1)
    psutil.Process(job.pid).children()[1].kill()
    job.wait(300)
told = (logs / "restarted").read_text().replace(str(out), "the folder").splitlines()
print(*[line for line in told if "goes on" in line or "attempt" in line], sep="\n")
steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
print(f"torchrun's status {job.returncode}; each step once: {steps == [*range(1, 61)]}")
viz.plot_run(metrics, title="A run that was killed once, by its own lines of JSON")

# %% [markdown]
# The first line is the survivor's, whose neighbour had gone. The second attempt went on from a checkpoint, and all sixty steps are there once. (Checkpoints are written while training goes on, so the last one may not be whole yet when a rank dies. Then the one before it counts.) The picture is drawn from the file that `train` writes, a line of JSON for each step. `python -m course_lib watch FOLDER` draws it in a terminal while the run goes on, and says what a person should look at: a jump, a NaN, a run that has not written for long, a rank that is slower than the others. That a run killed like this gives the same weights as one that nobody disturbed, bit by bit, is one of our tests.
#
# In PyTorch 2.13 this needs a mend over gloo, which *Going deeper* shows.
#
# **Who died first?** When one rank dies, all others die of it, with long messages about lost connections. torchrun writes a table, whose last block says `Root Cause (first observed failure)`. Read that one, and its exit code: 1 is an exception of yours, -9 was killed, mostly because memory was full, -6 aborted itself, and -15 is a victim that torchrun has ended.
#
# **And the time limit?** Slurm ends a job when its time is over. With `#SBATCH --signal=USR1@120` it warns torchrun two minutes before, which hands the signal on to its ranks. `train` then finishes its step, writes a checkpoint, and ends. The job file then puts itself into the queue again, by `scontrol requeue`. Look for these lines in the file above. `#SBATCH --requeue` alone does not do it: it acts when a node fails, not when time is over.
#
# How often should it write? Lesson 08 found Young's interval; *Going deeper* takes your own numbers.
#
# > **To keep.** Let the machine restart the job, let the job find its checkpoint, and let a signal come before the limit.

# %% [markdown]
# ## Go on exactly
#
# Weights, optimizer, learning rate and random generators are in the checkpoint. One thing is often forgotten: *which rows have been read?*
#
# Many loaders save that for each rank by itself: "I have read 20 of my rows". Here are 96 rows on two ranks, which stop after 20 each. Then the job gets four ranks, and each goes on after *its* first 20.
#
# **Predict.** How many of the 96 rows does nobody read in this epoch?

# %%
order = torch.randperm(96, generator=torch.Generator().manual_seed(0)).tolist()


def rows_read(ranks, start, stop):
    """What so many ranks read if each has its own list, and takes a part of it."""
    return [row for rank in range(ranks) for row in order[rank::ranks][start:stop]]


before = rows_read(2, 0, 20)
by_rank = before + rows_read(4, 20, None)  # each rank goes on after 20 of its own rows
by_count = before + order[len(before) :]  # 40 rows are read, so all go on with row 40 of one order
predict(
    "rows that nobody reads",
    guess=None,
    answer=96 - len(set(by_rank)),
    think="how long each rank's list is now, and what it leaves out",
)
for name, rows in {"a state of each rank": by_rank, "one count for all": by_count}.items():
    print(f"{name}: {len(set(rows))} of 96 rows read, {len(rows) - len(set(rows))} of them twice")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# On four ranks a rank's list has 24 rows, and leaving out 20 leaves 4. So sixteen rows are still read, of 56 that were left. Forty are lost, and nothing says so: the loss falls as before.
#
# The cure is older than all loaders. One order that every rank can compute, and one number, how many rows *all* have read. It means the same on any number of ranks. `train` stores only that, and tests kill it on two ranks and let it go on on four.
#
# </details>
#
# > **To keep.** A checkpoint that depends on the number of ranks is a trap for the day on which you get other nodes.

# %% [markdown]
# ## It is wrong
#
# The job runs, it is fast, and the loss looks odd. Or it looks well, and a GPU computes wrongly: Meta found six cases of **silent data corruption** among its 419. Below, one rank has another number in one of its weights, wrong in the last bits. DDP never looks, because it averages gradients and not weights. All ranks make the same update, so the difference stays, and one of four holds another model, with a loss that looks right.

# %%
# %%ranks 4
weights = torch.arange(1000.0)
if rank == 2:
    weights[500] += 2**-14  # one bit of one weight
bits = weights.view(torch.int32).long()
mark = (bits * torch.arange(1, 1001)).sum()  # a checksum: any bit changes it
marks = [None] * world_size
dist.all_gather_object(marks, mark.item())
[other for other in range(world_size) if marks.count(marks[other]) == 1]

# %% [markdown]
# A message of one number, and each rank knows who is unlike all others. Such a check every thousand steps costs little, and it finds a forgotten broadcast as well as a broken GPU. It needs copies: where FSDP alone has cut the model nobody has one, and of two copies nobody knows which is right.
#
# If a loss *jumps* instead, look at the gradients' norm, which jumps first. If the loss comes back within some hundred steps, go on; if not, go back to a checkpoint *before* the jump. *Going deeper* has what PaLM, OPT and Llama 3 wrote into their logbooks. And if all is smooth but worse than last time, climb the ladder of lesson 03: then a gradient is wrong, and no logbook helps.
#
# > **To keep.** What averages also hides. Compare checksums for weights, norms for gradients, and own work for time.

# %% [markdown]
# ## The run book: OLMo on your nodes
#
# Now in the right order. A workshop of the Kempner Institute trains **OLMo 1B with DDP** and **7B with FSDP**, on nodes of four H100s. We give 1B one node and 7B two. Before you queue, predict: which strategies fit, and how long does a step of 128 sequences take?
#
# **Predict.** Of those that fit for 7B, which one is the fastest by our formula: DDP, ZeRO-1 or FSDP? Ask what each must send, and what each must hold.

# %%
STRATEGIES = {"DDP": 0, "ZeRO-1": 1, "FSDP": 3}
KEMPNER, steps_s = load_cluster("kempner_h100"), {}


def planned(name, nodes, stage):
    """The fastest way with this strategy: seconds, the interval, GiB; or what it lacks."""
    cluster = replace(KEMPNER, n_nodes=nodes)
    job = planner.Job(model=load_model(name), cluster=cluster, batch=128, sequence=2048)
    space = Space(tp=(1,), pp=(1,), cp=(1,), zero_stage=(stage,), schedule=("1f1b",), stages_per_rank=(1,))
    try:
        [best] = planner.ranked(search(job, space), 1)
    except ValueError as error:
        return f"impossible: {str(error).rpartition('; ')[2]}"
    steps_s[name, nodes, stage] = best.step_s
    interval = f"four of five such runs: {best.low_s:.2f} to {best.high_s:.2f}"
    return f"{best.step_s:.2f} s a step ({interval}), {best.memory_bytes / GiB:.0f} GiB: {best.name}"


book = {
    f"{name}, {strategy:6}": planned(name, nodes, stage)
    for name, nodes in (("olmo_1b_workshop", 1), ("olmo_7b_workshop", 2))
    for strategy, stage in STRATEGIES.items()
}
seven = {
    strategy: steps_s.get(("olmo_7b_workshop", 2, stage), 1e9) for strategy, stage in STRATEGIES.items()
}
predict(
    "the fastest for OLMo 7B on two nodes: DDP, ZeRO-1 or FSDP",
    guess=None,
    answer=min(seven, key=seven.get),
)
for line, said in book.items():
    print(line, said)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# DDP needs 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> a parameter and more on each GPU, and lacks a great deal. ZeRO-1 shares the largest part, Adam's states, and sends no more than DDP. FSDP shares everything, and gathers weights twice in each micro-batch, so it sends more. But the interval is far wider than the difference between the two. So the formula says: both fit, try both. The workshop takes FSDP, whose memory has room left, for longer sequences for example. (*Four of five* is the interval of lesson 08: so many measured runs of other sources lay in one as wide.)
#
# </details>
#
# The workshop's steps, with what to look at in each, stand in *Going deeper*. When it has run, tell the planner what you have measured: `python -m course_lib predict runs=theirs.json out=said.csv calibrate=mine.json` moves all its predictions by what your rows say. Then the next cluster is a little less of a surprise.
#
# > **To keep.** Predict, then run, then correct the prediction. The order makes the difference between a surprise and a lesson.

# %% [markdown]
# ## The file behind this lesson
#
# [`course_lib/gauges/flight.py`](../course_lib/gauges/flight.py), about 130 lines, reads the flight recorder. You compared the calls of four ranks by eye. It adds what happens when the recorder has forgotten the oldest calls, when a rank has none, and when two against two disagree.
#
# ## What still hurts
#
# Sixteen GPUs run through the night. In the morning somebody asks for sequences of 131,072 tokens, and a single one does not fit on any of them. You know from lesson 09 how two GPUs share it; now it has to run on these nodes, and you know where to look when it does not.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/12_on_the_cluster.ipynb), half of which are files of your own, and then your own cluster.
#
# <details><summary>1. All ranks wait in the same line of the same all-reduce, with the same number. What do you suspect?</summary>
# Not your script: all have come. The messages do not arrive, so look at the interface, the cards and the switch. <code>preflight</code> tries each of them.
# </details>
#
# <details><summary>2. One rank of sixteen is not in the flight recorder's files at all. Where do you look next?</summary>
# At its process: is it there? If it is dead, its log and torchrun's table say why. If it lives, its stack does: perhaps it never reached <code>init_process_group</code>.
# </details>
#
# <details><summary>3. busbw of 16 ranks is a quarter of one card's bandwidth, on nodes with four cards. And within one node it is as it should be. What now?</summary>
# The wires between nodes carry a fraction of one card. So the messages may go over another interface, the one for logins. <code>NCCL_DEBUG=INFO</code> says which one was taken.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## What "exposed" is
#
# Take all spans in which a message is under way, and cut away those in which this rank computes. What is left, nothing hides.

# %%
from course_lib.gauges.exposed import exposed, sorted_out

display(viz.show_source(exposed), viz.show_source(sorted_out))

# %% [markdown]
# ## A place to meet for each attempt
#
# In PyTorch 2.13 a restart over gloo succeeds by luck: with two ranks in some of our trials, with four in none. The second attempt meets at the same store as the first, finds the addresses of dead ranks there, and ends with "Connection refused". So every attempt needs a name of its own. torchrun tells each rank how often it was restarted, but every node counts that for itself, so no number will do. In `train` rank 0 invents a name. The others ask for it under a key that they have just made up. Only a living rank 0 can answer there, and a dead one's answers lie under other keys.

# %%
from course_lib.ranks import meeting

for function in (meeting.store_of_attempt, meeting.name_from_first, meeting.name_for_all):
    display(viz.show_source(function))

# %% [markdown]
# ## How often to write, with your own numbers
#
# Young's interval of lesson 08 is $\sqrt{2 \delta M}$, with $\delta$ the seconds of a checkpoint and $M$ those between two stops. Stops come the more often the more GPUs there are, so Meta's numbers can be scaled to yours.

# %%
GPUS, DAYS, STOPS = 16_384, 54, 419  # Meta's, on Llama 3
mine = {"gpus": 16, "checkpoint_s": 20.0}  # yours: change them
between_s = DAYS * planner.DAY_S / STOPS * GPUS / mine["gpus"]
best = planner.Reliability(mtbf_s=between_s, checkpoint_s=mine["checkpoint_s"], restart_s=120)
write_s = planner.young_interval_s(best)
print(f"a stop every {between_s / planner.DAY_S:.0f} days; write every {write_s / 3600:.1f} hours")

# %% [markdown]
# Sixteen GPUs stop every four months, if they are as good as Meta's, so a checkpoint every six hours would do. But your job has a time limit of a day or less, and that "failure" comes every day. What protects you there is the signal, not the interval.
#
# ## Three logbooks
#
# What do people do who train for months?
#
# | in the logbook | what it was | what they did |
# | --- | --- | --- |
# | PaLM: the loss jumps, about twenty times, in spite of clipping | certain batches, at certain weights; the same batches did no harm elsewhere | went back a hundred steps, and left out a few hundred batches |
# | OPT-175B: the loss diverges, the loss scale falls to 0 | seen together with it: the last layer's activations grow | an earlier checkpoint and a lower learning rate |
# | Llama 3: the run stops, again and again | faulty GPUs and their memory in half of the cases | automatic restart, and tools that name the slow rank |
#
# A spike is no error by itself. After a NaN all later steps are lost, so go back to a checkpoint before it.
#
# ## The workshop's steps
#
# | step | what you do | look at |
# | --- | --- | --- |
# | 1.1 | an environment with Python, in a folder that all nodes see | `preflight`: the same versions on all ranks |
# | 1.2 | PyTorch for your CUDA, first and alone | `preflight`: devices, and who takes which |
# | 1.3 | their repository, `pip install -e .[all]` | `make olmo`: the same packages on your laptop |
# | 2.1 | choose the 1B or 7B configuration | below |
# | 2.2 | account, partition, folder, and `sbatch` | the first hour: `watch FOLDER`, then the profiler |
#
# Read a configuration before you start it. Of [theirs](https://github.com/KempnerInstitute/OLMo/blob/main/README_KempnerInstitute.md) four lines are worth a question. Both files, that of 1B too, call the run `OLMo-7B`. The learning rate warms up for 1,000 steps, but the run has 515, so it never gets there. `save_num_checkpoints_to_keep: -1` keeps all checkpoints, until the disk is full. And a batch of 128 is four GPUs with 32 sequences each, so on eight GPUs either the batch grows, or each takes 16.
#
# ## The same on a cluster: py-spy over srun
#
# While a job hangs you may start a second step beside it, on the same nodes: `--overlap`. `scontrol listpids` names the job's processes on each node, and `py-spy` looks at those that have a `RANK`. `make test-slurm` runs just these lines.
#
# ```bash
# srun --jobid=$JOB --overlap --nodes=2 --ntasks-per-node=1 --label bash -c '
#   for pid in $(scontrol listpids $SLURM_JOB_ID.0 | awk "NR > 1 && \$1 > 0 {print \$1}"); do
#     tr "\0" "\n" < /proc/$pid/environ | grep -q ^RANK= && py-spy dump --pid $pid
#   done'
# ```
#
# Do not look for processes by their name: other people's have the same.
#
# ## Wrapping policies and sharding strategies
#
# OLMo's configuration has both by name, and lesson 06 showed what they are. Which pairs fit for 7B on one node, in micro-batches of 16 sequences?

# %%
from course_lib.config import ParallelConfig
from course_lib.costs import Software

one_node = planner.Job(
    model=load_model("olmo_7b_workshop"),
    cluster=KEMPNER,
    batch=128,
    sequence=2048,
    microbatch=16,
    parallel=ParallelConfig(dp=4),
    recompute="full",
    software=Software(kind="eager", kernel="flash2"),
)
for row in planner.wrapping_rows(one_node, planner.olmo_wrappings(one_node.model)):
    fits = "fits" if row.fits else "does not fit"
    print(
        f"{row.wrapping:17} {row.strategy:13} {row.units:2} units, {row.calls:3} calls, "
        f"{row.memory_bytes / GiB:4.0f} GiB {fits}, messages {row.messages_s:.2f} of {row.step_s[1]:.2f} s"
    )

# %% [markdown]
# No pair with `NO_SHARD` fits, which is why the workshop takes FSDP for 7B. Without wrapping, all weights are whole at once, so only gradients and Adam's states are really shared. Among those that fit the time of messages hardly differs, because a node's wires are fast and these batches are large.
#
# `make olmo` runs the real packages on your CPU: `ai2-olmo` makes 33 units of the 7B `by_block`, as our count says, and a small OLMo of `ai2-olmo-core` has the same loss under DDP, FSDP and HSDP. [Its page](../wild/OLMO.md) has what it measured. It met a trap, too: as released, asynchronous checkpoints let some runs hang, and we leave out the metric that does it.
#
# ## Checkpoints that nobody waits for
#
# `torch.distributed.checkpoint.async_save` copies the weights and writes them on a thread, while training goes on. Its thread talks to the other ranks, and over gloo it does so on the same group as your training, if you give it none. Then its messages and FSDP's take turns by chance. In our trials three runs of three broke at the second step: one hung, two ended with sizes that did not match. With a group of its own all went well. Our `train` writes its checkpoints in this way, on a group that nobody else uses.


# %% varies="measured times"
def saved(asynchronous):
    """Seconds that training stands still for a checkpoint of 32 MB, on this rank."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    group = dist.new_group(backend="gloo")
    state = {"weights": torch.randn(8_000_000)}
    save = dcp.async_save if asynchronous else dcp.save
    begin = time.perf_counter()
    writing = save(state, checkpoint_id=mkdtemp(), process_group=group)
    stood = time.perf_counter() - begin
    if asynchronous:
        writing.result()
    return stood


for name, asynchronous in (("saved at once", False), ("saved beside", True)):
    print(f"{name}: training stood for {1e3 * max(run_ranks(saved, 2, asynchronous)):.0f} ms")

# %% [markdown]
# ## Logs that others have posted
#
# Three threads are worth half an hour, because the answer stands in them. Read the question first, and decide what you would look at.
#
# - [NVIDIA/nccl 1105](https://github.com/NVIDIA/nccl/issues/1105): two nodes, and torchrun says only `Socket Timeout`. With `NCCL_DEBUG=INFO` there is a line more. Which address does one node give to the other?
# - [NVIDIA/nccl 286](https://github.com/NVIDIA/nccl/issues/286): how to name an interface when the nodes' cards have different names, told by one of NCCL's authors.
# - [NVIDIA/nccl 296](https://github.com/NVIDIA/nccl/issues/296): the counters of four ranks side by side, as in our picture. Find the call in which they part.
#
# ## On GPUs, over NCCL
#
# Three things change. NCCL's watchdog writes the flight recorder when a call has timed out, if `TORCH_NCCL_DUMP_ON_TIMEOUT` lets it, into files whose name begins as `TORCH_FR_DUMP_TEMP_FILE` says. `TORCH_FR_BUFFER_SIZE` says how many calls it holds. Its entries have a `state` that tells calls that were scheduled from those that have started, which gloo's do not. And in the profiler FSDP's gathers lie on a stream of their own, so you can see whether they are hidden. None of this ran for this page.
#
# References: Chowdhery et al. 2022, *PaLM*, section 5.1; Zhang et al. 2022, *OPT*, section 2.5; Grattafiori et al. 2024, *The Llama 3 herd of models*, section 3.3.4; [nccl-tests, on bus bandwidth](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md); [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
