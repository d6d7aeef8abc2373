# %% [markdown]
# # 07 · FSDP × TP: two cuts through one Llama
#
# Lesson 06 ended with a question: can FSDP cut once more what tensor parallelism has already cut? Somebody needs the answer: they have two nodes of Puhti, a cluster in Finland, with four V100s of 32 GB<!-- =load_device("v100_sxm_32").memory_bytes() / GB --> in each, and want to train a Llama of eight billion parameters on sequences of 8192 tokens. They know FSDP, so the eight GPUs share weights, gradients and Adam's states.
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace
from functools import partial
from textwrap import fill

import torch
import torch.distributed as dist

from course_lib import costs, gauges, planner, predict, presets, run_ranks, score, viz
from course_lib.costs import GiB, load_cluster, load_device, wires
from course_lib.parallel import by_block, coordinates
from course_lib.training import (
    MLP,
    Batches,
    Decoder,
    ModelConfig,
    ParallelConfig,
    TrainConfig,
    Trainer,
    fully_shard,
    load_model,
    load_pieces,
    load_text,
    load_tokens,
    make_mesh,
    make_schedule,
    replicate,
    save_pieces,
    stages,
    tensor,
)
from course_lib.verify import (
    RUNGS,
    SOUND,
    NotEqual,
    assert_parallel_equals,
    compare_logits,
    compare_outputs,
    compare_rounding,
    held_parts,
    museum,
)

# %%
LLAMA, ZERO = load_model("llama3_1_8b"), costs.find_convention("zero")
PUHTI = replace(load_cluster("puhti_v100"), n_nodes=2)
V100 = PUHTI.device
TEXT = costs.Work(sequence=8192, microbatch=1)  # each GPU reads one sequence at a time


def on_each_gpu(text=TEXT, **degrees):
    return costs.tensor_memory(LLAMA, ParallelConfig(zero_stage=3, **degrees), text, ZERO)


bars = {
    "FSDP on 8 GPUs": on_each_gpu(dp=8),
    "FSDP on 64 GPUs": on_each_gpu(dp=64),
    "on 8 GPUs, recomputed": on_each_gpu(replace(TEXT, recompute="layers"), dp=8),
}
viz.plot_gpu_memory(bars, V100, title="Llama 3.1 8B reads 8192 tokens")

# %% [markdown]
# The upper bar is twice as long as the room on a GPU. Look at its left end: weights, gradients and Adam stop at 15 GiB<!-- =16 * 8030261248 / 8 / GiB -->, because FSDP has cut them in eight. The long light blue part is activations, without attention's scores, which a fused kernel does not keep. FSDP does not touch them, because one GPU reads a whole sequence and keeps for backward what it computes. So with 64 GPUs the blue part is just as long.
#
# Lesson 01 has a cure: **recomputation**, or activation checkpointing, which pays with a second forward. By this formula the sequences fit then, as the third bar shows. The other cure is tensor parallelism, which pays with messages. Do the sequences fit that way, too, and which cure is cheaper?

# %% [markdown]
# You will be able to
# - cut a model along two axes (**2-D parallelism**), and say what every rank holds.
# - choose which axis gets the fast wires, or recompute instead.
# - prove in two ways that a parallel Llama is still the same Llama.
# - say what a formula for memory leaves out.
# - save it on one layout and go on at another.
#
# *Fifty minutes; the exercises come on top.*
#
# <details><summary>Before you start</summary>You need the ladder from lesson 03, tensor parallelism from 05 and FSDP from 06. The runs are on CPUs over gloo, and only the last table comes from a GPU, over NCCL. The bars of 8B and the milliseconds are formulas.</details>

# %% [markdown]
# ## Two cuts
#
# In lesson 05 four GPUs read the *same* sequence. Each has a part of every matrix, and so a part of the activations. Our eight make two such groups. Two GPUs with the same part, one of each group, share it by FSDP.
#
# Take the perceptron and four ranks on a **device mesh** of two by two. Ranks side by side read the same samples, and tensor parallelism cuts matrices between them. Ranks below each other read different samples, and FSDP cuts what is left.
#
# $$\begin{array}{c|cc} & \text{tp } 0 & \text{tp } 1 \\ \hline \text{dp } 0 & \text{rank } 0 & \text{rank } 1 \\ \text{dp } 1 & \text{rank } 2 & \text{rank } 3 \end{array}$$

# %% [markdown]
# First we cut along `tp`, as in lesson 05. Each of two ranks side by side gets half of the hidden numbers, and with them half of $W_1$, $b_1$ and $W_2$. Both also have all of $b_2$, because it is added after the sum. That makes 20.
#
# Then we cut along `dp`, as in lesson 06. Two ranks below each other have the same 20. They write each layer's numbers into a row, the bias behind the weight. The upper rank keeps the first half of the row, and the lower rank keeps the second.
#
# **Predict.** How many of the 24 numbers of $W_1$ does rank 3 keep?


# %%
def perceptron(train):
    """First tensor parallelism, then FSDP."""
    return Trainer(MLP(), train, mesh=make_mesh(dp=2, tp=2), apply=(tensor(), fully_shard(by_block)))


layout = run_ranks(lambda: perceptron(TrainConfig()).local.layout, 4)[0]
places = [*coordinates(layout.sizes)]
predict(
    "numbers of W1 that rank 3 keeps",
    guess=None,
    answer=layout.size_at("layer1.weight", places[3]),
    think="what stands in the lower half of a row of twelve weights and two biases",
)
viz.plot_layout(layout.regions(), layout.shapes(), places, title="38 parameters on a mesh of two by two")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look at rank 3, where `layer1` is $W_1$. Tensor parallelism left ranks 1 and 3 a row of 12 weights and 2 biases. Rank 3 keeps the last seven. Two of these are biases, so five are from $W_1$. Only $b_2$ is there twice, once for each place on `tp`.
#
# </details>
#
# > **To keep.** Tensor parallelism cuts matrices, FSDP cuts what is left of them; along `tp` ranks read the same sequence, along `dp` different ones.
#
# ### Which cut comes first?
#
# Suppose FSDP cut first, over all four ranks, and `tp` had to cut what FSDP gathers. A rank has a quarter of a layer, so it would gather the other three, and then use only half of all. In our order it gathers only its half. Of that it has one quarter already, so it receives one quarter instead of three.
#
# > **To keep.** First `tp`, then `dp`: then FSDP gathers only what the rank computes with.

