# %% [markdown]
# # 04 · Pipelines: four GPUs, one model
#
# In lesson 03 every GPU had a copy of the model. What if it does not fit? With gradients and optimizer states Llama 3.1 8B takes 120 GiB<!-- =16 * costs.model_parameters(LLAMA_3_1_8B) / GiB -->. But an H100 has only 74.5 GiB<!-- =load_device("h100_sxm_80").memory_bytes() / GiB -->.
#
# A model is a chain of layers, so cut it: each of four GPUs gets eight of the 32 layers, and hands its result to the next. GPU 0 also gets the embedding and GPU 3 the head, so these two keep most, 34 GiB<!-- =16 * (8 * costs.layer_parameters(LLAMA_3_1_8B) + 128256 * 4096) / GiB -->, and even that fits!
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace
from textwrap import fill

import torch
from torch import distributed as dist, nn
from torch.nn.functional import cross_entropy

from course_lib import comm, costs, ledger, predict, run_ranks, score, viz
from course_lib.costs import (
    ETHERNET,
    INFINIBAND,
    GiB,
    Work,
    find_convention,
    tensor_memory,
    load_device,
    pipeline_step,
)
from course_lib.schedules import (
    Durations,
    Forward,
    bubble_s,
    held,
    idle_s,
    make_schedule,
    problems,
    time_schedule,
)
from course_lib.training import (
    LLAMA_3_1_8B,
    MLP,
    Batches,
    Decoder,
    ModelConfig,
    ParallelConfig,
    TrainConfig,
    Trainer,
    load_text,
    load_tokens,
    make_mesh,
    stages,
)
from course_lib.verify import NotEqual, assert_parallel_equals, museum

# %%
ONE = Durations(forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)  # of one GPU's eight layers
in_one_piece = make_schedule("gpipe", 4, 1)  # four ranks, one batch; the name comes later

viz.plot_schedule(
    in_one_piece,
    ONE,
    title="Four GPUs, one model: who works when?",
    subtitle="one batch, number 0; forward lasts 1 ms, backward 2 ms; the times are chosen, not measured",
)

# %% [markdown]
# Each row is a rank: one GPU and its process. Its long box is backward, twice as long as forward because it computes two gradients, of weights and input. Look at any moment: one rank computes, and three wait. So we pay for four GPUs and get the speed of one!
#
# All the grey of a rank together is its **bubble**. On each rank its pieces make 9 ms<!-- =1 + 6 + 2 --> of 12 ms<!-- =4 * 3 -->, three quarters of the step. When we are done, the four wait for only 7 %<!-- =(lambda slots: 100 * sum(idle_s(slots, 4)) / 4 / max(slot.end_s for slot in slots))(time_schedule(make_schedule("zb-h1", 4, 32), [Durations(forward_s=n, backward_input_s=n, backward_weight_s=n) for n in (8, 9, 9, 6 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B))])) --> on average.

# %% [markdown]
# You will be able to
# - cut a model between its layers, train it on several ranks, and prove that it is the same training.
# - say how long each rank waits, and how much it remembers, before you run anything.
# - choose a schedule, a number of micro-batches and a link.
# - find mistakes that only a cut model can have.
#
# *50 minutes; the exercises take three and a half hours.*
#
# <details><summary>Before you start</summary>You need send and receive from lesson 00, the perceptron, micro-batches and the ladder from lesson 03. All ran on CPUs over gloo; NCCL and Slurm did not run.</details>

# %% [markdown]
# ## What has to come out
#
# Start with the smallest model that can be cut, the perceptron of lesson 03. It has two layers with weights, so there is one place to cut, and each part is called a **stage**. Rank 0 gets the stage with 28 of its 38 parameters, and rank 1 the other. One device finds a gradient for each of them.
#
# > **To keep.** Wherever a model is cut, its ranks together have to find one device's gradients.

# %%
torch.manual_seed(0)
model = MLP()
inputs = torch.randn(8, 6)
targets = (inputs[:, 0] > inputs[:, 1]).long()
cross_entropy(model(inputs), targets).backward()
whole = {name: weight.grad.clone() for name, weight in model.named_parameters()}
owners = {name: 0 if name.startswith("layer1") else 1 for name in whole}

viz.plot_mlp(dict(model.named_parameters()), owners=owners, title="One perceptron on two ranks")

# %% [markdown]
# ## Cut it by hand
#
# Forward is easy: rank 0 sends the four hidden numbers of each row, and rank 1 does the rest. The $f$ in the picture returns its input unchanged here, so the code leaves it out.
#
# Backward is harder, because autograd does not follow a message. What does rank 0 need to go on? It must know how the loss changes with the numbers that it **sent**. They were rank 1's input, so rank 1 computes their gradient too and sends it back. Then rank 0 calls `hidden.backward(g)`, which says: go on from here, with gradient `g`.
#
# **Predict.** How many bytes cross the cut?

# %%
# %%ranks 2 --push model,inputs,targets --pull mine
from course_lib.comm import recv, send
from torch.nn.functional import cross_entropy

if rank == 0:
    hidden = model.layer1(inputs)
    send(hidden.detach(), 1)  # only numbers travel
    g = recv(torch.empty(8, 4), 1)
    hidden.backward(g)
else:
    hidden = recv(torch.empty(8, 4), 0).requires_grad_()
    cross_entropy(model.layer2(hidden), targets).backward()
    send(hidden.grad, 0)

