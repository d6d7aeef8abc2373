# %% [markdown]
# # 00 · Start here: which of these two is wrong?
#
# Four processes train a tiny model together, twice, with the same data, start and number of steps. Yet in one of the two trainings every gradient is wrong. Run the folded cell below, which trains both and draws their losses. Its code comes back when you can read it.
#
# Every lesson begins with such a cell, which loads what the others use. Run it first, and again whenever you restart the kernel.

# %% folded=true varies="400 steps of rounding differ between processors"
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
import torch
import torch.distributed as dist

from course_lib import ledger, predict, run_ranks, score, viz
from course_lib.comm import naive


def train_tiny(divide_by, optimizer_class=torch.optim.Adam, lr=0.1):
    torch.manual_seed(0)
    data, solution = torch.randn(64, 8), torch.randn(8, 1)
    mine = data.tensor_split(dist.get_world_size())[dist.get_rank()]  # this process's rows
    w = torch.zeros(8, 1, requires_grad=True)
    optimizer, losses, gradients = optimizer_class([w], lr=lr), [], []
    for _ in range(40):
        losses.append(((data @ w - data @ solution) ** 2).mean().item())  # over all rows, to be drawn
        optimizer.zero_grad()
        ((mine @ w - mine @ solution) ** 2).mean().backward()
        dist.all_reduce(w.grad)
        w.grad /= divide_by
        gradients.append(w.grad.clone())
        optimizer.step()
    return torch.tensor(losses), torch.stack(gradients)


runs = {"training A": run_ranks(train_tiny, 4, 4)[0], "training B": run_ranks(train_tiny, 4, 1)[0]}
viz.plot_loss_curves(
    {name: losses.tolist() for name, (losses, _) in runs.items()},
    title="Two trainings on four processes; one has wrong gradients",
)

# %% [markdown]
# B's thin line lies in the middle of A's broad one. So from these losses nobody can say which training is the wrong one.

# %% [markdown]
# In forty-five minutes you will be able to
# - say which of the two is wrong, and why the loss cannot know.
# - run your own code on several processes, from a notebook.
# - find out from a single line of output why your processes hang.
#
# <details><summary>Before you start</summary>You should know Python, and have written a training loop in PyTorch. Everything here ran on CPUs over gloo, PyTorch's message library for them.</details>

# %% [markdown]
# ## Why several processes?
#
# A GPU like the H100 has 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB --> of memory. Training even a Llama of 8 billion parameters takes more, as lesson 01 counts. So several GPUs share the work, each with its own process. Since each computes only a part, they must exchange the parts and agree on one result. This course is about how they agree, what it costs, and how to notice if they do not. Processes on a CPU must agree too, so you need no GPU.
#
# Each process of a training is called a **rank**. Ranks are numbered from 0, and how many there are is the **world size**.

# %%
viz.plot_ranks(4)

# %% [markdown]
# Read the picture from left to right. Your notebook is not a rank itself, so it stands beside the four. It sends all of them the same cell, and it collects what each one answers. In a dark theme, our black and dark grey are light.
#
# A cell that begins with `%%ranks 4` runs on four ranks, all at once. Every other cell runs in the notebook.

# %%
# %%ranks 4
print(f"I am rank {rank} of {world_size}")

# %% [markdown]
# Four processes have run the *same* cell, and they stay alive for the next one. What a rank prints stands after a bar, and the value of the cell's last line after an arrow.
#
# Each rank knows a few names from the start: `rank`, `world_size`, `torch`, and `dist`, short for `torch.distributed`.

# %% [markdown]
# ## Every rank has its own memory
#
# The next cell gives every rank the same seed, and each then draws a number. It also sets an `x`. **Before you run it**, say how many different numbers the four ranks draw: one or four. Think about whose random generator it is.

# %%
# %%ranks 4
torch.manual_seed(0)
draw = torch.randint(100, (1,)).item()
x = 100 - rank
draw, x

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# All four draw the same number. Each rank has a random generator in its own memory, but all four generators began with the same seed. That is how four processes of a training can start alike.
#
# But `x` is one name with four values, because each rank keeps an `x` of its own. The notebook, which is a process too, has no `x` at all.
#
# </details>
#
# > **To keep.** No rank can read the memory of another, so what another one needs has to be *sent*.

