# %% [markdown]
# # 12b · Through the night: a rank dies, and nobody is awake
#
# Your sixteen GPUs train, and fast. You go to bed. This is what the night has in store for the job:
#
# ```text
#  22:00          03:10             03:11              05:58             06:00        06:04
#    │              │                 │                  │                 │            │
#  start ────► one rank is killed, all go on from ──► "two minutes" ──► time is up   the next job
#              memory is full      a checkpoint        says Slurm                    on other nodes
# ```
#
# What has to be in the job, so that it goes on without you? And what can you read in the morning out of the lines that it has left?
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
import json
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import torch

from course_lib import gauges, planner, predict, run_ranks, score, viz
from course_lib.costs import GiB, load_cluster, training_flops
from course_lib.planner import Space, search
from course_lib.training import load_model

# %% [markdown]
# You will be able to
# - say from torchrun's table who died first, and of what.
# - let a script of your own survive a kill and its time limit.
# - go on with another number of GPUs, and lose no row of the data.
# - read a run's own lines: how fast it was, and what it is ill with.
# - predict OLMo 7B on your nodes, and correct the prediction by what you have measured.
#
# *Fifty minutes; the exercises are those of module 12. No GPU, no Slurm and no root is needed.*
#
# <details><summary>Before you start</summary>You need the first half, <a href="12_on_the_cluster.ipynb">lesson 12</a>, and Young's formula from 08. Everything on this page ran on CPUs over gloo. What needs Slurm is run by <code>make test-slurm</code> on nodes that it makes itself.</details>
#
# ## Who died first?
#
# Our job is a script of its own, [`scripts/12b_goes_on.py`](scripts/12b_goes_on.py), in PyTorch alone. It has a model of five numbers, because here only its ending counts. It writes a checkpoint after every 20 steps, and it begins at the last one that it finds.

# %%
viz.show_source(Path("scripts/12b_goes_on.py"))

# %% [markdown]
# Read `save` and its one comment. A process may be killed in the middle of any line, so it writes under another name, and gives the file its own name when it is whole. The first lines of the script, above the imports, are for later.
#
# Now it is ten past three. We start two ranks, wait for step 25, and kill rank 1 as the system of a full node does, without a word.

# %% varies="the process's numbers, and the time"
import re
import signal
import subprocess
import sys
import time

import psutil

folder = Path(mkdtemp())
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
listens = ["--signals-to-handle=SIGTERM,SIGINT,SIGUSR1", "--shutdown-timeout=600"]


def started(name):
    """Start the script once more, with a log of this name."""
    with open(folder / name, "w") as log:
        command = [*torchrun, *listens, "scripts/12b_goes_on.py", str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=log)


job, log = started("first"), folder / "first"
while "step 25\n" not in log.read_text() and job.poll() is None:
    time.sleep(0.05)
psutil.Process(int(re.search(r"rank 1, process (\d+)", log.read_text())[1])).kill()
job.wait()
print(re.search(r"Failures:.*", log.read_text(), re.DOTALL)[0])

# %% [markdown]
# When one rank dies, all others die of it, and each says so at length. This table is what torchrun prints below all that. Its last block is the **root cause**, the first failure that it has observed: rank 1, exit code -9. Rank 0 has -15, and that is torchrun itself, which ends whoever is left. (On several nodes each torchrun has a table of its own, or only a traceback about its store. Look for a block with -9, -6 or -11: a 1 with a lost connection is a victim, too.)
#
# | exit code | how it ended | look at |
# | --- | --- | --- |
# | 1 | an exception of yours | that rank's own log, at the first error |
# | -9 | killed | the node's memory: `dmesg`, or `sacct` with its state `OUT_OF_MEMORY` |
# | -6 | it has aborted itself | a library: NCCL's watchdog, or gloo at unlike sizes |
# | -11 | it touched memory that is not its own | an extension, or a driver |
# | -15 | a victim | not here, but at the root cause |
#
# *First observed* is not always first: torchrun looks ten times a second, and two ranks that die between two looks are told in the order of their ranks. So compare the block with the ranks' own logs. `error_file: <N/A>` stands there because the script's `main` bears no `@record`; with it, `torch.distributed.elastic` writes each rank's exception into a file, and the table quotes it.
#
# > **To keep.** The longest message is a victim's. Read the root cause, and its exit code.

