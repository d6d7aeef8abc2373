# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercises 98: the toy
#
# Do notebook `98_toy` first.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check, given

GRADE_SEED = 0  # an instructor's copy may have another number here: other given numbers

# %% [markdown]
# ## 98.1
#
# *Predict · easy · 5 minutes.* A number goes once round `p` ranks: how many bytes do they send?

# %% nbgrader={"grade": false, "grade_id": "98-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
(p,) = given("98.1", GRADE_SEED)
print(f"p = {p} ranks")

# %% nbgrader={"grade": false, "grade_id": "98-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
sent = 8 * p
### END SOLUTION
numbers = {"sent": sent}
check("98.1", numbers, seed=GRADE_SEED)