# %% [markdown]
# **Your turn.** The ranks stand in a circle. Let every rank show the number of the next one, where rank 0 comes after the last. It can compute that, so nothing is sent. Write the whole cell, its first line included, in place of the comment below. You should then read 1, 2, 3 and 0.
#
# <details><summary>One way to do it</summary><code>%%ranks 4</code> on the first line, <code>(rank + 1) % world_size</code> on the second.</details>

# %%
# your cell goes here, in place of this line

# %% [markdown]
# ## How do ranks agree?
#
# Even a model that fits on one GPU is trained on several, to save time. Each rank has a copy and its own quarter of the data, so each finds a different gradient. But all need the same one, or their copies drift apart. So they all make one call together, a **collective**. The most important one is **all-reduce**: each rank puts in a tensor, and every rank gets the same result.

# %% [markdown]
# Ranks 0 to 3 hold 1, 2, 3 and 4, and call all-reduce. **Predict** what rank 0 then holds, and write it in place of `None` in the second cell below. More than one answer would make sense, so settle on one.
#
# That second cell runs in the notebook, which cannot see the variables of a rank. So `--pull after` in the first cell fetches the variable `after`, as a list with one entry for each rank.

# %%
# %%ranks 4 --pull after
gradient = torch.tensor([rank + 1.0])
dist.all_reduce(gradient)
after = gradient.item()

# %%
predict(
    "rank 0 after all-reduce of 1, 2, 3, 4",
    guess=None,
    answer=after[0],
    think="one result for all, in which each rank has its part",
)
viz.who_holds_what("all_reduce", 4)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Each row is a rank. A to D are their tensors, and the picture cuts each into four **chunks**. Yours had one number, so look only at the first column. On the right every rank holds that column's sum, Σ0, striped in the colours of all four.
#
# Unless told otherwise, all-reduce **sums**. If you said 2.5, you averaged.
#
# </details>
#
# Somebody calls all-reduce twice on the same tensor. **Before you run it**, say what rank 0 then holds. Think about where the `--pull` cell found the sum.

# %%
# %%ranks 4
gradient = torch.tensor([rank + 1.0])
dist.all_reduce(gradient)
dist.all_reduce(gradient)
gradient.item()

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# All-reduce **overwrites**. So each rank brings 10 to the second call, and four tens make 40.
#
# > **To keep.** All-reduce gives every rank the sum, in place of what the rank itself has brought.
#
# </details>
#
# ## What is right?
#
# **Your turn.** Now each rank holds the square of its number, and wants the average of all four squares. Write what is missing below. Every rank also computes the average alone, and shows it after its own result.
#
# <details><summary>One way to do it</summary><code>dist.all_reduce(gradient)</code>, and on the next line <code>gradient /= world_size</code>. Then every rank shows 7.5 twice.</details>
#
# > **To keep.** In this course nothing counts as right until it equals the result of one process.

# %%
# %%ranks 4
gradient = torch.tensor([(rank + 1.0) ** 2])
# your lines go here, in place of this one
alone = torch.tensor([1.0, 4.0, 9.0, 16.0]).mean()
gradient.item(), alone.item()

# %% [markdown]
# ## What happens inside?
#
# The simplest all-reduce has two halves, each made of messages. First all other ranks send their tensors to rank 0, which adds them to its own. That is a **reduce**. Then rank 0 sends the sum to everybody, which is a **broadcast**.
#
# PyTorch's own call does not show its messages. So the course has collectives of its own, in `comm`. Their **ledger** notes for each message who sent it, to whom, and how many bytes. Below, each rank holds two numbers, and `naive` is the way through rank 0. This call leaves your tensor alone and returns the sum.

# %%
# %%ranks 4
from course_lib import comm

gradient = torch.tensor([rank + 1.0, 0.5])
comm.all_reduce(gradient, algorithm="naive")

# %% [markdown]
# Every rank gets both sums, 10 and 2. Each rank put in two numbers in float32, of 4 bytes<!-- =4 --> each. **Predict** how many bytes all four ranks sent together.

# %%
predict(
    "bytes that all four ranks sent",
    guess=None,
    answer=sum(ledger().bytes_sent(rank) for rank in range(4)),
    unit="bytes",
    think="both halves, and who need not send to whom",
)
viz.plot_bytes_matrix(ledger())

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look at the first row: rank 0 sent both sums to each of the three others. Every other rank sent its own tensor, and only to rank 0. So three messages travelled in each half, and six messages of eight bytes make 48.
#
# </details>