# %% [markdown]
# ## Before the time is over
#
# The next ending comes every night. Slurm ends a job when its time is up, but you can let it warn you. With `#SBATCH --signal=USR1@120` it sends a signal two minutes before, and torchrun sends it to its ranks as well, if `--signals-to-handle` names it.
#
# A signal that nobody listens to ends a process. Now look at the first lines of the script. The handler stands above `import torch`, because the imports take seconds, and Slurm does not wait for them: it may even send the signal a minute early. All that a handler does is to take a note. The loop looks at the notes after each step, and asks all ranks by an all-reduce, since one may have heard a step before the others. If they did not ask, some would write a checkpoint and leave, and the others would hang in their next step.
#
# One patience more is needed, torchrun's own. When it has passed the signal on, it waits for its ranks for half a minute, and then it kills them. Imports and a checkpoint may take longer, so our cells say `--shutdown-timeout=600`. Nobody waits those ten minutes: torchrun goes when its ranks have gone.
#
# **Predict.** We start the script again, and send the signal as soon as its ranks listen, while they still import. Its first start was killed in step 26. After which step does the second start leave?

# %% varies="the process's numbers"
job, log = started("second"), folder / "second"
while log.read_text().count("listens\n") < 2 and job.poll() is None:
    time.sleep(0.02)
job.send_signal(signal.SIGUSR1)  # as Slurm does
job.wait()
lines = [line for line in log.read_text().splitlines() if re.match("rank|step|W1?.*signal", line)]
predict(
    "the step after which the second start leaves",
    guess=None,
    answer=int(re.search(r"rank 0 leaves after step (\d+)", log.read_text())[1]),
    think="which checkpoint the killed start had written last, and what a start does at least",
)
print(*lines, sep="\n")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The first start had made 25 steps when it was killed, but its last checkpoint is that of step 20, so the second one goes on from there. Five steps are lost and made again. It makes one step, number 21, in which all ranks learn of the signal, writes a checkpoint after it, and leaves. Of these two minutes it has used one step.
#
# </details>
#
# torchrun ends with status 1, as it does for every signal. So a status cannot tell a job whose time was up from one that failed, and a script has to leave word: `train` writes a file, and the job file of lesson 12 looks for it. Only then does it put itself into the queue again, by `scontrol requeue`. `#SBATCH --requeue` alone does not do that: it acts when a node fails, not when time is over.
#
# **Your turn.** Copy the script, move its first lines, all but the one that prints, below the imports, and start the copy as the cell does, with its name in `started`. Then take out the all-reduce of `heard` instead, and send the signal to one rank alone: `kill -USR1 PID`. Which of the two is the worse one to find in the morning?
#
# <details><summary>What you should see</summary>With the handler below the imports the signal ends the ranks before their first step. Nothing new is written, and torchrun's own lines are the same as before. Without the all-reduce the job hangs: the rank that has heard the signal waits in the last barrier, and the other one in the all-reduce of its next step, until Slurm ends both. You see the first one in any test. The second one comes only when the signal reaches the ranks in different steps, so you meet it in the morning.</details>
#
# > **To keep.** Listen from the first line on, note it, and leave together after a step.

# %% [markdown]
# ## Nobody has to wake up
#
# So far you have started the script again yourself. In a run of weeks that is too often: Meta counted 419 unplanned stops in 54 days on 16,384 GPUs. A restart must not need a person. `torchrun --max-restarts=1` sees that a rank has gone, ends the others, and starts all of them anew. Whether that helps is up to the script: it has to find its last checkpoint by itself, as ours does.
#
# Over gloo there is one thing more. In PyTorch 2.13 the second attempt often finds the addresses of dead ranks, and fails; *Going deeper* shows the mend. `train` has it, so we take `train`, let it make thirty steps on two ranks, and kill one of them in the same way.

# %% varies="measured times, and the process's numbers"
import os

out = Path(mkdtemp()) / "run"
command = ["train", "dp=2", "model=tiny_gpt", "steps=60", "checkpoint_every=10", f"out={out}"]
again = ["--max-restarts=1", "-m", "course_lib"]
with open(folder / "restarted", "w") as log:
    on_cpus = {**os.environ, "COURSE_LIB_DEVICE": "cpu"}
    job = subprocess.Popen([*torchrun, *again, *command], stdout=log, stderr=log, env=on_cpus)
    metrics = out / "metrics.jsonl"
    while job.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 30):
        time.sleep(0.1)
    psutil.Process(job.pid).children()[1].kill()
    job.wait(300)
