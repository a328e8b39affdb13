# setup: only the environment: .venv, unless one is active from which Python imports this clone.
# demo: run the first lab, and print the ladder of this machine.
# lab: JupyterLab on the notebooks.   slurm: a real Slurm on this machine.
# check: lint, and the tests that start no job.   test: the tests.   test-long: every notebook, with
# papermill, every planted answer, and every use of fast_resnet; CI runs it with
# NOTEBOOKS="day[12]_[12]*".
# test-formats: what depends on the CPU's number formats, on a CPU without 16-bit hardware.
# benchmark: compare the training loop with a bare one.
# site: the course as web pages, build/site/index.html. It executes nothing: outputs are those of the
# newest `course notebooks`, or of the notebooks in the folder EXECUTED.
PYTHON ?= python3
VENV ?= .venv
NOTEBOOKS ?= *
# A class shares an environment of 7 GB, which start.sh activates: this clone's Python is there, then.
FITS := import course, os; from importlib.util import find_spec as has; \
  all(map(has, ["jupyterlab", "submitit", "torch"])) \
  and os.path.samefile(course.__path__[0], "course") or exit(1)
SHARED := $(shell active="$${VIRTUAL_ENV:-$$CONDA_PREFIX}"; [ -n "$$active" ] && \
  ! [ "$$active" -ef "$(VENV)" ] && "$$active/bin/python" -P -c '$(FITS)' 2>/dev/null && \
  echo "$$active")
BIN := $(or $(SHARED),$(VENV))/bin
export PATH := $(if $(SHARED),$(BIN),$(abspath $(BIN))):$(PATH)
# No one else may write to the environment, which is code that runs.
OWN := umask g-w,o-w;

# Each job starts a Python: without compiled files it would spend most of its time on compiling.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo lint check test test-long test-formats lab slurm setup benchmark site clean

# In a separate folder: its runs are of the solution, and must not count as the learner's.
demo: export COURSE_RUNS := $(or $(COURSE_RUNS),$(CURDIR)/runs/demo)
demo: setup
	course data
	course notebooks gpu --quick
	course ladder --quick --picture

# That generated pages are up to date is a test: tests/tools.
lint: setup
	ruff check .
	ruff format --check .
	course exercises --check

check: lint
	python -m pytest --numprocesses=2 --dist=loadfile -m "not slow and not gpu and not long"

# More processes than cores, since many tests wait for jobs; few, because each imports PyTorch.
test: lint
	python -m pytest --numprocesses=4 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0 -m "not long"

test-long: setup
	python -m pytest -m long
	TRITON_INTERPRET=1 python -m pytest -q -n 2 -c fast_resnet/pyproject.toml fast_resnet/tests/test_uses.py fast_resnet/tests/test_benchmarks.py
	course data
	COURSE_RUNS=$(CURDIR)/runs/test-long course notebooks "$(NOTEBOOKS)" --quick

# With the limit, oneDNN computes as on a CPU without 16-bit hardware, and PyTorch reports none.
test-formats: setup
	ONEDNN_MAX_CPU_ISA=AVX2 python -m pytest --numprocesses=2 --dist=loadfile -m formats

lab: setup
	course lab

slurm: setup
	course slurm up

benchmark: setup
	python benchmarks/loop.py

site: setup
	$(OWN) uv pip install --python "$(BIN)/python" --quiet --constraint requirements.lock --editable ".[site]"
	python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --conf-dir site \
	  --doctree-dir build/site-doctrees -D executed_notebooks=$(EXECUTED) . build/site
	@echo build/site/index.html

setup: $(if $(SHARED),,$(VENV)/.ready)
	$(if $(SHARED),@echo "The active environment $(SHARED) has what the course needs.")

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 14) else \
	  "Python %d.%d is not supported: make PYTHON=python3.12 (3.11 to 3.14) chooses another" % v)'
	$(OWN) $(PYTHON) -m venv $(VENV)
	$(OWN) $(BIN)/python -m pip install --quiet uv
	@echo "Installing PyTorch and JupyterLab: about 5 GB with CUDA's libraries, a minute or more."
	$(OWN) $(BIN)/uv pip install --python $(BIN)/python --compile-bytecode -r requirements.lock
	$(OWN) $(BIN)/uv pip install --python $(BIN)/python --no-deps --quiet --editable .
	@[ ! -e $(VENV)/.lock ] || chmod g-w,o-w $(VENV)/.lock # of uv: anyone could hold it
	@touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info