# %% [markdown]
# ## Cut the sequence, too
#
# The matrices are cut twice, but what runs between attention and feed-forward is whole. Both end with an all-reduce, so every rank along `tp` holds *all* positions.
#
# But an all-reduce is a reduce-scatter and then an all-gather. So let the norms stand between these two. With `tp` 4 each rank has the sums of 8192 / 4 = 2048 positions there. It computes their RMSNorms, and then gathers all.
#
# | a rank keeps | inside attention and feed-forward | between them |
# | --- | --- | --- |
# | all-reduce in one | a quarter | everything |
# | work in between | a quarter | a quarter |
#
# That is **sequence parallelism**. To make the gradient of a weight, backward needs the gathered input again. To keep it would undo half of the gain. So our ranks keep their quarter and gather once more in backward: one message more, much less memory. We call that `"regather"`; PyTorch keeps all positions.
#
# > **To keep.** Tensor parallelism alone cuts activations inside the blocks; sequence parallelism cuts those between them.

# %% [markdown]
# ## Which axis on the fast wires?
#
# Our GPUs have two kinds of wire. Inside a node NVLink joins each GPU with the three others, and a ring that uses all these links carries 150 GB/s<!-- =wires(load_cluster("puhti_v100")).inside_bytes_per_s / GB -->. Such a group is called an **NVLink domain**. Out of it lead two network cards of 12.5 GB/s<!-- =wires(load_cluster("puhti_v100")).card.bandwidth_bytes_per_s / GB -->, which the four GPUs have to share.
#
# Ranks are numbered node by node, and in our mesh ranks side by side have neighbouring numbers. So the last axis of a mesh has its groups inside the domain, on the fast wire. Lesson 05 would put `tp` there. What would we lose if we put `dp` there instead?

# %% [markdown]
# First count what a GPU sends for one layer in one step.
#
# Along `tp` activations travel. Attention gathers its input and scatters its sum. Backward reverses both messages, and then gathers the input once more. That makes five messages, and feed-forward has five, too. Each is a whole activation of 8192 × 4096 numbers, of which each of four ranks sends three quarters.
#
# Along `dp` weights travel in two gathers, and gradients in one reduce-scatter. Tensor parallelism leaves a rank a quarter of the layer's 218 million parameters. Two ranks share this quarter, and each sends half each time.
#
# **Predict.** How many times as much as FSDP does `tp` send?

# %%
activation = TEXT.sequence * LLAMA.hidden_size * 2  # bytes, of all positions
by_tp = 10 * 3 / 4 * activation
by_fsdp = 3 * 1 / 2 * costs.layer_parameters(LLAMA) / 4 * 2
predict(
    "times as much",
    guess=None,
    answer=by_tp / by_fsdp,
    tolerance=0.05,
    think="what ten messages of activations weigh, and what three of weights do",
)
print(f"for one layer a GPU sends {by_tp / 1e6:.0f} MB along tp, {by_fsdp / 1e6:.0f} MB along dp")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Here `tp` sends more. But only activations grow with the sequence, so for short sequences FSDP sends more. Should `dp` have the fast wire then?
#
# Ask who has to *wait*. A V100 computes perhaps 50 TFLOP/s<!-- =0.4 * load_device("v100_sxm_32").peak_flops_per_s("fp16") / 1e12 -->, 40 % <!-- =100 * 0.4 -->of its peak. A layer's forward takes two operations for each parameter and token, which four GPUs do in 18 ms<!-- =1e3 * 2 * layer_parameters(load_model("llama3_1_8b")) * 8192 / 4 / 50e12 -->. Meanwhile FSDP gathers the next layer. Four pairs of GPUs, one for each place on `tp`, do so at the same moment and share the two cards, which takes 8.7 ms<!-- =1e3 * costs.collective_s("all_gather", "ring", nbytes=costs.layer_parameters(load_model("llama3_1_8b")) // 4 * 2, ranks=2, wires=wires(load_cluster("puhti_v100")), stride=4) -->. By this estimate a gather can hide in forward, down to sequences of about 4,000<!-- =1000 * round(8192 / 1000 * (1e3 * costs.collective_s("all_gather", "ring", nbytes=costs.layer_parameters(load_model("llama3_1_8b")) // 4 * 2, ranks=2, wires=wires(load_cluster("puhti_v100")), stride=4)) / (1e3 * 2 * layer_parameters(load_model("llama3_1_8b")) * 8192 / 4 / 50e12)) --> tokens.
#
# But what `tp` gathers is the input of the very next matrix, so in forward everybody waits. It is **exposed communication**, however long the sequence is. In backward a good trainer hides some of them (**async TP**). Ours does not, so we count all ten of a layer.
#
# </details>
#
# > **To keep.** Do not ask who sends more. Ask whose messages can hide, and give the fast wire to the others.

# %% [markdown]
# ## Messages, or a second forward?
#
# Both cures make a step longer. A layer's backward takes twice as long as its forward, so a second forward adds a third. How much does the exposed communication of `tp` add? Compare four ways:
#
# | way | `tp` | its groups | what it means |
# | --- | --- | --- | --- |
# | A | 4, inside a node | {0 1 2 3}, {4 5 6 7} | our mesh |
# | B | 4, over both nodes | {0 2 4 6}, {1 3 5 7} | the axes swapped, two GPUs of each group in either node |
# | C | 8, over both nodes | all GPUs | each GPU computes half as much |
# | D | 4, inside a node | one node of L40S | three times as fast as V100s, but PCIe of 31.5 GB/s<!-- =wires(load_cluster("aws_l40s")).inside_bytes_per_s / GB --> for wires |
#
# **Predict.** In which ways are the messages cheaper than a second forward? Name them, as `"BCD"` or `"none"`.

# %%
L40S = load_cluster("aws_l40s")


def longer(cluster, tp, stride=1):
    # Exposed messages over computing, for one layer in one step; attention's scores are left out.
    operations = 3 * 2 * costs.layer_parameters(LLAMA) * TEXT.sequence / tp
    computing_s = operations / (0.4 * cluster.device.peak_flops_per_s("fp16"))
    ring = {"nbytes": activation, "ranks": tp, "wires": wires(cluster), "stride": stride}
    return 10 * costs.collective_s("all_gather", "ring", **ring) / computing_s