told = (folder / "restarted").read_text().replace(str(out), "the folder").splitlines()
print(*[line for line in told if "goes on" in line or "attempt" in line], sep="\n")
steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
print(f"torchrun's status {job.returncode}; each step once: {steps == [*range(1, 61)]}")
viz.plot_run(metrics, title="A run that was killed once, by its own lines of JSON")

# %% [markdown]
# The first line is the survivor's, whose neighbour had gone. The second attempt went on from a checkpoint, and all sixty steps are there once. (Checkpoints are written while training goes on, so the last one may not be whole yet when a rank dies. Then the one before it counts. `train` keeps the last two, in case one is damaged, and takes an older one away only when a newer one is whole.) The picture is drawn from the file that `train` writes, a line of JSON for each step. Its last panel divides the slowest rank's own work by the usual one's; `train` tells it in every tenth step. While a run goes on, `python -m course_lib watch FOLDER` draws it in a terminal, and `viz.watch_run(FOLDER)` here. Both say what a person should look at: a jump, a NaN, a run that has not written for long, a rank that is slower than the others. That a run killed like this gives the same weights as one that nobody disturbed, bit by bit, is one of our tests.
#
# If a whole **node** dies, its torchrun dies with it, and the others would only wait for it at their rendezvous. So here Slurm has to help. It misses the node's answer, ends what is left of the job, and puts it into the queue again: that is what `#SBATCH --requeue` is for. `make test-slurm` kills a node in the middle of a run. Some minutes later the job goes on from its checkpoint, on nodes that live.
#
# How often should it write? Lesson 08 found Young's interval; *Going deeper* takes your own numbers.
#
# > **To keep.** Let the machine restart the job, and let the job find its checkpoint.

# %% [markdown]
# ## How fast was it?
#
# It is morning, and the run has left sixty lines. What are they worth to you? Each has the tokens that all ranks have read in a second. And on a GPU each has the **model FLOPs utilisation** of lesson 01, the share of the peak that the model's own operations take. On a CPU there is no data sheet to divide by, so we measure a peak ourselves: what one product of two large matrices reaches on the same processors.

# %% varies="measured times"
from statistics import median

import yaml

from course_lib.config.presets import parse_model

said = yaml.safe_load((out / "config.yaml").read_text())  # train writes down what it was told
TINY = parse_model(said["model"]).config
lines = [json.loads(line) for line in metrics.read_text().splitlines()]
tokens_per_s = median(line["tokens_per_s"] for line in lines[5:])  # the first steps fill caches
per_token = training_flops(TINY, sequence=said["sequence"])
a = torch.randn(2048, 2048)
a @ a
begin = time.perf_counter()
for _ in range(3):
    a @ a
peak = 3 * 2 * 2048**3 / (time.perf_counter() - begin)  # FLOP/s of all processors
print(f"one line: {list(lines[9])}")
reached = tokens_per_s * per_token
print(f"{tokens_per_s:,.0f} tokens/s x {per_token / 1e6:.2f} MFLOP a token: {reached / 1e9:.1f} GFLOP/s")
print(f"a matrix product: {peak / 1e9:.0f} GFLOP/s, so the MFU is {reached / peak:.1%}")

# %% [markdown]
# It has to be well below one. Less than half of this step goes into products of matrices; the rest goes into messages, GELU, softmax and AdamW. On a cluster read it the other way round. A large model whose share has halved between two mornings has not become smaller, so something is slow, and you are in the second column of lesson 12's page. And compare it with the clock of the wall: a share of the *steps* says nothing of the hours between them, in which the job was dead or in the queue. What is left of the day is the **goodput** of lesson 08; 12.5 takes both out of a log.
#
# > **To keep.** Tokens a second say how fast the run is, MFU how much of the machine it uses, and goodput how much of the day.

