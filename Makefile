PY := .venv/bin/python
export ASAN_OPTIONS ?= detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
# Where it is set, each process of the tests compiles all that it imports of them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help build site-tools demo test test-full test-arm test-tsan test-msan fuzz mutants coverage sbom accuracy parity bench gpu-check bench-gpu hub docs wheels format lint clean
help: ## what each target does
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

build: ## set up the machine, build, install into .venv; the tool is build/relpos
	@scripts/setup.sh
	@scripts/build.sh

site-tools:
	@scripts/setup.sh docs

demo: build ## train a small model per scheme on Bach chorales; ends in build/demo/report.html
	@$(PY) -m relpos.lab --out build/demo

# Two processes at a time share the cores: a thread that waits is to sleep and not to spin.
test: export OMP_WAIT_POLICY ?= passive
test: build ## every check, in the order in which CI runs them; stops at the first failure
	@scripts/setup.sh test
	@echo "== format and lint"
	@scripts/lint.sh
	@echo "== C++ tests"
	@scripts/build.sh relpos_tests bench_timer
	@scripts/shards.sh build/release/relpos_tests
	@echo "== C++ tests under the address and undefined-behaviour sanitizers"
	@scripts/sanitize.sh asan
	@echo "== a C++ program built against the installed library"
	@scripts/check_install.sh
	@echo "== Python tests"
	@$(PY) -m pytest tests --numprocesses=2 --dist=loadfile --no-loadscope-reorder

test-full: export RELPOS_FULL = 1
test-full: site-tools wheels test ## the same with seven times the conformance cases, six times the random terms, all cases of the GPU and five times those that are drawn, torch as on other CPUs, the site in Chromium, the wheels, fuzzers for a minute each, threads under ThreadSanitizer, ARM, other Tritons, and MemorySanitizer
	@$(PY) -m tests.peers.other_cpus
	@scripts/fuzz.sh
	@GTEST_FILTER='*Callers*:*Thread*:*Parallel*:*Pool*:*Cancel*:*Buffer*' scripts/sanitize.sh tsan
	@scripts/arm.sh
	@scripts/tritons.sh
	@scripts/sanitize.sh msan

test-arm: build ## the C++ tests, cross-built for ARM, under qemu, and the wheel for ARM where dist/ has it
	@scripts/arm.sh

test-tsan: build ## the C++ tests under ThreadSanitizer, on std::thread
	@scripts/sanitize.sh tsan

test-msan: build ## the C++ tests under clang's MemorySanitizer, on std::thread
	@scripts/sanitize.sh msan

fuzz: build ## a minute of libFuzzer for each reader and for the arguments of calls; SECONDS_EACH=600
	@scripts/fuzz.sh $(SECONDS_EACH)

mutants: build ## plants small faults, one after the other, and counts those that tests find; ARGS="--only kernels"
	@$(PY) -m tests.mutants $(ARGS)

coverage: build ## lines and branches of src/ that the C++ tests and the tool's run; what they do not is in build/coverage/not_run.txt
	@scripts/coverage.sh

sbom: build ## build/sbom.json, what relpos is built of, in CycloneDX
	@$(PY) scripts/sbom.py

accuracy: build ## 20,000 random calls a SIMD target against the bound of docs/accuracy.md; ARGS="--seed 2"
	@$(PY) -m tests.call.accuracy_fuzz --calls 20000 --target all $(ARGS)

parity: build ## every scheme against the packages it comes from, in float32 and float64; ARGS="--only XLNet"
	@scripts/parity.sh $(ARGS)

bench: build ## measure against plain attention and other libraries; ARGS="--case TEXT --runs 5"
	@scripts/bench.sh $(ARGS)

gpu-check: build ## compile the GPU's kernels for three chips, without a GPU: registers, spills, shared memory; ARGS="--chip 90"
	@$(PY) scripts/gpu_check.py $(ARGS)

bench-gpu: build ## measure the GPU's kernels against SDPA and FlexAttention, where there is one; ARGS="--lengths 8192"
	@$(PY) bench/gpu.py $(ARGS)

hub: build ## a kernel of Hugging Face's Kernel Hub, in build/hub
	@$(PY) scripts/hub.py

docs: site-tools build ## the site: guides, a page for each scheme, the references of Python and C++; build/site/index.html
	@scripts/docs.sh

wheels: build ## wheels for Linux on x86-64 and ARM in dist/, by clang for every system; SYSTEMS="musl macos"
	@scripts/wheels.sh $(SYSTEMS)

format: build ## format C++ and Python in place
	@scripts/lint.sh --fix

lint: build ## clang-format, ruff, stubtest, clang-tidy
	@scripts/lint.sh

clean: ## remove what was built; .venv stays
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