mine = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

# %%
predict(
    "bytes that cross the cut",
    guess=None,
    answer=sum(map(ledger().bytes_sent, (0, 1))),
    unit="bytes",
    think="what of a row crosses the cut, and in which directions",
)
print(
    "gradients on the two ranks:", [sum(gradient.numel() for gradient in part.values()) for part in mine]
)
print(
    "equal to one device:", all(torch.allclose((mine[0] | mine[1])[name], whole[name]) for name in whole)
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# 8 × 4 numbers of 4 bytes<!-- =4 --> cross the cut twice: forward as hidden numbers, and back as their gradients. The weights do not travel at all, however many there are! And nothing is averaged, unlike in lesson 03, because each weight lies on one rank only.
#
# > **To keep.** Activations cross a cut, and their gradients come back. Weights never travel.
#
# </details>
#
# Cutting a model like this is called **model parallelism**. It saves memory and was easy to get right. But the grey of the first picture is still there.

# %% [markdown]
# ## First attempt: smaller pieces
#
# Rank 1 waits in the first millisecond because rank 0 computes the whole batch first. So cut the batch into **micro-batches**: then rank 1 begins with the first while rank 0 computes the second. Their gradients add up in `.grad`, as in lesson 03. The simplest order, all forwards and then all backwards, is called **GPipe**.
#
# **Predict.** We cut a batch eight times as large into eight, so that boxes still last 1 ms<!-- =1 --> and 2 ms<!-- =2 -->. For which fraction of the step does a rank wait? This is called the **bubble fraction**. Draw rank 3's row.

# %%
gpipe = make_schedule("gpipe", 4, 8)
slots = time_schedule(gpipe, ONE)
predict(
    "bubble fraction, between 0 and 1",
    guess=None,
    answer=idle_s(slots, 4)[3] / max(slot.end_s for slot in slots),
    think="how long rank 3 waits before its first forward and after its last backward, "
    "and how long it computes",
)
viz.plot_schedule(
    gpipe, ONE, title="GPipe: four ranks", subtitle="eight micro-batches, numbered in their boxes"
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look at rank 3. It begins when the first micro-batch is through the three others. At the end the last micro-batch still goes backward through them. Together that is a bubble of 9 ms<!-- =3 * 1 + 3 * 2 -->, as in the first picture, but now beside more work!
#
# Count in micro-batches of 3 ms<!-- =1 + 2 -->: a rank works for 8 and waits for 3, which is 3/11 of the step. With $p$ ranks and $m$ micro-batches it works for $m$ and waits for $p-1$:
#
# $$\text{bubble fraction} = \frac{p-1}{m+p-1}$$
#
# </details>

# %% [markdown]
# With 32 micro-batches the bubble fraction is only 3/35. So take that many, and let each be one sequence of 4096 tokens. Does that fit into memory?
#
# What a forward computes, its **activations**, has to stay until the backward of the same micro-batch. Under GPipe all forwards come first, so rank 0 has to remember all sequences at once.

# %%
H100, SPREAD, ADAM = load_device("h100_sxm_80"), ParallelConfig(pp=4), find_convention("zero")
one_text = tensor_memory(LLAMA_3_1_8B, SPREAD, Work(sequence=4096, microbatch=1), ADAM)

viz.plot_gpu_memory(
    {
        f"GPU 0 remembers {count} sequence{'s' * (count > 1)}": replace(
            one_text, activations=count * one_text.activations
        )
        for count in (1, 32)
    },
    H100,
    title="Llama 3.1 8B on four GPUs: what GPU 0 holds",
)

# %% [markdown]
# The bars are rank 0's GPU, GPU 0. Look at the blue: by the course's formula for eight layers one sequence takes 5.16 GiB<!-- =tensor_memory(LLAMA_3_1_8B, ParallelConfig(pp=4), Work(sequence=4096, microbatch=1), find_convention("zero")).activations / GiB -->, and 32 are far too much.
#
# > **To keep.** More micro-batches make the bubble a smaller part of the step, but GPipe has to remember every one of them.
#
# Can a rank wait little *and* remember little?
#
# ## Second attempt: backward as soon as you can
#
# In GPipe's picture the last rank could go backward after its first forward, but it goes forward seven more times. So go backward **as soon as you can**: the last rank alternates from the start, one forward, one backward. Rank 0 sends a few micro-batches ahead and then **stops**, to have little to remember. When its first gradient comes, it alternates too. This order is called **1F1B**.
#
# **Predict** its bubble.

# %%
one_f_one_b = make_schedule("1f1b", 4, 8)
predict(
    "ms of bubble under 1F1B",
    guess=None,
    answer=1e3 * bubble_s(time_schedule(one_f_one_b, ONE), 4),
    unit="ms",
    think="rank 3 once more: when can it begin, and what has to happen after its last backward?",
)
viz.plot_schedules(
    {"GPipe": gpipe, "1F1B": one_f_one_b},
    ONE,
    title="All forwards first, or backward as soon as you can",
    subtitle="eight micro-batches on four ranks; every rank of a schedule waits equally long",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The bubble is as long as before: 9 ms<!-- =3 * 3 -->. Look at rank 0: under GPipe it waits once, under 1F1B a third less and then in three slits. The sum cannot change, because rank 3 still begins after three forwards, works without a pause, and has three backwards after it.
#
# </details>
#
# So why does everybody use 1F1B? Because of what a rank has to **remember**.
#
# **Predict.** Under GPipe rank 0 remembers all 32 micro-batches. How many under 1F1B? Go along its row in the picture of eight: add one at each forward, and take one away at each backward.

# %%
predict(
    "of 32 micro-batches, rank 0 remembers at most",
    guess=None,
    answer=held(make_schedule("1f1b", 4, 32), 0).in_flight,
    think="which part of rank 0's row grows when there are more micro-batches",
)
viz.plot_held(
    {"GPipe": gpipe, "1F1B": one_f_one_b}, title="What each rank remembers of eight micro-batches"
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Rank 0 remembers only four micro-batches: they are **in flight**. Why four? When it has micro-batch 0 back, it begins number 4. Follow this one in 1F1B's picture: it reaches rank 3 just when rank 3 has finished the four before! If rank 0 sent it earlier, it would only queue there.
#
# Each further rank's **round trip** is shorter by a forward and a backward, so it needs one micro-batch less. Of $p$ ranks, rank $i$ has $p-i$ in flight. So our GPU 0 needs 54.5 GiB<!-- =tensor_memory(LLAMA_3_1_8B, ParallelConfig(pp=4), Work(sequence=4096, microbatch=1, n_microbatches=32), find_convention("zero")).total / GiB -->, three sequences more than the upper bar, and it fits.
#
# > **To keep.** 1F1B waits as long as GPipe. What it saves is memory.
#
# </details>

# %% [markdown]
# ## Third attempt: what can wait?
#
# Every rank still waits for 9 ms<!-- =3 * 3 -->. Which work could it put off, and do while it waits? Backward computes two gradients, so ask who needs them. The stage before you is idle until it gets the gradient of your **input**, but that of your **weights** is needed by nobody until the optimizer runs. So send the first at once, and compute the second when you would be idle anyway.
#
# Here are both gradients for rank 1 of the perceptron. What must it keep for the second?

# %%
hidden = model.layer1(inputs).detach()  # what rank 1 received
y = model.layer2(hidden).detach().requires_grad_()
cross_entropy(y, targets).backward()
of_output = y.grad  # the gradient of the output, (8, 2)

of_input = of_output @ model.layer2.weight  # (8, 4): rank 0 is waiting for it
of_weight = of_output.T @ hidden  # (2, 4): nobody is waiting for it

print("the weight's gradient is one device's:", torch.allclose(of_weight, whole["layer2.weight"]))
print("and rank 0's, from what it is sent:  ", torch.allclose(of_input.T @ inputs, whole["layer1.weight"]))

# %% [markdown]
# The two gradients are two products, and neither needs the other. But `of_weight` needs `of_output` and the layer's input `hidden`, so rank 1 keeps these two a little longer.
#
# With backward split there are three kinds of boxes, and each lasts 1 ms<!-- =1 -->. Call their durations $F$ for forward, $B$ for the gradient of the input, and $W$ for that of the weights.
#
# **Predict.** Each rank keeps 1F1B's order, but its backward computes only $B$, and it fills its waits with $W$. How long is the bubble now?

# %%
zero_bubble = make_schedule("zb-h1", 4, 8)
predict(
    "ms of bubble that are left",
    guess=None,
    answer=1e3 * bubble_s(time_schedule(zero_bubble, ONE), 4),
    unit="ms",
    think="rank 3 once more: during which of its waits is there work that was put off",
)
display(
    viz.plot_schedules(
        {"1F1B": one_f_one_b, "ZB-H1": zero_bubble},
        ONE,
        title="Weights' gradients fill the waits",
        subtitle="eight micro-batches on four ranks; every rank of a schedule waits equally long",
    ),
    viz.plot_held(
        {"1F1B": one_f_one_b, "ZB-H1": zero_bubble},
        title="What each rank remembers at most",
        subtitle="in micro-batches; under ZB-H1 the two bars of a rank are never full at the same time",
    ),
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In the lower schedule rank 3 waits for three forwards. Later $W$ fills each wait. While its last gradient goes back through three ranks, it does the dark red boxes that it put off. Rank 3 would wait for three forwards and three steps back, and $W$ fills three of these, so 3 ms<!-- =3 + 3 - 3 --> are left. With $p$ ranks, if $m \ge p$ and $W$ is no longer than $F$ or $B$:
#
# $$\text{bubble} = (p-1)\,(F + B - W)$$
#
# This is **ZB-H1**, for *zero bubble*, although some is left. Rank 3 pays: instead of one micro-batch it now **stashes** inputs and gradients of four. Yet in flight and stashed together, no rank ever holds more than four.
#
# > **To keep.** Somebody waits for the input's gradient and nobody for the weights', so compute these in what would be bubble.
#
# </details>

# %% [markdown]
# ## Build it: a schedule is a list
#
# GPipe and 1F1B differ only in the order of their boxes, so write each row down: a **schedule** is one list for each rank. `Forward(3, 0)` means stage 3, micro-batch 0.
#
# The loop below walks along such a list, and at each box does what we did by hand: receive, compute, send. Its `isend` returns at once, so a rank goes on while its message travels.
#
# Four new processes have three layers each. Look at the bytes that rank 1 sends: do micro-batches change how many there are?

# %%


def follow(schedule, stage, rows, goals):
    """Do what this rank's list says; return its loss, and how many micro-batches it remembered at most."""
    rank, last = dist.get_rank(), schedule.n_ranks - 1
    remembered, travelling, loss, most = {}, [], 0.0, 0
    for box in schedule.computes(rank):
        k = box.microbatch
        if isinstance(box, Forward):
            x = rows[k] if rank == 0 else comm.recv(torch.empty_like(rows[k]), rank - 1).requires_grad_()
            y = stage(x)
            if rank == last:
                y = cross_entropy(y, goals[k], reduction="sum") / sum(
                    map(len, goals)
                )  # by all rows of the batch
                loss += y.item()
            else:
                travelling.append(comm.isend(y.detach(), rank + 1))
            remembered[k] = x, y  # until micro-batch k comes back
            most = max(most, len(remembered))
        else:
            x, y = remembered.pop(k)
            y.backward(None if rank == last else comm.recv(torch.empty_like(y), rank + 1))
            if rank > 0:
                travelling.append(comm.isend(x.grad, rank - 1))
    for message in travelling:  # all have begun; they must end before we return
        message.wait()
    return loss, most


print("rank 3 under GPipe:", *list(gpipe.computes(3))[:4], "…")
print("rank 3 under 1F1B: ", *list(one_f_one_b.computes(3))[:4], "…")

# %%
torch.manual_seed(0)
deep = nn.Sequential(*(nn.Sequential(nn.RMSNorm(5), nn.Linear(5, 5), nn.GELU()) for _ in range(12)))
rows, goals = torch.randn(16, 5), torch.randint(5, (16,))
alone = cross_entropy(deep(rows), goals)
right = torch.autograd.grad(alone, list(deep.parameters()))


def one_step(schedule):
    stage, m = deep[3 * dist.get_rank() :][:3], schedule.n_microbatches
    loss, most = follow(schedule, stage, rows.chunk(m), goals.chunk(m))
    return loss, most, [weight.grad for weight in stage.parameters()]


sent = {}
for name, schedule in (("one piece", in_one_piece), ("GPipe", gpipe), ("1F1B", one_f_one_b)):
    losses, most, found = zip(*run_ranks(one_step, 4, schedule), strict=True)
    torch.testing.assert_close(sum(found, []), list(right))
    sent[name] = ledger().bytes_sent(1)
    print(
        f"{name:9}  loss {losses[3]:.4f}, gradients of one device; "
        f"the ranks remembered {most} micro-batches"
    )
print("bytes that rank 1 sent:", sent)

# %% [markdown]
# One loop follows three schedules, and each time it finds the gradients of one device. It also counts what the ranks remember, and finds the bars of the second attempt. ZB-H1's two kinds of backward need the library's loop.
#
# Micro-batches change when the bytes travel and in how many messages, but not their number.
#
# > **To keep.** A schedule is only an order: gradients and bytes are the same whichever you take.

# %% [markdown]
# ## Prove it
#
# A training needs more than the gradients of one step, so climb the ladder of lesson 03. The library's loop trains a small decoder of Llama's shape, whose six layers do not divide by four.
#
# Two more things make it hard. Micro-batches have unequal numbers of targets, so each sum of losses is divided by the number of all targets. And the embedding is **tied**: the matrix that looks tokens up on the first stage also makes the logits on the last. So it lies on two ranks, and each sees only one of its uses. The library takes care of that, and in exercise 04.10 you do.

# %% varies="the last digits of rounding differ between processors"
SMALL = ModelConfig(
    name="small",
    hidden_size=32,
    n_layers=6,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=88,
    vocab_size=512,
    tied=True,
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=16, ragged=True)


def decoder_alone(config):
    return Trainer(Decoder(SMALL), config)


def decoder_under(schedule):
    def make(config, *bugs):
        mesh = make_mesh(pp=schedule.n_ranks)  # pp: pipeline parallel, the mesh's name for these ranks
        return Trainer(Decoder(SMALL), config, mesh=mesh, apply=(stages(schedule), *bugs))

    return make


report = assert_parallel_equals(decoder_alone, decoder_under(one_f_one_b), text, world_size=4)
viz.plot_ladder(
    report.deviations, tolerance=report.tolerance, title="1F1B on four ranks trains like one device"
)

# %% [markdown]
# All dots lie far to the left of the dashed line, so only rounding separates four ranks from one device.
#
# > **To keep.** A pipeline is the same training, even with a tied matrix and unequal micro-batches.
#
# ## Measure
#
# Do four processes really wait where the picture says? On a single core no schedule would be faster than another, because whenever one process waits, another takes its core. So we use the emulated clock: each computation is a sleep, 20 times longer than shown, and messages take as long as over InfiniBand. Only these times are emulated; the list, the processes and the messages are real.

# %% varies="measured times"


def timed_step(schedule, durations):
    """One step on the emulated clock; the layers are tiny, and `durations` say how long they take."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(schedule.n_stages)]
    mesh, apply = make_mesh(pp=schedule.n_ranks), (stages(schedule, durations=durations),)
    trainer = Trainer(nn.Sequential(*layers), TrainConfig(), mesh=mesh, apply=apply)
    comm.ledger.clear()
    with comm.emulated(comm.EmulatedClock(inside=INFINIBAND, slowdown=20)):
        trainer.compute_gradients((torch.ones(24, 6), torch.zeros(24, dtype=torch.long)))


run_ranks(timed_step, 4, one_f_one_b, ONE)
viz.plot_schedule_run(one_f_one_b, ledger(), ONE, title="Four processes wait where the list says")

# %% [markdown]
# Compare the lower four rows, the run of the processes, with the upper four, simulated from the list. They agree box for box, but end a little later, because messages and the processes themselves take time.
#
# > **To keep.** Processes wait where their list says, so a schedule can be judged before anything runs.

# %% [markdown]
# ## In PyTorch alone
#
# [`scripts/04_pipeline.py`](scripts/04_pipeline.py) is the next stage of the script: it cuts the same decoder between layers. This is what changes against data parallelism:

# %%
from pathlib import Path

viz.show_difference(Path("scripts/03_ddp.py"), Path("scripts/04_pipeline.py"))

# %% [markdown]
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `deep[3 * rank :][:3]` | `PipelineStage(model, rank, ranks, device)` | a first message tells each stage its shapes |
# | `make_schedule("1f1b", …)` | `Schedule1F1B(stage, MICRO_BATCHES, loss_fn=…)` | the list is made inside |
# | `follow(…)` | `schedule.step(inputs, target=…)` | `step` cuts the batch itself; only the first stage gives it inputs |
# | one norm for all stages | `get_total_norm` | one stage's; you add up the squares |
# | the tied matrix | – | you take care of it, as in exercise 04.10 |
#
# Start it on 2 and on 4 processes: `torchrun --nproc-per-node 4 scripts/04_pipeline.py`. The losses are those of `python scripts/01_one_device.py`.
#
# **Your turn.** Give the schedule `scale_grads=False`. What happens to the gradients' length, and why?
#
# <details><summary>What you should see</summary>It is four times as long in the first step. PyTorch divides by the number of micro-batches, as if each loss were its own mean, and here each is. Clipping takes the factor away again, so the first losses look right.</details>

# %% [markdown]
# ## Bug museum
#
# The small tied decoder trains on four ranks under ZB-H1, with AdamW and clipping. After step 20 each run saves a checkpoint and goes on from it. Each of the runs A to D **may** have a bug that one device cannot have. The next cell draws their losses.
#
# **Predict.** Which runs would you trust? Name them, as `"AC"` or `"none"`.

# %% varies="forty steps of rounding differ between processors"
decoder_on_ranks = decoder_under(zero_bubble)
names = sorted(
    [*museum.PIPELINE_BUGS, "sound"], key=lambda name: name[::-1]
)  # an order that gives nothing away
exhibits = {
    "A": names[4],
    "B": names[2],
    "C": names[8],
    "D": names[1],
}  # print them after you have decided
makers = {
    run: museum.PIPELINE_BUGS[name].planted(decoder_on_ranks) if name != "sound" else decoder_on_ranks
    for run, name in exhibits.items()
}
plain = replace(text, ragged=False)  # all micro-batches count alike
curves = {"one device": museum.curve_alone(decoder_alone, plain.batch, 40).losses}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, plain.batch, world_size=4, steps=40).losses
viz.plot_loss_curves(curves, title="Which of these runs are sound?")

# %% varies="forty steps of rounding differ between processors"
predict(
    "the sound runs",
    guess=None,
    answer="".join(run for run in exhibits if exhibits[run] == "sound"),
    think="how fast rounding can take two runs apart, and what else happens at step 20",
)
for run, make in makers.items():
    try:
        assert_parallel_equals(decoder_alone, make, plain, world_size=4)
        print(f"run {run}: equal on all rungs")
    except NotEqual as error:
        what, _, way_out = str(error).split("; ", 2)
        print(f"run {run} falls on: {error.rung}")
        print(fill(what.partition(": ")[2], 110, initial_indent="    ", subsequent_indent="    "))
viz.plot_loss_differences(curves)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The ladder computes in float64, and finds that only B is sound. In the second picture even B drifts from one device: it adds in another order, here in float32, and training makes rounding grow, slowly. The others jump when their bugs first change a weight. C jumps at the first update, because its lists end early: the last micro-batch's gradients of weights are never computed.
#
# </details>
#
# In the first picture A looks as sound as B, so `"AB"` was a good guess. Its gradients are right, but each stage clips by its own norm, which is smaller than the whole model's, so clipping multiplies by a wrong factor. AdamW's first update divides any factor away, so A jumps one update later.
#
# D lies on B until its checkpoint, which holds the optimizer of one stage only. The other optimizers begin anew, and the loss even looks better! So the ladder's last rung is save and load. Links to real bugs like these stand at the end of the page.
#
# > **To keep.** A stage sees only a part, so a norm or a checkpoint of the whole model has to be put together.

# %% [markdown]
# ## Back to the four GPUs
#
# In the formulas so far messages were free, but at each cut of our Llama a sequence is a message of 34 MB<!-- =4096 * 4096 * 2 / 10**6 -->. Over InfiniBand it takes less than a hundredth of the time for which a rank works on a sequence. So over a fast link a pipeline can run **between nodes**. *Going deeper* shows what a slow one costs.
#
# But GPU 3 also has the head, so the others wait.
#
# **Your turn.** Move layers in `mine` until the average wait is below 8 %<!-- =8 -->.

# %%
p, m = 4, 32
layer_flops = (
    2 * costs.layer_parameters(LLAMA_3_1_8B) * 4096
)  # of a sequence's forward, without attention's scores
layer_s = layer_flops / (0.4 * H100.peak_flops_per_s())
text_bytes = 4096 * LLAMA_3_1_8B.hidden_size * 2  # what crosses a cut, in bfloat16
message_s = {
    link.name: link.alpha_s + text_bytes / link.bandwidth_bytes_per_s for link in (INFINIBAND, ETHERNET)
}


def even(s):
    """Three parts of `s` seconds each."""
    return Durations(forward_s=s, backward_input_s=s, backward_weight_s=s)


def waits(name, layers, message_s, v=1):
    """The share of the step for which each rank waits; rank r has the work of `layers[r]` layers."""
    work = [even(n * layer_s) for n in layers]
    slots = time_schedule(make_schedule(name, p, m, stages_per_rank=v), work, message_s=message_s)
    return [idle / max(slot.end_s for slot in slots) for idle in idle_s(slots, p)]


head = LLAMA_3_1_8B.vocab_size * LLAMA_3_1_8B.hidden_size / costs.layer_parameters(LLAMA_3_1_8B)
mine = [8, 8, 8, 8]  # 32 layers on four GPUs: move them
assert sum(mine) == 32, f"{sum(mine)} layers, and the model has 32"

shares = waits("zb-h1", [*mine[:3], mine[3] + head], message_s["InfiniBand"])
print(f"the head is the work of {head:.1f} layers; zb-h1 over InfiniBand:")
waited = ", ".join(f"{share:.1%}" for share in shares)
print(f"GPUs with {mine} layers wait {waited}: {sum(shares) / p:.1%} on average")
score()

# %% [markdown]
# With the head GPU 3 has the work of 10.4 layers, and the others wait for a quarter of the step. <details><summary>One answer</summary>If two others take one each, nobody has more than nine, and the average wait is 7 %<!-- =(lambda slots: 100 * sum(idle_s(slots, 4)) / 4 / max(slot.end_s for slot in slots))(time_schedule(make_schedule("zb-h1", 4, 32), [Durations(forward_s=n, backward_input_s=n, backward_weight_s=n) for n in (8, 9, 9, 6 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B))])) -->. <code>[8, 9, 9, 6]</code> spares GPU 0, the fullest.</details>
#
# | if | then |
# | --- | --- |
# | the model fits one GPU | use data parallelism |
# | it fits one node | cut it like this, or as in lessons 05 and 06 |
# | it needs several nodes | run the pipeline between them, over fast links |
# | backward can be split | take ZB-H1, else 1F1B |
# | memory is left, links are fast | *interleaved*, in *Going deeper* |
#
# > **To keep.** A pipeline sends little, so it may run between nodes. What it asks for is many micro-batches and equal stages.

# %% [markdown]
# ## The file behind this lesson
#
# [`course_lib/parallel/pipelines/executor.py`](../course_lib/parallel/pipelines/executor.py), about 300 lines, walks along a rank's list as your loop did, for every schedule of this page. It adds messages that travel while the rank computes, the two halves of a backward, and several stages on one rank.
#
# ## What still hurts
#
# The four GPUs waited for three quarters of the step, and now for 7 %<!-- =(lambda slots: 100 * sum(idle_s(slots, 4)) / 4 / max(slot.end_s for slot in slots))(time_schedule(make_schedule("zb-h1", 4, 32), [Durations(forward_s=n, backward_input_s=n, backward_weight_s=n) for n in (8, 9, 9, 6 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B))])) --> on average. But that takes many micro-batches. Either the batch grows with them, or each gets so small that a GPU has little to do.
#
# And a cut runs between layers, so each layer has to fit into one GPU. A single sequence goes through no faster than on one GPU, either. Could two GPUs work on *one* layer together?
#
# **Next:** the [exercises](../exercises/release/04_model_and_pipeline_parallelism.ipynb), then [lesson 05](05_tensor_parallelism.ipynb). `make slides` builds the slides.

# %% [markdown]
# ## Questions
#
# <details><summary>1. Which rank runs out of memory first?</summary>
# Under 1F1B the first, because it waits longest for a gradient and so remembers most, unless the logits on the last rank take more.
# </details>
#
# <details><summary>2. Eight ranks, 1F1B, and less than a twentieth of the step idle. How many micro-batches?</summary>
# 7/(m+7) &lt; 1/20, so at least 134. The first rank still remembers eight.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## Smaller stages: interleaved
#
# Rank 3 begins after three forwards of a whole stage. Smaller stages would let it begin sooner. But we have only four ranks, so give each of them **two** small stages. Rank 0 has stages 0 and 4, rank 1 has 1 and 5, and a micro-batch goes round twice. A rank does not have more to compute: each of its two stages takes half of `ONE`.
#
# **Before you run it**: how long is the bubble? And what happens to the messages?

# %%
interleaved = make_schedule("interleaved", 4, 8, stages_per_rank=2)
display(
    viz.plot_schedule(
        interleaved, ONE, title="Interleaved", subtitle="two stages on each rank, half as long each"
    ),
    viz.plot_held(
        {"1F1B": one_f_one_b, "interleaved": interleaved}, title="What each rank remembers at most"
    ),
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Rank 3 waits for three forwards and three backwards of half a stage: 4.5 ms<!-- =3 * 0.5 + 3 * 1 -->. With $v$ small stages on each rank
#
# $$\text{bubble} = \frac{1}{v}\,(p-1)(F+B+W)$$
#
# A micro-batch crosses seven cuts instead of three, so more than twice as much is sent. Count rank 0's boxes before its first backward: eleven activations, each of half a rank, so the bar says 5.5. All this holds if $p$ divides $m$.
#
# </details>

# %% [markdown]
# ## Choose a schedule yourself
#
# Which schedule waits least? (*Interleaved* gives each rank several small stages in place of one.) Run the cell, and first watch a line sweep over all four. The strip below each counts the micro-batches in flight on its fullest rank, without the stash.
#
# Then use the controls: make the bubble as small as you can, with at most four micro-batches in flight, then five.
#
# <details><summary>What you may have found</summary>With four in flight, ZB-H1 with 32 micro-batches leaves 3 percent<!-- =100 * 3 / (32 * 3 + 3) --> idle. With five, interleaved leaves 2.3 percent<!-- =100 * 2.25 / (32 * 3 + 2.25) -->, if each rank has four stages: GPU 0 remembers 19 quarters, or 4.75. With two stages it would be 11 halves, or 5.5!</details>

# %% varies="a widget"
four = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "Interleaved": make_schedule("interleaved", 4, 8, stages_per_rank=2),
    "ZB-H1": zero_bubble,
}
display(viz.animate_schedules(four, ONE))
viz.schedule_explorer()

# %% [markdown]
# ## When one stage is slower
#
# So far all stages took equally long. Now let rank 2 be a **straggler**: it takes twice as long for everything, because it has too many layers or its GPU is too warm.
#
# **Predict.** By how many percent does the step of 33 ms<!-- =8 * 3 + 9 --> get longer?

# %%
SLOW = Durations(forward_s=2e-3, backward_input_s=2e-3, backward_weight_s=2e-3)
uneven = [ONE, ONE, SLOW, ONE]
longer = max(slot.end_s for slot in time_schedule(one_f_one_b, uneven)) / 33e-3 - 1
predict(
    "percent longer",
    guess=None,
    answer=100 * longer,
    unit="%",
    think="how long rank 2 alone is busy with eight micro-batches, "
    "and what has to happen before and after",
)
viz.plot_schedule(
    one_f_one_b,
    uneven,
    title="One slow stage, and everybody waits for it",
    subtitle="1F1B; rank 2 takes 2 ms forward and 4 ms backward, the others 1 ms and 2 ms",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# All ranks together compute for only a quarter more time, but look at rank 2. It alone is busy for 48 ms<!-- =8 * 6 -->, longer than the whole step was before. It begins after 2 ms<!-- =2 * 1 --> and waits 1 ms<!-- =1 --> for its first gradient. When it has finished, the last micro-batch needs 4 ms<!-- =2 * 2 --> more on ranks 1 and 0. That makes 55 ms<!-- =8 * 6 + 2 + 1 + 4 -->. The other ranks wait for more than half of it, because every micro-batch has to pass rank 2.
#
# </details>
#
# > **To keep.** A pipe is as fast as its narrowest place, so cut a model by *work*, not by number of layers.
#
# ## Messages that take time
#
# What does it cost if the nodes have only a slow link between them? At each cut a sequence is a message of 34 MB<!-- =4096 * 4096 * 2 / 10**6 -->. It takes 0.7 ms<!-- =1e3 * (INFINIBAND.alpha_s + 4096 * 4096 * 2 / INFINIBAND.bandwidth_bytes_per_s) --> over InfiniBand and 10.8 ms<!-- =1e3 * (ETHERNET.alpha_s + 4096 * 4096 * 2 / ETHERNET.bandwidth_bytes_per_s) --> over our Ethernet of 25 Gbit/s<!-- =8 * ETHERNET.bandwidth_bytes_per_s / 10**9 -->, and for each sequence a rank works 108 ms<!-- =3 * 8e3 * 2 * costs.layer_parameters(LLAMA_3_1_8B) * 4096 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->.
#
# **Predict.** With free messages and 32 sequences, 1F1B waits for 3/35 of the step, which is 8.6 %<!-- =100 * 3 / 35 -->. Over this Ethernet a message is only a tenth of a sequence's work. For how much of the step does a rank wait now? Remember when rank 0 begins its fifth sequence.

# %%
over = {"free": 0.0} | message_s
predict(
    "percent of the step that a rank waits, under 1F1B over Ethernet",
    guess=None,
    answer=100 * waits("1f1b", [8] * p, message_s["Ethernet"])[0],
    unit="%",
    tolerance=0.1,
    think="how much later the first sequence is back at rank 0, "
    "and how often in a step rank 0 waits so much longer",
)
print("messages:  ", *(f"{link:>10}" for link in over), "  GPU 0 holds")
for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)):
    shares = [waits(name, [8] * p, seconds, v)[0] for seconds in over.values()]
    texts = held(make_schedule(name, p, m, stages_per_rank=v), 0).in_flight / v
    holds = one_text.total + (texts - 1) * one_text.activations
    print(f"{name:11}", *(f"{share:10.1%}" for share in shares), f"{holds / GiB:9.1f} GiB")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# See 1F1B: over InfiniBand a rank waits hardly longer, but over Ethernet for a fifth of the step! Four sequences filled the way there and back exactly. Now six messages lie on it too, so for every four sequences rank 0 waits that much longer.
#
# In 32 sequences there are eight such round trips, and if each took six messages longer, rank 0 would wait for 19.5 %<!-- =(lambda x: 100 * (3 * x + 48) / (35 * x + 48))(3 * 8 * 2 * costs.layer_parameters(LLAMA_3_1_8B) * 4096 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) / (ETHERNET.alpha_s + 4096 * 4096 * 2 / ETHERNET.bandwidth_bytes_per_s)) -->. But the last round trip takes ten: sequence 28 crosses three cuts to rank 3, and its gradient two, to rank 1. Only then does rank 1 send sequence 31 on: it crosses two cuts, and its gradient three, back to rank 0. That makes the table's 20.3 %<!-- =(lambda x: 100 * (3 * x + 52) / (35 * x + 52))(3 * 8 * 2 * costs.layer_parameters(LLAMA_3_1_8B) * 4096 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) / (ETHERNET.alpha_s + 4096 * 4096 * 2 / ETHERNET.bandwidth_bytes_per_s)) -->.
#
# </details>

# %% [markdown]
# GPipe and interleaved, here two small stages on each rank, have more sequences on the way, so they wait for a round trip's messages only once, but pay with memory. On GPU 0, the fullest, ZB-H1 needs no more memory than 1F1B. While messages travel, a rank can compute $W$, because no other rank waits for it. And a sequence's stash, inputs and output gradients of seven matrices, 69,632 numbers for each token and layer, takes 4.25 GiB<!-- =8 * 4096 * 2 * (6 * 4096 + 2 * 1024 + 3 * 14336) / GiB -->, less than the 5.16 GiB<!-- =tensor_memory(LLAMA_3_1_8B, ParallelConfig(pp=4), Work(sequence=4096, microbatch=1), find_convention("zero")).activations / GiB --> that it replaces.
#
# ## Llama 3.1 405B
#
# Meta trained it with 16 pipeline ranks, and each pipeline got 16 sequences of 8192 tokens in a step, our micro-batches. **Before you run it**: how large is the bubble fraction under 1F1B?


# %%
def planned(v):
    schedule = make_schedule("interleaved" if v > 1 else "1f1b", 16, 16, stages_per_rank=v)
    slots = time_schedule(schedule, Durations())
    return schedule, idle_s(slots, 16)[0] / max(slot.end_s for slot in slots)


print("stages of a rank   bubble   rank 7 sends   micro-batches remembered by rank 0, rank 15")
for v in (1, 2, 4, 8):
    schedule, idle = planned(v)
    messages = pipeline_step([1] * (16 * v - 1), n_ranks=16, n_microbatches=16).messages[7]
    first, last = (held(schedule, rank).in_flight / v for rank in (0, 15))
    print(f"{v:16}   {idle:6.0%}   {messages:12}   {first:.1f}, {last:.1f}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# If messages take no time, nearly half of the step is bubble with one stage a rank, and a tenth with eight. Eight stages on 16 ranks are 128: one for each of 126 layers, embedding and head. They cost messages, two for each micro-batch and stage of a rank, and memory on later ranks; rank 0 remembers all 16 anyway.
#
# </details>
#
# ## Can a list hang?
#
# Two ranks that wait for each other wait forever. `problems` reads a schedule's lists and looks for sends without receives, a backward before its forward, and ranks that wait in a circle. Here is a list in which rank 0 goes backward too early, and then the ladder for other schedules and sizes.

# %%
pair = make_schedule("gpipe", 2, 3)
# Each micro-batch has two entries: computing, and its message.
forwards, backwards = pair.lists[0][:6], pair.lists[0][6:]
too_early = (
    *forwards[:2],
    *backwards[:2],
    *forwards[2:],
    *backwards[2:],
)  # micro-batch 0 goes back before 1 has begun
print(problems(replace(pair, lists=(too_early, pair.lists[1]))))
for name, n_ranks, n_pieces, v in [("gpipe", 4, 8, 1), ("interleaved", 4, 4, 2), ("zb-h1", 3, 2, 1)]:
    schedule = make_schedule(name, n_ranks, n_pieces, stages_per_rank=v)
    assert problems(schedule) == []
    report = assert_parallel_equals(decoder_alone, decoder_under(schedule), text, world_size=n_ranks)
    print(f"{name:12} {n_ranks} ranks, {n_pieces} micro-batches: equal on {len(report.deviations)} rungs")

# %% [markdown]
# Rank 0 waits for the gradient of micro-batch 0, but rank 1 goes backward only after it has seen micro-batch 1, so neither moves. The last run is awkward on purpose: it has three ranks for embedding, six layers and head, and fewer micro-batches than ranks.

# %% [markdown]
# Real bugs like the museum's: [A](https://github.com/pytorch/torchtitan/issues/596) is the same bug. [C](https://github.com/NVIDIA/Megatron-LM/issues/1012) reports gradients of weights that come too late, after their all-reduce. Before [D](https://github.com/NVIDIA-NeMo/Automodel/pull/3250) was merged, a rank with several optimizers saved only the first, and failed with an error.
#
# References: Huang et al. 2018, *GPipe*; Narayanan et al. 2020, *PipeDream-2BW*, where the order 1F1B with a flush comes from; Narayanan et al. 2021, *Megatron-LM*, interleaving; Qi et al. 2023, *Zero bubble pipeline parallelism*; Llama team 2024, table 4; Kempner Institute 2024, the perceptron.