# %% [markdown]
# ## Go on exactly
#
# Weights, optimizer, learning rate and random generators are in the checkpoint. (Generators are each rank's own: as many ranks as before go on with theirs, and another number of ranks draws anew.) One thing is often forgotten: *which rows have been read?*
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
# The cure is older than all loaders. One order that every rank can compute, and one number, how many rows *all* have read. It means the same on any number of ranks. `train` stores only that, and tests kill it on two ranks and let it go on on four. What a real loader does whose checkpoint is cut otherwise, and what becomes of it when all ranks write under one name, stands in [the wild wing](../wild/RESULTS.md) (`torchdata_state_of_other_ranks`, `torch_one_loader_state_for_all`), with the restart and the asynchronous checkpoint of this page.
#
# </details>
#
# > **To keep.** A checkpoint that depends on the number of ranks is a trap for the day on which you get other nodes.

# %% [markdown]
# ## It is wrong
#
# The job runs, it is fast, and it loses no row. Only the loss looks odd. Or it looks well, and a GPU computes wrongly: Meta found six cases of **silent data corruption** among its 419. Below, one rank has another number in one of its weights, wrong in the last bits. DDP never looks, because it averages gradients and not weights. All ranks make the same update, so the difference stays, and one of four holds another model, with a loss that looks right.

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
# If a loss *jumps* instead, look at the gradients' norm, which often grows first. If the loss comes back within some hundred steps, go on; if not, go back to a checkpoint *before* the jump. And if all is smooth but worse than last time, climb the ladder of lesson 03: then a gradient is wrong, and no logbook helps.
#
# > **To keep.** What averages also hides. Compare checksums for weights, norms for gradients, and own work for time.

# %% [markdown]
# ## Four logs to read
#
# Here are four runs, A to D, of one small model on two ranks, with the loop of `train`. Each is well for twenty steps and then falls ill, of one of these: two batches of broken rows; a disk that is slow on one rank; one flipped bit in a weight of one rank; and a flipped bit again, but a higher one. Until then all four are the same run. The cell below makes them ill. It is folded, so that you can guess.

# %% folded=true
# Setup: the four runs, made ill on purpose; open it when you have guessed
from course_lib.training.loop import train

ILL = {"A": "rows", "B": "high bit", "C": "disk", "D": "low bit"}


def ill_runs():
    """The lines of each run, as the first rank writes them."""
    import torch.distributed as dist

    from course_lib.config import TrainConfig
    from course_lib.training import Batches, Decoder, Trainer, load_text, make_mesh, replicate

    rank, mesh = dist.get_rank(), make_mesh(dp=2)

    def one_run(illness, lines):
        class IllRows(Batches):
            def batch(self, number):
                inputs, targets = super().batch(number)
                if illness == "rows" and number in (20, 21):  # A: any letters, in no order
                    return torch.randint(256, inputs.shape), torch.randint(256, inputs.shape)
                if illness == "disk" and number >= 20 and rank == 1:
                    time.sleep(0.1)  # C: rank 1 waits for its rows
                return inputs, targets

        torch.manual_seed(0)
        config = TrainConfig(optimizer="adamw", learning_rate=3e-3)
        trainer = Trainer(Decoder(TINY), config, mesh=mesh, apply=(replicate(),))
        weights = next(trainer.model.parameters())
        steps = 50 if illness == "disk" else 30  # a rank is called slow that is so in most of the steps
        for step in train(trainer, IllRows(text=load_text(), batch_size=8, sequence=32), steps):
            if illness.endswith("bit") and step.number == 20 and rank == 1:
                # B: a bit of the exponent. D: one far behind it.
                bits = weights.data.view(torch.int32)
                bits[101, 5] ^= 1 << (30 if illness == "high bit" else 18)
            facts = [None] * 2
            dist.all_gather_object(facts, (step.own_s[0], weights.double().sum().item()))
            own_s, marks = zip(*facts, strict=True)
            line = {"step": step.number, "loss": step.loss, "gradient_norm": step.norm}
            lines.append(line | {"own_s": own_s, "alike": marks[0] == marks[1]})

    found = {}
    for name, illness in ILL.items():
        try:
            one_run(illness, found.setdefault(name, []))
        except ValueError as error:  # the loss was not finite, which the trainer refuses on all ranks
            found[name].append({"step": len(found[name]) + 1, "loss": None, "said": str(error)})
    return found