ways = {"A": (PUHTI, 4), "B": (PUHTI, 4, 2), "C": (PUHTI, 8), "D": (L40S, 4)}
cheaper = [way for way, setting in ways.items() if longer(*setting) < 1 / 3]
predict(
    "ways that are cheaper than a second forward",
    guess=None,
    answer="".join(cheaper) or "none",
    think="which wire each ring has to use, and how much computing stands beside it",
)
for way, (cluster, *degrees) in ways.items():
    print(f"{way}: {cluster.name:13} tp {degrees[0]}: {longer(*ways[way]):3.0%} longer")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Compare A and B. They send the same bytes, but in B both groups leave each node and share its cards. That makes the messages about 12<!-- =(10 * costs.collective_s("all_gather", "ring", nbytes=8192 * 4096 * 2, ranks=4, wires=wires(load_cluster("puhti_v100")), stride=2) / (3 * 2 * costs.layer_parameters(load_model("llama3_1_8b")) * 8192 / 4 / (0.4 * load_device("v100_sxm_32").peak_flops_per_s("fp16")))) / (10 * costs.collective_s("all_gather", "ring", nbytes=8192 * 4096 * 2, ranks=4, wires=wires(load_cluster("puhti_v100")), stride=1) / (3 * 2 * costs.layer_parameters(load_model("llama3_1_8b")) * 8192 / 4 / (0.4 * load_device("v100_sxm_32").peak_flops_per_s("fp16")))) --> times as dear, and that is why our mesh is `("dp", "tp")`. In C one ring has both cards, but each GPU has less to compute meanwhile. So `tp` stays within its domain.
#
# D is the surprise: inside a node, and yet the messages take most of the time that computing takes, because the GPU is three times as fast and the wire far slower. On H800s, with less than half of an H100's NVLink, it would be 39 %<!-- =100 * 10 * costs.collective_s("all_gather", "ring", nbytes=8192 * 4096 * 2, ranks=4, wires=wires(load_cluster("deepseek_h800")), stride=1) / (3 * 2 * costs.layer_parameters(load_model("llama3_1_8b")) * 8192 / 4 / (0.4 * load_device("h800_sxm_80").peak_flops_per_s("fp16"))) -->, if nothing hides. DeepSeek trained V3 on them without tensor parallelism.
#
# </details>
#
# > **To keep.** Whether messages or recomputation are cheaper depends on how much a machine computes while it sends a byte.
#
# ## Prove it, in two ways
#
# Our trainer takes both techniques, in the order of the cuts. But they work on the same weights without knowing of each other, and bugs can hide under a loss that falls. Is it the same Llama?
#
# ### Who holds what
#
# Suppose that a rank held its neighbour's part of a weight. Its shape would be right, so nothing would crash. But each trainer keeps a table, its *layout*, which says what part of every weight lies on which rank. So compare each rank's piece, bit by bit, with the part of one device's weight that the layout names.

# %%
SMALL = ModelConfig(
    name="small",
    hidden_size=64,
    n_layers=4,
    n_heads=8,
    n_kv_heads=4,
    ffn_size=176,
    vocab_size=512,
    tied=False,
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32, ragged=True)
ADAMW = TrainConfig(optimizer="adamw", learning_rate=3e-3)


def llama_alone(train):
    return Trainer(Decoder(SMALL), train)


