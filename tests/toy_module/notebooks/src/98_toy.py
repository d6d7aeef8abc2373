# %% [markdown]
# # 98 · The toy: once round
#
# Four ranks send 32 bytes<!-- =toy_bytes(4) --> when a number goes round.

# %%
from course_lib import viz
from course_lib.costs import toy_bytes

viz.plot_toy(4)

# %%
toy_bytes(4)