# %% [markdown]
# Each line below has the loss, the gradients' norm, the milliseconds of each rank's own work, and whether both ranks' first weights are alike, as the check above would say.
#
# **Predict.** Which of the four may go on as they are, so that nothing has to be trained again?

# %% varies="measured times"
logs = run_ranks(ill_runs, 2, timeout=120, device="cpu")[0]  # own work is measured there
for name, lines in logs.items():
    print(f"run {name}  step    loss    norm   own work, ms   alike")
    for line in lines[18:24]:
        if line["loss"] is None:
            print(f"       {line['step']:4}  {line['said'][:74]} …")
            continue
        own = "  ".join(f"{1e3 * own:5.0f}" for own in line["own_s"])
        numbers = f"{line['loss']:6.3f}  {line['gradient_norm']:6.2f}"
        print(f"       {line['step']:4}  {numbers}  {own}     {line['alike']}")
    print()
predict(
    "the runs that may go on as they are",
    guess=None,
    answer="AC",
    think="whose weights are still what the training has made of its rows, on both ranks",
)
for name, lines in logs.items():
    written = folder / f"{name}.jsonl"
    written.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"run {name}, what watch says: {[one.said for one in gauges.alarms(gauges.read_run(written))]}")
viz.plot_run(folder / "C.jsonl", title="Run C, by its own lines")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# **A** had the broken rows. The loss jumps for two steps and comes back: both ranks have learned a little nonsense, but the same, so it goes on. Look at those two batches, though. **C** computes what it should, and slowly: rank 1 waits for its disk. It may go on until you have another node. (Its picture has a jump of the norm, too, at step 31. No loss follows, and nothing is wrong: norms do that.)
#
# **B** has stopped, because a bit in the exponent made a weight so large that the loss was infinite. That is the kind one. **D** had the same illness in a lower bit. Compare its losses with C's: they agree in every digit shown. Nothing but the last column tells, and since step 20 one rank trains another model. Both have to go back to a checkpoint from before step 20.
#
# `watch` finds A, B and C, and says nothing of D. No log of losses could.
#
# </details>
#
# Now a famous one. These are eight lines of BLOOM's public [chronicle](https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md), of its steps on 12 April 2022. Each took 106 seconds<!-- =106 -->, on 384 GPUs.
#
# | step | loss | gradients' norm |
# | --- | --- | --- |
# | 31,214 | 2.199 | 0.24 |
# | 31,215 | 2.220 | 0.95 |
# | 31,216 | 2.595 | 2.39 |
# | 31,217 | 2.242 | 15.9 |
# | 31,218 | 2.345 | 145 |
# | 31,219 | 5.098 | 960 |
# | 31,220 | 3.492 | 353 |
# | 31,250 | 2.216 | 0.27 |
#
# When could you have known? And would you have gone back?
#
# <details><summary>What happened</summary>
#
# Read the norms alone. At 31,215 the norm is four times the usual, while the loss has hardly moved, and from there on it grows in every step up to the jump. At 31,217 it is more than sixty times the usual, and the loss, which had risen by a sixth, is almost back. Two steps later comes the jump. They did nothing, and after some thirty steps the loss was where it had been. Norms had jumped before; it was the first spike of the loss in a month. But they kept the checkpoints from before and after it.
#
# </details>
#
# > **To keep.** The norm often grows before the loss jumps, and often for nothing. A loss that comes back may go on, a rank that is unlike the others may not.

# %% [markdown]
# ## The run book: OLMo on your nodes
#
# Now in the right order. A workshop of the Kempner Institute trains **OLMo 1B with DDP** and **7B with FSDP**, each on one node of four H100s. We give 7B two nodes. Before you queue, predict: which strategies fit, and how long does a step of 128 sequences take?
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
    interval = f"likely {best.low_s:.2f} to {best.high_s:.2f}"
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
# DDP needs 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> a parameter and more on each GPU, and lacks a great deal. ZeRO-1 shares the largest part, Adam's states, and sends no more than DDP. FSDP shares everything, and gathers weights twice in each micro-batch, so it sends more. But it has room for larger micro-batches, so there are fewer of them, and it wins by a hair. The interval is far wider than that. So the formula says: both fit, try both. The workshop takes FSDP, whose memory has room left, for longer sequences for example. (*Likely* is the range of lesson 08: it held four of five measured runs of sources that the fit had not seen.)
#
# </details>
#
# The workshop's steps, with what to look at in each, stand in *Going deeper*.
#
# ### Then correct the prediction
#
# Your first job has run, on one node. Now tell the planner what you have measured, and it moves all its predictions by what your rows say. There is no cluster on this page, so we borrow one: eight runs that NVIDIA has published for Megatron-LM, on A100s. We take their source away, so that the planner knows no more of the code than it would know of yours. Three small ones, on 1, 2 and 4 GPUs, are *mine*. The other five, on 8 to 1,024, are *theirs*, and we ask for them before and after.