def llama_2d(train, *bugs):
    mesh = make_mesh(dp=dist.get_world_size() // 2, tp=2)
    return Trainer(
        Decoder(SMALL),
        train,
        mesh=mesh,
        apply=(tensor(sequence_parallel="regather"), fully_shard(by_block), *bugs),
    )


held = held_parts(llama_alone, llama_2d, world_size=4)
print(f"{'numbers on rank':32}", *(f"{rank:>7}" for rank in range(4)))
for name in [*held.shapes][:9]:
    print(f"{name:32}", *(f"{torch.Size(shape).numel():7,}" for shape in held.shapes[name]))
print("…", str(held).splitlines()[-1], sep="\n")

# %% [markdown]
# Why do only ranks 0 and 1 keep the embedding? FSDP makes one row of each block, and one of what is in no block, the **root**. Each place on `tp` has half of the embedding and half of the head, and in the root's row these stand one behind the other. FSDP cuts that row in the middle, so the upper rank keeps the embedding and the lower one the head. Only RMSNorms are there twice.
#
# ### The ladder
#
# So the pieces are right. Is what the ranks make of them? On two axes the norm of the gradients is the hardest rung. Each number must count exactly once in it, although matrices are cut twice and RMSNorms lie on several ranks.

# %% varies="the last digits of rounding differ between processors"
report = assert_parallel_equals(llama_alone, llama_2d, text, world_size=4)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# Every dot lies far left of the dashed line, so only rounding separates four ranks from one device.
#
# > **To keep.** On two axes each number has to count exactly once in the norm, wherever it lies and however often.
#
# ## Measure: what is in memory
#
# Activations did not fit. Do they shrink? Four ranks train on four sequences. With FSDP each rank reads one, but on the mesh a pair reads two together.
#
# **Predict.** At the loss a rank has the most activations. Divide FSDP's by the mesh's: what comes out?

# %% varies="what PyTorch allocates while it computes differs between processors"
DEEP, even = replace(SMALL, n_layers=8), replace(text, ragged=False)


def in_memory(dp, tp, texts):
    apply = (
        (tensor(sequence_parallel="regather"), fully_shard(by_block))
        if tp > 1
        else (fully_shard(by_block),)
    )
    trainer = Trainer(Decoder(DEEP), ADAMW, mesh=make_mesh(dp=dp, tp=tp), apply=apply)
    some = replace(even, batch_size=texts)
    trainer.step(some.batch(0))
    return gauges.track_step(trainer, some.batch(1))


steps = {}
for name, sizes in {
    "FSDP, 4 sequences": (4, 1, 4),
    "2 × 2, 4 sequences": (2, 2, 4),
    "2 × 2, 2 sequences": (2, 2, 2),
}.items():
    steps[name] = run_ranks(in_memory, 4, *sizes, timeout=55)[0]
at_loss = [
    next(instant.activations for instant in step if instant.name == "loss") for step in steps.values()
]
predict(
    "FSDP's over the mesh's",
    guess=None,
    answer=round(at_loss[0] / at_loss[1], 2),
    tolerance=0.1,
    think="how many sequences a rank reads, and how much of each",
)
print("MiB of activations at the loss, from the top:", *(f"{n / 2**20:.2f}" for n in at_loss))
viz.plot_memory_strips(steps, subtitle="rank 0 of four; a column for each moment of the step")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# They do not shrink! Half of two sequences is one, so each rank keeps about as much. The mesh's peak is lower only because gathered weights and gradients are halved.
#
# So where is the gain? Look at the lowest strip: each pair reads one sequence, and activations are halved. FSDP cannot hand out less than a whole sequence, so eight GPUs read eight at a time, however long these are. With `tp` 4 four GPUs share one sequence, as if they were one GPU with four times the memory. So our eight would read only two at a time.
#
# </details>
#
# > **To keep.** Tensor parallelism does not shrink the activations of a batch; it lets fewer sequences be read at a time.

# %% [markdown]
# ## Save here, go on there
#
# On Monday you have four GPUs, and on Tuesday only two. How can the run go on? No rank may have room for the whole model, so each writes what it has. The layout, the table that *Who holds what* read, says where in the whole tensor each piece lies. A rank that loads looks up the stretches that it needs, and reads only those. The field calls the files a **distributed checkpoint** (DCP), and such loading **resharding**.


# %%
from tempfile import TemporaryDirectory


def save_on_a_mesh(folder):
    torch.manual_seed(0)
    trainer = llama_2d(ADAMW)
    for step in range(3):
        trainer.step(even.batch(step))
    save_pieces(trainer, folder)
    return [trainer.step(even.batch(step)) for step in range(3, 6)]


def go_on(folder):
    trainer = Trainer(Decoder(SMALL), ADAMW, mesh=make_mesh(dp=2), apply=(fully_shard(by_block),))
    load_pieces(trainer, folder)
    return [trainer.step(even.batch(step)) for step in range(3, 6)]


with TemporaryDirectory() as folder:
    print(
        "2 × 2 goes on:", *(f"{loss:.5f}" for loss in run_ranks(save_on_a_mesh, 4, f"{folder}/monday")[0])
    )
    print("two ranks do: ", *(f"{loss:.5f}" for loss in run_ranks(go_on, 2, f"{folder}/monday")[0]))

# %% [markdown]
# The two lines are equal: two ranks with FSDP alone go on where four on a mesh stopped, because Adam's states came along, too. The folder has a file from each of the four, the table, and checksums. It gets its name only when all of that is written, so a run that dies while it saves leaves nothing that looks whole.
#
# > **To keep.** A checkpoint that says where each piece lies can be read by any layout.

# %% [markdown]
# ## In PyTorch alone
#
# PyTorch has both cuts, in the same order. [`scripts/07_fsdp_tp.py`](scripts/07_fsdp_tp.py) joins the last two stages of the script; *Going deeper* shows what changes.
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `tensor(sequence_parallel="regather")` | `SequenceParallel` and layouts in a plan | you write it for each model; gathered inputs are kept, which would add 3 GiB<!-- =2 * 3 / 4 * 8192 * 4096 * 2 * 32 / GiB --> here |
# | a table of places | placements in each DTensor | a weight knows its place, and FSDP2 cuts its rows |
# | `save_pieces` | `dcp.save` | no checksums |
#
# Start it: `torchrun --nproc-per-node 4 scripts/07_fsdp_tp.py`. The losses are one device's.
#
# [`scripts/07_llama_or_olmo.py`](scripts/07_llama_or_olmo.py) does this to a Llama or OLMo from Hugging Face, and fine-tunes it on your text: `torchrun --nproc-per-node 4 scripts/07_llama_or_olmo.py [MODEL_FOLDER TEXT]`. Stop it, start it again, and it goes on.

# %% [markdown]
# ## Bug museum
#
# Three runs read Shakespeare on a mesh of two by two, with AdamW and clipping. Each **may** have a bug of a kind that was met in public. The next cell draws their losses, and below them how far each run is from one device. Ask of each whether rounding alone could have taken it there.
#
# **Predict.** Which runs are sound? Name them, as `"AC"` or `"none"`.

# %% varies="forty steps of rounding differ between processors"
names = sorted(
    [*museum.TWO_AXES_BUGS, "sound"], key=lambda name: name[2]
)  # an order that gives nothing away
exhibits = {"A": names[3], "B": names[2], "C": names[1]}  # print them after you have decided
makers = {
    run: museum.TWO_AXES_BUGS[name].planted(llama_2d) if name != "sound" else llama_2d
    for run, name in exhibits.items()
}
reading = replace(even, batch_size=16)
curves = {"one device": museum.curve_alone(llama_alone, reading.batch, 40).losses}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, reading.batch, world_size=4, steps=40).losses
display(
    viz.plot_loss_curves(
        curves, title="Which of these runs are sound?", subtitle="loss in nats; broad: one device"
    ),
    viz.plot_loss_differences(curves),
)

# %%
predict(
    "the sound runs",
    guess=None,
    answer="".join(run for run in exhibits if exhibits[run] == "sound") or "none",
)
for run, make in makers.items():
    try:
        assert_parallel_equals(llama_alone, make, text, world_size=4, rungs=RUNGS[:5])
        print(f"run {run}: equal on the first five rungs")
    except NotEqual as error:
        what, _, way_out = str(error).split("; ", 2)
        print(f"run {run} falls on: {error.rung}")
        for line in (what.partition(": ")[2], way_out):
            print(fill(line, 110, initial_indent="    ", subsequent_indent="    "))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# At the end all three are off, so look at the beginning of the lower picture. For twenty steps run B is less than 1e-05 off, before rounding carries it up. A and C are a hundredth off in step 3, and rounding is not that fast.
#
# The ladder offers two explanations of A's one half. Perhaps the average was divided by the `dp` ranks once more. Or the sum was divided by all four, although only two had read different sequences. On two by two both mistakes leave one half, so take three ranks along `dp` and two along `tp`.
#
# </details>
#
# **Predict.** What fraction would the first mistake leave there, and what the second? Enter the one that you suspect.


# %%
try:
    assert_parallel_equals(
        llama_alone, makers["A"], replace(text, batch_size=9), world_size=6, rungs=RUNGS[:3]
    )