# %% [markdown]
# Below is the code that ran. Begin with the last line of `reduce`: every rank but the `root`, here rank 0, sends its tensor through its `port`. Now read the lines above it. The root makes `room` for one tensor, the `inbox`, and receives into it from one rank after another. Each time, `combine` adds the inbox to `x`, a copy of the root's own tensor. The line in quotes says what each function costs, for p ranks and a tensor of M bytes. Check it for `broadcast`: with p = 4 and M = 8 bytes<!-- =2 * 4 -->, does it give what the picture's first row adds up to?

# %%
display(viz.show_source(naive.reduce), viz.show_source(naive.broadcast))

# %% [markdown]
# So everything goes through rank 0. With a thousand ranks, rank 0 would receive 999 messages and then send 999, one after the other. Lesson 02 looks for a way without such a queue.
#
# > **To keep.** A collective is made of messages, so you can count what each rank sends.
#
# ## When one rank fails
#
# In the next cell rank 1 makes a mistake, and the other three go on to all-reduce. The process of rank 1 does not end with its mistake. **Before you run it**, choose what these three get: the sum of three, an error of their own, or nothing. PyTorch hides its messages, so think about the root's loop in our `reduce`.

# %% tags=["raises-exception"]
# %%ranks 4
gradient = torch.tensor([rank + 1.0])
if rank == 1:
    gradient = gradient / None
dist.all_reduce(gradient)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Read the last line of the output. It names the rank that failed, the line of your cell, and what the others were doing meanwhile. They got nothing. PyTorch's all-reduce needs a message from rank 1 as much as ours does, and rank 1 sent none. Left alone, they would wait until gloo's time limit, which is [half an hour](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group). To free them, the course replaced all four processes by new ones, so all variables are gone.
#
# If a rank fails in a script, its process ends, so its connections close. Gloo then tells those who wait for it: *Connection closed by peer*.
#
# > **To keep.** When a rank fails, the others wait for a message that never comes, so look for the one that failed first.
#
# </details>

# %% [markdown]
# ## When the calls do not match
#
# The most puzzling failure raises no error at all. It can happen when ranks disagree on which call comes next. Below, `dist.recv` waits for a message from the rank `src`, so rank 2 waits for one from rank 1. Meanwhile rank 1 calls all-reduce through rank 0, and that call is made of messages. `--timeout 3` sets a time limit in seconds. **Before you run it**, say whether one of these messages ends rank 2's wait.

# %% tags=["raises-exception"]
# %%ranks 4 --timeout 3
from course_lib import comm

gradient = torch.tensor([rank + 1.0])
if rank == 2:
    dist.recv(gradient, src=1)
else:
    comm.all_reduce(gradient, algorithm="naive")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# This line is a diagnosis. It says *which rank* waits in *which call* on *which line*. Here `#1` means the first collective of the cell.
#
# Rank 2 took the other branch, so it waits for a message from rank 1. In the code above rank 1 sends only to the root, so no message of all-reduce can end that wait. And the others? The root's loop needs the tensor of rank 2. Rank 1 needs the root's sum, and rank 3 still waits to send. So all others wait for rank 2, and rank 2 waits for rank 1.
#
# > **To keep.** In a hang ask of every rank in which call it waits, and for whom.
#
# </details>

# %% [markdown]
# ## Find this hang yourself
#
# The four ranks below stand in a circle again. Each wants to hand its number, 1 to 4, to the next one, and they hang. Run it, and say from the last line of the output alone why nobody can move. Then unfold the code and mend it, until each rank has received its neighbour's number.
#
# <details><summary>Why nobody can move</summary>All four receive before they send, so nobody sends.</details>
#
# <details><summary>One way to mend it</summary>Try all four sending first: that hangs as well, since over gloo <code>dist.send</code> waits until somebody receives. So let rank 0 alone send first and receive afterwards.</details>

# %% folded=true tags=["raises-exception"]
# %%ranks 4 --timeout 3
number, left, right = torch.tensor([rank + 1.0]), (rank - 1) % world_size, (rank + 1) % world_size
received = torch.empty(1)
dist.recv(received, src=left)
dist.send(number, dst=right)
received