# %%
from course_lib.sim.predict import factor_of, predict_rows
from course_lib.sim.published import measured_runs, published_rows

rows = [row for row in published_rows() if row["source_key"] == "mlm20"]
rows = [row for row in rows if "A100" in row["hardware"]["gpu"]]
rows = [row | {"source": {"title": "a loop of our own"}, "source_key": "ours"} for row in rows]
mine, theirs = rows[:3], rows[3:]
print(json.dumps(mine[0], indent=1).replace("\n   ", " ").replace("\n  }", "}"))

# %% [markdown]
# That is a row: what ran, on what, how it was spread, and `measured`, with `step_time_s` or `tokens_per_s_per_gpu`. A file for `python -m course_lib predict runs=theirs.json out=said.csv calibrate=mine.json` is a list of such rows, and the cell below calls what this command calls. What a row leaves open is assumed, and the column `assumed` of the result says what. `model` may also be `{"folder": "…"}`, with a folder of Hugging Face or a preset's name.
#
# **Predict.** Unknown code is mostly slower than what is published, and the planner does not know that of *ours*. Before it has seen our three rows, most of its steps are too short, by about a twentieth. How far off is the median of the five afterwards, in percent?

# %%
factor = factor_of(measured_runs(mine))
before, after = predict_rows(theirs), predict_rows(theirs, factor=factor)
predict(
    "median error of the five predictions, after three rows, in percent",
    guess=None,
    answer=round(100 * median(abs(row["step_s"] / row["measured_step_s"] - 1) for row in after), 1),
    tolerance=0.3,
    think="what one factor can mend, and what differs between 4 GPUs and 1,024",
)
print(f"every step x {factor:.3f}")
for row, first, then in zip(theirs, before, after, strict=True):
    gpus, real = row["hardware"]["gpus"], first["measured_step_s"]
    said = f"predicted {first['step_s']:.2f} s, then {then['step_s']:.2f} s"
    print(f"{gpus:5} GPUs: {said}, measured {real:.2f} s")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# One factor has mended four of the five. What was wrong with these was not the network, but how well this code uses a GPU, and that the three small runs could tell. But look at the last row. There the prediction was too long before, and the factor has made it longer still. How messages travel between a hundred nodes no small run can tell. The factor is drawn a little towards 1, and more if your rows disagree among themselves.
#
# </details>
#
# This was a kind case, for these eight runs are among the hundreds to which the planner's constants were fitted. What three rows do for clusters that were left out stands in `course_lib/sim/data/errors.csv`, under *three own rows*.
#
# One factor cannot mend everything. If your rows on one node agree, and those on two nodes do not, then it is not the code that is slow. Then you are back at the wires. And it knows GPUs alone: a row of a laptop's CPU is refused, with the list of data sheets that there are.
#
# > **To keep.** Predict, then run, then correct the prediction: three small runs say much about larger ones, but not all.