except NotEqual as error:
    predict(
        "of the right gradient",
        guess=None,
        answer=round(error.ratio, 4),
        think="which mistake divides by the three along dp once more, and which by all six",
    )
    print(fill(str(error).split("; ")[-1], 110))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# It is one half again. The first mistake would have left one third, so the second was made: the sum was divided by all ranks. If two axes have the same size, one number cannot tell them apart. torchtune had [this bug](https://github.com/meta-pytorch/torchtune/issues/2641), and a user found it by running one seed without tensor parallelism.
#
# Run C adds up squares along `dp` and forgets `tp`. The halves differ, so rank 0 finds 0.59 of the squares, and 0.77 is the root of that. RLinf forgot [FSDP's axis](https://github.com/RLinf/RLinf/pull/1558).
#
# </details>
#
# > **To keep.** Test on a mesh whose sides differ.


# %% [markdown]
# ## Back to the eight GPUs
#
# So lay out the two nodes of the first screen: `tp` goes inside the NVLink domain, `dp` between domains, and the sequence is cut, too. To a program a V100 offers 31.7 GiB<!-- =load_device("v100_sxm_32").usable_bytes / GiB -->, a little more than the pictures' line. Do the 8192 tokens fit?
#
# Weights, gradients and Adam are cut in eight as before, which makes 15 GiB<!-- =16 * 8030261248 / 8 / GiB -->. The rest of the first bar was 45.3 GiB<!-- =(tensor_memory(load_model("llama3_1_8b"), ParallelConfig(dp=8, zero_stage=3), Work(sequence=8192, microbatch=1), find_convention("zero")).total - 16 * 8030261248 / 8) / GiB -->, which were gathered weights, activations, head and loss.
#
# **Predict.** How many GiB are needed now, all together?

# %%
bars = {
    "FSDP on 8 GPUs": on_each_gpu(dp=8),
    "FSDP 2 × TP 4": on_each_gpu(dp=2, tp=4),
    "the sequence cut, too": on_each_gpu(dp=2, tp=4, sequence_parallel=True),
}
answer = bars["the sequence cut, too"].total / 2**30
predict(
    "GiB on each GPU",
    guess=None,
    answer=answer,
    tolerance=0.03,
    think="what of the 45.3 GiB four ranks now share, and what no one cuts",
)

# The same question of a whole job: what a trainer keeps beside the model's own numbers.
spread = ParallelConfig(dp=2, tp=4, zero_stage=3, sequence_parallel=True)
job = planner.Job(model=LLAMA, cluster=PUHTI, batch=16, microbatch=1, sequence=8192, parallel=spread)
columns = {
    "our bar": bars["the sequence cut, too"],
    "Megatron": costs.gpu_memory(job),
    "PyTorch": costs.gpu_memory(replace(job, software=costs.Software(kind="eager"))),
}
print(f"{'GiB on a GPU':12}", *(f"{name:>9}" for name in columns))
for part in ("weights", "gradients", "optimizer", "gathered", "activations", "head", "other"):
    print(f"{part:12}", *(f"{getattr(one, part) / GiB:9.2f}" for one in columns.values()))
print(f"{'together':12}", *(f"{one.total / GiB:9.2f}" for one in columns.values()))
print("room:", V100.usable_in_words)
viz.plot_gpu_memory(bars, V100, title="Llama 3.1 8B reads 8192 tokens")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# By the bar it fits! Nearly all of the rest is cut in four, which leaves 11.5 GiB<!-- =(tensor_memory(load_model("llama3_1_8b"), ParallelConfig(dp=2, tp=4, zero_stage=3, sequence_parallel=True), Work(sequence=8192, microbatch=1), find_convention("zero")).total - 16 * 8030261248 / 8) / GiB -->. Look at the light blue part, which shrinks twice: first inside attention and feed-forward, then also between them.
#
# And the price? On these nodes the exposed messages along `tp` make a step 6 %<!-- =100 * 10 * costs.collective_s("all_gather", "ring", nbytes=8192 * 4096 * 2, ranks=4, wires=wires(load_cluster("puhti_v100")), stride=1) / (3 * 2 * costs.layer_parameters(load_model("llama3_1_8b")) * 8192 / 4 / (0.4 * load_device("v100_sxm_32").peak_flops_per_s("fp16"))) --> longer, where recomputation adds a third. FSDP pays more: the mesh reads two sequences at a time instead of eight, so it gathers each layer four times as often, and by `plan` (lesson 08) the exposed part costs an eighth. So the **throughput**, in tokens per second, falls by over a sixth; a second forward costs over a fifth.
#
# So much for the bar. Does it really fit? All programs of this course ask one question, `gpu_memory` of a **job**, and say what they assume.
#
# Read its second column, a trainer like Megatron. It adds micro-batches up in float32, so *gradients* are twice as large. Its *head* counts the copies of the logits that a loss makes. *Gathered* holds two layers, because prefetch brings the next. *Other* is not the model's, such as CUDA's own memory. Together they leave 0.08 GiB<!-- =(load_device("v100_sxm_32").usable_bytes - gpu_memory(planner.Job(model=load_model("llama3_1_8b"), cluster=__import__("dataclasses").replace(load_cluster("puhti_v100"), n_nodes=2), batch=16, microbatch=1, sequence=8192, parallel=ParallelConfig(dp=2, tp=4, zero_stage=3, sequence_parallel=True))).total) / GiB --> of what a V100 offers to a program. Recomputing all on FSDP alone takes 35.0 GiB<!-- =gpu_memory(planner.Job(model=load_model("llama3_1_8b"), cluster=__import__("dataclasses").replace(load_cluster("puhti_v100"), n_nodes=2), batch=16, microbatch=1, sequence=8192, recompute="layers", parallel=ParallelConfig(dp=8, zero_stage=3))).total / GiB -->, because its head holds whole logits.
#
# The third column is plain PyTorch, which keeps what sequence parallelism gathers, and it lacks six GiB. So take both cures and recompute every second layer, though that is slower than a second forward: then a trainer like Megatron needs 27.6 GiB<!-- =planner.ranked(planner.search(planner.Job(model=load_model("llama3_1_8b"), cluster=__import__("dataclasses").replace(load_cluster("puhti_v100"), n_nodes=2), batch=16, sequence=8192), planner.Space(tp=(4,), pp=(1,), cp=(1,), zero_stage=(3,), micro_batch=(1,), recompute=("half",))), 1)[0].memory_bytes / GiB -->, which fits.
#
# </details>
#
# > **To keep.** A formula for memory is as good as its list of assumptions, so ask for the list: attention's kernel, gradients, logits, and what lies beside the model.

