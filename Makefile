# The course's commands; `make` alone lists them. Each one sets up what it needs; a second run is quick.
PYTHON ?= python3
PORT ?= 8888
export TORCH PORT LAB_ARGS

LEARNER := .venv/bin/python
DEVELOPER := .venv-dev/bin/python

.PHONY: help prerequisites setup setup-dev lab tour test check chaos fuzz test-slurm bench trace gpu wild olmo peers matrix notebooks exercises slides site release grade grade-all gradebook project grade-project exam workshop

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 18

prerequisites:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "make: there is no $(PYTHON) here; install Python 3.11 or newer, or name one: make lab PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/prerequisites.py

setup: prerequisites  ## create .venv (TORCH="…" passes another torch or pip options), fetch the text
	@$(PYTHON) -m tools.setup_env

setup-dev: prerequisites
	@$(PYTHON) -m tools.setup_env --dev

lab: setup  ## open your own copies of the notebooks in JupyterLab (PORT=8888, LAB_ARGS="…")
	@$(LEARNER) -m tools.lab

tour: setup  ## run the main progression on four real ranks and print the proof table
	@$(LEARNER) -m course_lib tour

test: setup-dev  ## run everything that Python alone can run (ONLY=04, CHANGED=1)
	@$(DEVELOPER) -m tools.check test --only=$(ONLY) --changed=$(CHANGED)

check: setup-dev  ## run the tests, the slide check and the browser test (ONLY=04, or CHANGED=1: what you edited)
	@$(DEVELOPER) -m tools.check check --only=$(ONLY) --changed=$(CHANGED)

chaos: setup-dev  ## break ranks, cells, training runs and submissions in every known way: a table, in minutes
	@$(DEVELOPER) -m tests.chaos

fuzz: setup-dev  ## give every command settings at their edges, for SECONDS=600 each (ONLY="plan sweep")
	@nice $(DEVELOPER) -m tests.fuzz $(or $(SECONDS),600) $(ONLY)

test-slurm: setup-dev  ## submit the shipped jobs to a Slurm of its own on this machine, and let a node die (Debian, root; LESSONS=all)
	@$(DEVELOPER) -m tests.slurm --lessons=$(LESSONS)

bench: setup-dev  ## measure against ipyparallel and gloo; never fails the tests
	@$(DEVELOPER) tests/benchmarks/run.py

trace: setup-dev  ## trace FSDP x TP of 8B and 70B on up to 1,024 ranks that do not exist, in a quarter of an hour
	@$(DEVELOPER) -m tools.trace_scale

gpu: setup-dev  ## measure Llama 1B and 8B on this machine's GPU, climb the ladder, run all lessons there (TORCH=… for CUDA)
	@$(DEVELOPER) -m tools.gpu_checks
	@$(DEVELOPER) -m tools.gpu_lessons
	@$(DEVELOPER) -m tools.gpu_savers
	@$(DEVELOPER) -m tools.gpu_cluster

wild: setup-dev  ## catch the bugs of old releases of real libraries, each in an environment of its own (ONLY=NAME)
	@$(DEVELOPER) -m tools.wild --only=$(ONLY)

olmo: setup-dev  ## train with OLMo's own packages on CPUs, count its FSDP units (YAML="1b.yaml 7b.yaml" of the workshop)
	@$(DEVELOPER) -m tools.olmo --yaml="$(YAML)"

peers: setup-dev  ## compare our quantisation, adapters and 8-bit AdamW with bitsandbytes, peft and torchao
	@$(DEVELOPER) -m tools.peers

matrix: setup-dev  ## look for wheels for Python 3.11 to 3.14, run first lessons on those that are here (TORCH=…)
	@$(DEVELOPER) -m tools.matrix

notebooks: setup-dev  ## execute notebooks/src and write the notebooks with their outputs (ONLY=02)
	@$(DEVELOPER) -m tools.build_notebooks $(ONLY)
	@$(DEVELOPER) -m tools.readme_figure
	@$(DEVELOPER) -m tools.contents
	@$(DEVELOPER) -m tools.words
	@$(DEVELOPER) -m tools.settings_page

exercises: setup-dev  ## build the learners' copies of the exercises (ONLY=03)
	@$(DEVELOPER) tools/build_exercises.py $(ONLY)

slides: setup-dev  ## build the slides as HTML and PDF
	@$(DEVELOPER) -m tools.outside
	@$(DEVELOPER) slides/build.py

site: setup-dev  ## build the course's pages, to be read without a kernel, in build/site (SITE_URL=https://…/ for its map)
	@$(DEVELOPER) -m tools.outside
	@$(DEVELOPER) -m tools.site

release: setup-dev  ## instructors: build nbgrader's release
	@$(DEVELOPER) -m tools.grading release

grade: setup-dev  ## instructors: grade the submissions in DIR=… (ROSTER=class.csv), write a CSV of points
	@test -n "$(DIR)" || { echo "make grade: say where the submissions lie: make grade DIR=path" >&2; exit 1; }
	@$(DEVELOPER) -m tools.grading grade "$(DIR)" $(if $(ROSTER),--roster="$(ROSTER)")

grade-all: setup-dev  ## instructors: the full grading round trip of every module
	@$(DEVELOPER) -m tools.grading grade-all

gradebook: setup-dev  ## instructors: write the points of MODULE=02 into Moodle's or Canvas' BOOK=export.csv (BACK=1: out of it)
	@test -n "$(BOOK)" -a -n "$(MODULE)" || { echo "make gradebook: say what was exported, and for which module: make gradebook BOOK=export.csv MODULE=02" >&2; exit 1; }
	@$(DEVELOPER) -m tools.grading gradebook "$(BOOK)" "$(MODULE)" $(if $(BACK),--back)

project: setup-dev  ## write the project's three trainers, with the bugs of GRADE_SEED, into a new folder DIR=…
	@test -n "$(DIR)" || { echo "make project: say where to: make project DIR=path" >&2; exit 1; }
	@$(DEVELOPER) -m tools.project hand-out "$(DIR)"

grade-project: setup-dev  ## instructors: run the project's rubric on DIR=…, one project or a folder of them
	@test -n "$(DIR)" || { echo "make grade-project: say where they lie: make grade-project DIR=path" >&2; exit 1; }
	@$(DEVELOPER) -m tools.project grade "$(DIR)"

exam: setup-dev  ## instructors: draw an exam and its key from the bank of questions (SEED=2027 COUNT=10)
	@$(DEVELOPER) -m tools.exam --seed=$(or $(SEED),0) --count=$(or $(COUNT),10)

workshop: setup-dev  ## instructors: run sheet, handout, slides and seats of a route (ROUTE=day SEATS=20 CLUSTER=kempner_h100)
	@$(DEVELOPER) -m tools.outside
	@$(DEVELOPER) -m tools.workshop --route="$(ROUTE)" --seats=$(or $(SEATS),20) --cluster="$(CLUSTER)"