# %% [markdown]
# ## The file behind this lesson
#
# [`course_lib/gauges/run_log.py`](../course_lib/gauges/run_log.py), about 180 lines, reads a run's lines and says what asks for a look. You judged four logs by eye. It adds what *usual* is, how far a spike has to stick out of it, and when a run that writes nothing stands still.
#
# ## What still hurts
#
# Sixteen GPUs run through the night. In the morning somebody asks for sequences of 131,072 tokens, and a single one does not fit on any of them. You know from lesson 09 how two GPUs share it; now it has to run on these nodes, and you know where to look when it does not.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** 12.5 to 12.7 and 12.10 of the [exercises](../exercises/release/12_on_the_cluster.ipynb), and then your own cluster.
#
# <details><summary>1. torchrun's table has rank 7 with -9 as its root cause, while the memory of its GPU was half empty. What do you suspect?</summary>
# The node's main memory, not the GPU's: workers of the data loader, or a checkpoint that is gathered on one rank. The system ends the largest process. <code>sacct</code> says <code>OUT_OF_MEMORY</code>.
# </details>
#
# <details><summary>2. Your job has a time limit of a day and a checkpoint every six hours. What do you lose each night, and what costs less than a checkpoint every hour?</summary>
# Up to six hours, if the limit comes just before the next checkpoint. A signal two minutes before the limit costs one checkpoint a day, and loses nothing.
# </details>
#
# <details><summary>3. The loss of last night's run is smooth, and a little worse than last month's. No norm has jumped. Where do you begin?</summary>
# Not in the log. Compare the checksums of replicas, then the rows that were read after each restart, and then climb the ladder of lesson 03 with last month's code beside it.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## A place to meet for each attempt
#
# In PyTorch 2.13 a restart over gloo succeeds by luck: with two ranks in some of our trials, with four in none. The second attempt meets at the same store as the first, finds the addresses of dead ranks there, and ends with "Connection refused", or hangs. So every attempt needs a name of its own. torchrun tells each rank how often it was restarted, but every node counts that for itself, so two nodes may have two numbers. In `train` rank 0 invents a name. The others ask for it under a key that they have just made up. Only a living rank 0 can answer there, and a dead one's answers lie under other keys.

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
# ## Logbooks of others
#
# What do people do who train for months? Read the left column first, and say what you would do.
#
# | in the logbook | what it was | what they did |
# | --- | --- | --- |
# | PaLM: the loss jumps, about twenty times, in spite of clipping | certain batches, at certain weights; the same batches did no harm elsewhere | went back a hundred steps, and left out a few hundred batches |
# | OPT-175B, run 12.43: the norms of gradients and of activations begin to drift, the loss does not | not said; in another run, 12.45.2, the loss followed such jumps and diverged | lowered the learning rate by a tenth, and the second time to two thirds of GPT-3's |
# | BLOOM, 28 April: 149 TFLOP/s<!-- =149 --> a GPU become 141 within three steps, and stay there; the loss goes on falling | one slow GPU in one node, and a network test that found nothing | left nodes out, three at a time, until it was fast again |
# | BLOOM, 24 March: nothing at all; somebody finds that the norm layers' weights differ between tp ranks | gradients were clipped on the first tp rank alone, and a second cause, older than this run | averaged these weights in each forward, while they looked for the cause |
# | BLOOM, 30 April: an evaluation hangs for three hours, with every GPU at work, and no time limit speaks | a data loader's worker that never answers; `py-spy` over `srun` showed it in the end | a barrier first, which did not help; then a loader without workers for evaluation |
# | Llama 3: the run stops, again and again | faulty GPUs and their memory in half of the cases | automatic restart, and tools that name the slow rank |
#
# Most of these you have met on these two pages. Count what each cost, too: BLOOM lost seven hours because a GPU died two steps before a checkpoint was due, and from then on wrote more often, in the end every hundred steps. The hanging evaluation cost 18 hours, on a weekend. OPT counted 35 restarts by hand in two months, and more than seventy by machine.
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
# Read a configuration before you start it. Of [theirs](https://github.com/KempnerInstitute/OLMo/blob/main/README_KempnerInstitute.md) four lines are worth a question. Both files, that of 1B too, call the run `OLMo-7B`; their job script gives it the job's name instead, but who starts it by hand has two of one name. The learning rate warms up for 1,000 steps, but the run has 515, so it never gets there. `save_num_checkpoints_to_keep: -1` keeps all checkpoints, until the disk is full. And a batch of 128 is four GPUs with 32 sequences each, so on eight GPUs either the batch grows, or each takes 16.
#
# Our own job file, `job=olmo_7b_fsdp`, has their steps, batch, written rate, weight decay and recomputation. Its preset says what differs: two nodes with 16 sequences a GPU, since 32 on one node do not quite fit by our formula, and a warm-up of 50 steps. So our rate comes down again, to 0, and theirs still rises at the end. (It would come down to a tenth.) What `train` has otherwise: its Adam has a second beta of 0.999 and a small epsilon, theirs 0.95 and a larger one. It clips at 1 in each step, where theirs, which still warms up, clips at 10. And it decays norms, embeddings and biases, too. Our model is the workshop's formula made real: it learns its positions, and has biases and no norms within attention. So compare speeds and bytes with theirs, and not losses.
#
# %% [markdown]
# ## Wrapping policies and sharding strategies
#
# OLMo's configuration has both by name, and lesson 06 showed what they are. Which pairs fit? The table has the GiB on a GPU, and the seconds of a step's messages; what does not fit stands in brackets. `HYBRID_SHARD` shares among two of the four GPUs of one node, and on two nodes among the four of each.