# %% [markdown]
# ## When to use it
#
# | what hurts | take | because |
# | --- | --- | --- |
# | only states do not fit | FSDP | its messages mostly hide |
# | one sequence does not fit | TP in the NVLink domain, FSDP between | cheaper than a second forward, where the wires are fast for the GPU |
# | the same, but messages cost more | recompute, if the logits fit | it needs no wire |
# | a domain is too small, or memory still lacks | TP and recompute | a wider `tp` needs slow wires |
# | fewer sequences in a batch than GPUs | TP, too | FSDP needs a sequence for each rank |
# | everything fits | DDP | no weights to gather |
#
# ## The file behind this lesson
#
# [`course_lib/training/trainer.py`](../course_lib/training/trainer.py), about 310 lines, takes the techniques of this page in a fixed order, and each writes into one table who has which part of a parameter. From that table follow the norm, the clipping and the checkpoint.
#
# ## What still hurts
#
# You compared four ways by hand, and left one out. If `plan` may choose freely for these eight GPUs, it takes `tp` 4 with a pipeline of two ranks, which fits and recomputes nothing. On a thousand GPUs there are thousands of such layouts, so in lesson 08 a program finds the fastest that fits.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/07_fsdp_tp_2d_llama.ipynb), then [lesson 08](08_three_d_and_planner.ipynb).
#
# <details><summary>1. On a mesh of two by four, with whom does rank 6 gather weights, and with whom add up activations?</summary>
# Weights with rank 2, activations with 4, 5 and 7.
# </details>
#
# <details><summary>2. Eight GPUs read two sequences at a time with tp 4, and eight with FSDP alone. Why?</summary>
# Only ranks along dp read different sequences.
# </details>
#
# <details><summary>3. On two by two a gradient is one half of the right one. Which mesh next?</summary>
# One whose sides differ, three by two: one half accuses tp, one third dp.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## What the script changes
#
# Against FSDP alone:

# %%
from pathlib import Path

viz.show_difference(Path("scripts/06_fsdp.py"), Path("scripts/07_fsdp_tp.py"))

# %% [markdown]
# **Your turn.** Call `shard` before `cut`. Undo it, and let the mesh have `tp` first and `dp` second. PyTorch refuses both. At which line, and why?
#
# <details><summary>What you should see</summary><code>cut</code> finds a DTensor where it needs a plain one: what FSDP has sharded, nobody else may cut. The other way round it fails at clipping. A weight's placements are on (dp, tp), and PyTorch takes axes out of a mesh only in the mesh's own order.</details>


# %% [markdown]
# ## Where outputs begin to differ
#
# The ladder says that an output is wrong. To see where it goes wrong, compare *every module's* output with one device's. We plant an error: the third of four `down_proj`, the feed-forward's last matrix, gives 0.01 too much.
#
# **Predict.** Each layer has twelve modules: two norms, four projections, attention, three matrices, feed-forward, the layer itself. With embedding, last norm and head there are 51. How many are wrong?


# %% varies="the last digits of rounding differ between processors"
def shifted(setup):
    setup.model.get_submodule("layers.2.ffn.down_proj").register_forward_hook(
        lambda module, inputs, y: y + 0.01
    )


def llama_shifted(train):
    return llama_2d(train, shifted)