# %% [markdown]
# ## Which of the two is wrong?
#
# You cannot miss such failures, but the two losses told you nothing. A and B ran the code below, with `divide_by` 4 in A and 1 in B, so B did not divide.
#
# All-reduce sums, so perhaps B is wrong. But look at `.mean()`: each rank's loss is an average already, over its own 16 rows. So perhaps A divides once too often. Let one process decide: in the second cell below, `run_ranks` runs the same code on one rank, which keeps all 64 rows. A gradient's **norm** is its length. **Predict** how many times as long B's first gradient is as that of one process.

# %%
viz.show_source(train_tiny)

# %%
one_process = run_ranks(train_tiny, 1, 1)[0]  # on 1 rank, with divide_by=1; what rank 0 returns
predict(
    "norm of B's first gradient, over that of one process",
    guess=None,
    answer=runs["training B"][1][0].norm() / one_process[1][0].norm(),
    think="the mean that one process takes, and what all-reduce makes of four means",
)
for name, (losses, gradients) in runs.items():
    times, gap = gradients / one_process[1], (losses - one_process[0]).abs().max()
    print(f"{name}, each entry over one process's: smallest {times.min():.1f}, largest {times.max():.1f}")
    print(f"{name}, its losses and those of one process: at most {gap:.5f} apart")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Four times as long, so B is wrong. The lines below the answer divide each entry of all 40 gradients by that of one process. B's smallest quotient is 4.0, and so is its largest; A's are 1.0. Where does the four come from? Each rank takes the mean over its own quarter of the rows, and all-reduce *adds* four such means. One process takes one mean over all rows. Since the quarters are equally long, its mean is the **average** of the four. B forgot to divide. In 2025 even PyTorch [did the same](https://github.com/pytorch/pytorch/issues/162338): over gloo, a call that was asked for the average gave the sum. Its developers labelled the report *silent*.
#
# </details>

# %% [markdown]
# But read the losses in the same output. B's are as right as A's, although each of B's updates came from a wrong gradient! How wrong must a gradient be before the loss shows it? Training C divides by 400, so its first gradient is a hundred times too short.

# %% varies="400 steps of rounding differ between processors"
runs["training C"] = run_ranks(train_tiny, 4, 400)[0]
losses = {name: losses.tolist() for name, (losses, _) in runs.items()}
norms = {name: gradients.norm(dim=(1, 2)).tolist() for name, (_, gradients) in runs.items()}
viz.plot_loss_curves(losses, norms, title="Three trainings, and the length of their gradients")

# %% [markdown]
# C's losses too are those of A. But in the lower panel, where equal distances are equal factors, B is always four times A, and C a hundredth.
#
# The reason is Adam, which divides each entry of a gradient by its recent size. In step 1 that is its own size, so an entry of 3 becomes 1, and C's 0.03 does too. Equal steps keep the weights equal, so C's next gradient is again a hundredth of A's. All that Adam remembers of C is a hundredth too, so the factor cancels in every step.

# %% [markdown]
# Plain SGD only multiplies the gradient by the learning rate. Longer steps learn faster, until they jump so far past the lowest point that the loss grows. With A's gradients and our data, it grew only at rates above 0.5. **Predict** whose loss is lowest in step 5. Type "A", "B" or "C".

# %%
lr = 0.1
with_sgd = {
    name: run_ranks(train_tiny, 4, divide_by, torch.optim.SGD, lr)[0][0][
        :5
    ].tolist()  # the first five losses
    for name, divide_by in {"training A": 4, "training B": 1, "training C": 400}.items()
}
predict(
    f"letter of the training whose loss is lowest in step 5, with SGD and a learning rate of {lr}",
    guess=None,
    answer=min(with_sgd, key=lambda name: with_sgd[name][-1])[-1],
    think="which learning rate would give A the steps of B, and which one those of C",
)
viz.plot_loss_curves(with_sgd, title=f"The first five steps with SGD and a learning rate of {lr}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# B, with wrong gradients! For SGD a factor in the gradient is a factor in the learning rate. So B trains as A would with 0.4, still below the limit of 0.5, and C as A would with 0.001. Now the mistake shows, but the curve that looks best has wrong gradients.
#
# </details>
#
# **Your turn.** Set `lr` to 0.2. Work out the three rates, predict again, and run the cell.
#
# <details><summary>What you should see</summary>A. B's rate is now 0.8, above the limit, so its steps jump too far and its loss grows.</details>
#
# > **To keep.** Trust no loss curve. Compare the gradients themselves with those of one process.

# %% [markdown]
# ## How to use this course
#
# In every lesson you do what you did here.
#
# 1. **Predict.** Commit to an answer before you run the cell.
# 2. **Run.** Processes and messages are real. Where a time was not measured, the picture says so.
# 3. **Explain.** If the answer surprised you, find out why before you go on.
#
# A word in bold is the field's own, so you can search for it. And most parts end with one sentence *to keep*: when you come back, read only these.

# %%
score()

# %% [markdown]
# ## A question
#
# <details><summary>Four ranks call all-reduce in a loop, but one leaves it early. What do you see?</summary>
# Nothing, until the cell reaches its time limit, which is 30 s<!-- =run_ranks.__kwdefaults__["timeout"] --> unless you set one. Then a report says that the others wait in all-reduce. In a script, if that rank's process ends, they get an error.
# </details>
#
# **Next:** [lesson 01](01_why_distributed.ipynb) takes up a claim that we left unproven: training a Llama of 8 billion parameters takes more memory than one GPU has. What fills so much?

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.

# %% [markdown]
# ## When did it happen?
#
# The ledger also knows times. The next cell makes an all-reduce through rank 0, on *your* machine, and draws each message.


# %% varies="times differ on every machine and in every run"
from course_lib import comm


def through_rank_0():
    comm.all_reduce(torch.ones(4), algorithm="naive")


run_ranks(through_rank_0, 4)
viz.plot_timeline(ledger(), title="All-reduce through rank 0, as it just ran")

# %% [markdown]
# Each rank has its sends in the upper lane and its receives in the lower. An arrow leads from the start of a send to the arrival. Look at rank 0's lower lane: it receives from rank 1, then 2, then 3, so a message sent before its turn has a long arrow. Why are some bars so long, when four numbers travel quickly? A *send* over gloo waits until its receiver is ready, and even afterwards a process may wait for a free core. Pale bars are waiting. In your next run only rank 0's order is the same.
#
# ## Only some of the ranks
#
# Sometimes a few ranks should work while the others rest. `--only` says which ones run the cell.

# %%
# %%ranks 4 --only 0,2
rank * 10

# %% [markdown]
# ## A mismatch
#
# There is a third way to fail: all ranks make the same call, but their tensors do not fit together. Below, rank 3 brings five numbers, the others four. Before a tensor travels, our collectives compare notes about its length, and every rank reads all four notes. **Before you run it**, say whom the message blames: rank 3, the other three, or nobody. Think about what a rank can know from four notes.

# %% tags=["raises-exception"]
# %%ranks 4
from course_lib import comm

comm.all_reduce(torch.ones(5 if rank == 3 else 4))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Nobody is blamed. All four ranks read the same notes: four, four, four and five. So all four complain, and only one of their equal tracebacks is shown. None of them can know which length you meant.
#
# On the ranks of this course, PyTorch's own collectives compare notes too. In a script they do so only if you set `TORCH_DISTRIBUTED_DEBUG=DETAIL`. Without that setting you may get no error at all. We gave four ranks of a script these tensors of ones, over gloo. Three ranks went on, two of them with wrong sums, and rank 3 waited in vain.
#
# </details>

# %% [markdown]
# ## On GPUs, and from a script
#
# Ranks compute on the CPU until you ask for GPUs: `%device cuda` for a notebook, `--device cuda` for one cell, `COURSE_LIB_DEVICE=cuda` for a script. Then each rank has its own GPU, on which your tensors lie, and PyTorch's collectives go over NCCL, NVIDIA's library. Too few GPUs are shared, over gloo. `device` is one more name that every rank knows. This page ran on CPUs; [tests/gpu](../tests/gpu/README.md) says which lessons ran on a real GPU too.
#
# Outside a notebook, put a function without parameters into a file. torchrun starts the ranks, and `course_lib.ranks` prints what each one returns.
#
# ```bash
# torchrun --nproc-per-node 4 -m course_lib.ranks my_file:my_function
# ```
#
# References: [PyTorch's page on torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html).