# %%
from course_lib.config import ParallelConfig
from course_lib.costs import Software


def print_pairs(name, nodes, microbatch):
    """Wrappings down, strategies across, for 128 sequences a step."""
    job = planner.Job(
        model=load_model(name),
        cluster=replace(KEMPNER, n_nodes=nodes),
        batch=128,
        sequence=2048,
        microbatch=microbatch,
        parallel=ParallelConfig(dp=4 * nodes),
        recompute="layers",
        software=Software(kind="eager", kernel="flash2"),
    )
    rows = planner.wrapping_rows(job, planner.olmo_wrappings(job.model), shards=2 * nodes)
    print(f"{name}, nodes of four: {nodes}, {microbatch} sequences at a time")
    print(f"{'':26}" + "".join(f"{row.strategy:>18}" for row in rows[:4]))
    for first in range(0, len(rows), 4):
        line = f"{rows[first].wrapping:17} {rows[first].units:2} units"
        for row in rows[first : first + 4]:
            held = f"{row.memory_bytes / GiB:.0f} GiB"
            line += f"{f'{held}, {row.messages_s:.2f} s' if row.fits else f'({held})':>18}"
        print(line)


print_pairs("olmo_1b_workshop", 1, 32)
print_pairs("olmo_7b_workshop", 1, 16)
print_pairs("olmo_7b_workshop", 2, 16)

# %% [markdown]
# Of 1B all pairs fit, so it may have the simplest, which is DDP. Of 7B no pair with `NO_SHARD` fits, and that is why the workshop takes FSDP for it. Without wrapping all weights are gathered at once, and all gradients are whole until they are reduced, so of 7B no strategy fits without it. `HYBRID_SHARD` keeps a replica for each of its groups, and has room on two nodes only. Messages are a small part of these steps, since the batches are large.
#
# (`size_based` finds nothing in 1B that is large enough, and wraps nothing. OLMo has a few names more, for every second to fifth block and for groups with the vocabulary's matrices apart. And its own `by_block_and_size` makes two units more of 7B than ours, because it takes these matrices whatever their size.)
#
# `make olmo` runs the real packages on your CPU: `ai2-olmo` makes 33 units of the 7B `by_block`, as our count says, and a small OLMo of `ai2-olmo-core` has the same loss under DDP, FSDP and HSDP. [Its page](../wild/OLMO.md) has what it measured. It met a trap, too: as released, asynchronous checkpoints let some runs hang, and we leave out the metric that does it.
#
# ## The same lines in TensorBoard
#
# A run's lines are JSON, so any tool can draw them. TensorBoard wants files of its own, and ten lines write them. It is no part of this course's environment, because `pip install tensorboard` brings six further packages, some sixty megabytes, for curves that `watch` draws as well. Take it if your group compares runs there.
#
# ```python
# import json
# from pathlib import Path
#
# from torch.utils.tensorboard import SummaryWriter
#
# run = Path("FOLDER")
# with SummaryWriter(run / "tensorboard") as writer:
#     for line in (run / "metrics.jsonl").read_text().splitlines():
#         step = json.loads(line)
#         for name, value in step.items():
#             if isinstance(value, float):
#                 writer.add_scalar(name, value, step["step"])
# ```
#
# Then `tensorboard --logdir FOLDER` draws loss, norm, learning rate and tokens a second.
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
#
# References: Chowdhery et al. 2022, *PaLM*, section 5.1; Zhang et al. 2022, *OPT*, section 2.5, and its [chronicle of December 2021](https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/56_percent_update.md); [BLOOM's chronicle](https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md); Grattafiori et al. 2024, *The Llama 3 herd of models*, section 3.3.4; [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