sound = compare_outputs(llama_alone, llama_2d, text.batch(0), world_size=4)
spoilt = compare_outputs(llama_alone, llama_shifted, text.batch(0), world_size=4)
wrong = [one for one in spoilt if one.deviation > 1e-11]
predict(
    "modules that give something wrong",
    guess=None,
    answer=len(wrong),
    think="which modules compute something wrong, and which only read it",
)
print(
    f"without the error: {len(sound)} modules, "
    f"the largest deviation {max(one.deviation for one in sound):.0e}"
)
print(f"with it, the first that is wrong: {wrong[0].name}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Three of the 17 are in the third layer: `down_proj`, the feed-forward around it, and the layer itself. All twelve modules of the fourth layer are sound, but they read what the error has spoilt, and so do the last norm and the head. That is why only the first wrong output leads you to the error.
#
# </details>
#
# ## What rounding explains
#
# The ladder runs in float64, and in bfloat16 layouts hardly ever give equal gradients. How far off may ranks be? *Measure* it: one device's gradients in float32 and bfloat16 differ by rounding alone, so ranks should be about as far off.
#
# Try it on a bug. Each rank along `tp` has half of the positions. So of a weight that every rank has whole it finds only one term of the gradient, and the bug forgets to add the terms up.
#
# **Predict.** One wrong module may spoil the outputs of all that follow. How many of the model's 39 gradients does this bug spoil?


# %% varies="rounding differs between processors"
def gradients_in(dtype, tp, *bugs):
    torch.manual_seed(0)
    mesh = make_mesh(dp=dist.get_world_size() // tp, tp=tp)
    shard = fully_shard(by_block, param_dtype=dtype, reduce_dtype=torch.float32)
    apply = tensor(sequence_parallel="regather"), shard, *bugs
    trainer = Trainer(Decoder(SMALL), TrainConfig(), mesh=mesh, apply=apply)
    trainer.compute_gradients(text.batch(0))
    return trainer.gradients()


exact, rounded = (run_ranks(gradients_in, 1, dtype, 1)[0] for dtype in (None, torch.bfloat16))
not_summed = museum.TENSOR_BUGS["norms_not_summed"].technique
runs = {
    "terms not summed": compare_rounding(
        exact, rounded, run_ranks(gradients_in, 4, torch.bfloat16, 2, not_summed)[0]
    ),
    "FSDP × TP": compare_rounding(exact, rounded, run_ranks(gradients_in, 4, torch.bfloat16, 2)[0]),
}
spoilt = [one.name for one in runs["terms not summed"] if not one.is_sound]
predict(
    "gradients that rounding does not explain",
    guess=None,
    answer=len(spoilt),
    think="who reads a wrong output, and who a wrong gradient",
)
viz.plot_rounding(runs, sound=SOUND)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# It spoils nine, all RMSNorms. They lie above the dashed line, our limit: four times as far off as one device's own rounding, because that varies from run to run. Small dots, the sound run, are below it, and where the two meet, the bug's dot is a ring around the sound one. Why only nine? What follows reads a wrong output, but only the optimizer reads a weight's gradient, so the error stays where it was made.
#
# </details>
#
# > **To keep.** How much may rounding explain? As much as it changes one device. What is further off is a bug.

# %% [markdown]
# ## Would it say the same words?
#
# At every position, one device in float32 finds `k` tokens likeliest, its favourites. Which share do the ranks find, too? A thesis, our first reference, draws that share.
#
# **Predict.** In bfloat16 four ranks lose some favourites, and so does one device. Divide what the ranks lose by what one device loses. What comes out?


# %% varies="rounding differs between processors"
def logits_in(dtype, tp, saved=None):
    """The logits of a trained model, and the model: trained here, or taken over."""
    torch.manual_seed(0)
    mesh = make_mesh(dp=dist.get_world_size() // tp, tp=tp)
    apply = tensor(sequence_parallel="regather"), fully_shard(by_block, param_dtype=dtype)
    trainer = Trainer(Decoder(SMALL), ADAMW, mesh=mesh, apply=apply)
    if saved is None:
        for step in range(40):  # a model that has learnt something has favourites
            trainer.step(text.batch(step))
    else:
        trainer.restore(saved)
    return trainer.output(text.batch(40)[0]), trainer.state()


exact, trained = run_ranks(logits_in, 1, None, 1)[0]
said = {
    name: compare_logits(run_ranks(logits_in, ranks, dtype, tp, trained)[0][0], exact, top_k=range(1, 51))
    for name, (ranks, dtype, tp) in {
        "float32, 2 × 2": (4, None, 2),
        "bfloat16, 2 × 2": (4, torch.bfloat16, 2),
        "bfloat16, one rank": (1, torch.bfloat16, 1),
    }.items()
}
lost = {name: sum(1 - share for share in one.agreement.values()) for name, one in said.items()}
predict(
    "lost by four ranks, for each one that one device loses",
    guess=None,
    answer=round(lost["bfloat16, 2 × 2"] / lost["bfloat16, one rank"], 2),
    tolerance=0.2,
)
viz.plot_agreement(said, reference="one device in float32")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# They lose about as many: in both panels the two lines of bfloat16 nearly coincide. At the top of the upper one are four ranks in float32, and they have all favourites of one device. So the precision lost some, but the parallelism lost none. The thesis has no line of one device at its ranks' precision, so it cannot say which lost them.
#
# </details>
#
# ## The losses of all techniques
#
# All techniques so far train on the same Shakespeare, in float32. The next cell draws one curve more: one device which adds its gradients up in four micro-batches, so it rounds at other places. **Before you look**: will it stay nearer to one device than the runs on ranks?

# %% varies="forty steps of rounding differ between processors"
layouts = {
    "DDP": ({"dp": 4}, (replicate(),)),
    "FSDP × TP": ({"dp": 2, "tp": 2}, (tensor(sequence_parallel="regather"), fully_shard(by_block))),
    "pipeline": ({"pp": 2, "dp": 2}, (stages(make_schedule("1f1b", 2, 4)), replicate())),
    "TP": ({"tp": 4}, (tensor(),)),
    "FSDP": ({"dp": 4}, (fully_shard(by_block),)),
}


def trained_on(degrees, apply):
    return lambda train: Trainer(Decoder(SMALL), train, mesh=make_mesh(**degrees), apply=apply)


def in_four_parts(train):
    return llama_alone(replace(train, accumulation=4))


curves = {"one device": museum.curve_alone(llama_alone, even.batch, 40).losses}
for name, layout in layouts.items():
    curves[name] = museum.curve_on_ranks(trained_on(*layout), even.batch, world_size=4, steps=40).losses
in_parts = {"one device, in four parts": museum.curve_alone(in_four_parts, even.batch, 40).losses}
display(
    viz.plot_loss_curves(curves, title="Six ways to train one model", subtitle="loss in nats"),
    viz.plot_loss_differences(curves | in_parts, beside="one device, in four parts"),
)

# %% [markdown]
# Above, six curves look like one. Below, all drift away from one device, because each step starts from weights that already differ. Is that the parallelism? The broad grey line is one device as well. For thirty steps DDP and FSDP lie on it, because they add up the same four parts. Yet FSDP × TP mostly lies below it and TP above, so only the ladder acquits a layout.
#
# ## A real Llama, and a real OLMo
#
# What people train are models of `transformers`. The same two techniques cut them, by a plan that is derived from the model. Their norms and loss are in float32, even in a float64 model, so the ladder holds them to 1e-6.

# %% varies="the last digits of rounding differ between processors"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
NO_WORDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def real(train, family, **mesh):
    import transformers

    from course_lib.models.logits import Logits

    config = getattr(transformers, f"{family}Config")(**SIZES, **NO_WORDS, initializer_range=0.1)
    model = Logits(getattr(transformers, f"{family}ForCausalLM")(config))
    apply = (tensor(), fully_shard(by_block)) if mesh else ()
    return Trainer(model, train, mesh=make_mesh(**mesh) if mesh else None, apply=apply)


for family in ("Llama", "Olmo", "Olmo2"):
    alone, on_ranks = partial(real, family=family), partial(real, family=family, dp=2, tp=2)
    report = assert_parallel_equals(alone, on_ranks, text, world_size=4, tolerance=1e-6)
    print(f"{family:6} on 2 × 2: largest deviation of all rungs {report.max_deviation:.0e}")

# %% [markdown]
# In the first two even these roundings agree. Olmo2 is further off, since it also normalizes $q$ and $k$: `tp` cuts these, so sums in float32 change their order.
#
# ## Somebody else's trainer
#
# The ladder also climbs with trainers of others: it asks only for `parameters()` and `step(batch)`. This one averages the mean losses of a batch's parts. Three parts are compared with one. Would you let `step` pass?
#
# <details><summary>What is wrong with it?</summary>
# Sequences differ in length, so a token counts more in a part with few. <code>transformers</code> made this very step <a href="https://github.com/huggingface/transformers/issues/34191">until October 2024</a>.
# </details>


# %%
class Theirs:
    def __init__(self, config, parts):
        self.model, self.parts = Decoder(SMALL), parts
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.learning_rate)

    def parameters(self):
        return dict(self.model.named_parameters())

    def step(self, batch):
        self.optimizer.zero_grad()
        for tokens, targets in zip(*(each.chunk(self.parts) for each in batch), strict=True):
            loss = torch.nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
            (loss / self.parts).backward()
        self.optimizer.step()


try:
    assert_parallel_equals(
        partial(Theirs, parts=1), partial(Theirs, parts=3), text, world_size=1, rungs=RUNGS[:4]
    )
except NotEqual as error:
    print(f"falls on: {error.rung}\n{fill(str(error).split('; ', 2)[-1], 110)}\n")
for name, found in presets.read("wild", "results").items():
    old, mended = found["old"], found["mended"]
    print(f"{name:32} {old['version']:7} falls on {old['rung']:13} {mended['version']:7} is equal")

# %% [markdown]
# The last lines are bugs of real releases, as `make wild` ran them. For yours, begin with `CHECK_YOUR_TRAINER.md`.
#
# ## A thesis about 70 billion parameters
#
# A thesis, named below, trained Llama 3 70B on two nodes with four GPUs of 32 GB<!-- =load_device("v100_sxm_32").memory_bytes() / GB --> each. Weights and Adam lay in the memory of the hosts, and activations were recomputed. It reports sequences of about 5,200 tokens, and almost twice what FSDP alone could read.
#
# Can that be? First the hosts: the two had 768 GB<!-- =HOST_BYTES / GB -->, so which optimizers fit there? Then the GPU, whose memory grows with the sequence. How much it keeps of a sequence depends on what the report does not say. So ask the formula under each assumption.

# %%
from course_lib.costs.published.claimed_sequence import claim_rows, host_rows

for row in host_rows():
    fits = "fits" if row.fits else "too much"
    print(
        f"{row.convention.name:13}: {row.convention.bytes_per_parameter:2} bytes a parameter, "
        f"{row.nbytes / 1e9:6,.0f} GB, {fits}"
    )

print(f"\nlongest sequence in tokens{'':42} FSDP alone   with TP")
for row in claim_rows():
    print(f"{row.assumes:68} {row.alone.sequence:10,} {row.both.sequence:9,}  {row.factor:.1f} times")

# %% [markdown]
# Full Adam with its 16 bytes<!-- =16 --> fits nowhere, so theirs had at most ten. A V100 has no bfloat16. Suppose they took float32 and not float16: the last four lines. The `transformers` of 2024 kept whole logits. Then the formula gives 5,844 tokens, a little more than theirs. The factors of the last three lines are 3.4, 1.6 and 2.4, and theirs lies among them. So it can be.
#
# ## The real code on 1,024 GPUs
#
# The code does not know that nobody here has a thousand GPUs. PyTorch can run FSDP2 and DTensor on tensors without numbers, as rank 0 of ranks that do not exist. `make trace` wrote down what it found. Here it is, beside our formula.

# %%
from course_lib.gauges.fake_scale import recorded

for one in recorded():
    case, held = one.case, one.trace.held
    if case.config.name.endswith("70B"):
        pieces = 4 * costs.model_parameters(case.config) / case.dp / case.tp
        how = "recomputed" if case.checkpointing else "kept"
        print(
            f"dp {case.dp:4} × tp {case.tp}, {how:10}: pieces {held['start'].weights / 2**30:5.2f} GiB",
            end=" ",
        )
        print(f"(formula {pieces / 2**30:5.2f}), activations {held['loss'].activations / 2**30:5.2f} GiB")

# %% [markdown]
# To two decimals the pieces are the formula's. What a rank keeps of 4096 tokens does not change with `dp`. Without recomputing, `tp` leaves a fifth and not an eighth, as PyTorch keeps gathered inputs.
#
# ## The same code on one GPU that exists
#
# A trace runs no kernel, so it has no seconds, and somebody might keep bytes that it does not see. One GPU can settle that, if 8B fits: weights, gradients and Adam alone take 119.7 GiB<!-- =16 * 8030261248 / GiB -->. `make gpu` ran the step on an NVIDIA H200, as the only rank over NCCL. For each run you see our formula's peak, and how much more PyTorch had really allocated. How many GiB more would you expect?

# %%
from course_lib.gauges import on_gpu

for one in on_gpu.recorded():
    case, found = one.case, one.found
    run = costs.TwoAxes(dp=1, checkpointing=case.checkpointing, offload=case.offload, fused_norms=True)
    peak = costs.peak([*costs.two_axes_moments(case.config, run, sequence=case.sequence).values()]).total
    more, tokens_per_s = found.held["peak"] - peak, case.sequence / found.step_s
    flops_per_s = costs.training_flops(case.config, sequence=case.sequence) * tokens_per_s
    mfu = flops_per_s / load_device("h200_sxm_141").dense_flops_per_s["bf16"]
    how = "offloaded" if case.offload else "recomputed" if case.checkpointing else "kept"
    print(
        f"{case.config.name} reads {case.sequence:6,}, {how:10}: formula {peak / 2**30:6.2f} GiB", end=", "
    )
    print(f"really {more / 2**20:.1f} MiB more; {tokens_per_s:6,.0f} tokens/s, MFU {mfu:3.0%}")

for row in presets.read("gpu", on_gpu.names()[-1])["limits"]:
    kept = "recomputed" if row["checkpointing"] else "kept"
    print(f"8B, {kept:10}: the longest sequence by the formula {row['longest']:6,}", end=", ")
    print(f"2 % less ran: {row['fits 98 %']}, 2 % more ran: {row['fits 102 %']}")

# %% [markdown]
# No GiB at all: 64 MiB<!-- =64 * 2**20 / MiB -->, the same in every run. (That is of what PyTorch allocates. CUDA and NCCL take more beside it, which we measured and took off first.) We take it for the room in which cuBLAS multiplies matrices. So the formula also knows the longest sequence. In these runs of 8B the peak is the end of backward. And with one short sequence the GPU hardly computes: each step moves all of Adam's numbers, however few tokens there were.
#
# References: *Optimizing the computational efficiency of LLM training and inference through advanced parallelism techniques*, thesis at System 2 AI, 2024; Shoeybi et al. 2019, *Megatron-LM*; Zhao et al. 2023, *PyTorch FSDP*; Korthikanti et al. 2022, *Reducing activation recomputation*; Liang et al. 2025, *TorchTitan*; DeepSeek-AI 2024, *DeepSeek-V3*, section 3.2.
