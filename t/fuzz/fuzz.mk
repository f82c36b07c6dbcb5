# Fuzzers of the worker's rooms, in a tree of their own: the rooms are compiled for coverage by clang. The
# kernels, but for one file of theirs, read nobody's bytes and come from the plain tree.

FUZZ_SECONDS ?= 20
FUZZ_RUNS    ?= 5000
WORKER_FUZZ  := $(patsubst t/fuzz/%.c,%,$(shell grep -L ngx_ t/fuzz/fuzz_*.c))

# check-fuzz goes on for FUZZ_SECONDS with each fuzzer, check-fuzz-short gives each the same FUZZ_RUNS inputs.
.PHONY: build-fuzz check-fuzz check-fuzz-short build-fuzz-worker check-fuzz-worker check-fuzz-worker-short
build-fuzz: build-fuzz-worker
check-fuzz: check-fuzz-worker
check-fuzz-short: check-fuzz-worker-short

build-fuzz-worker: build/libpdkernels.a
	@$(MAKE) --no-print-directory BUILD=build/fuzz CC=clang SANITIZER=fuzzer \
	    $(WORKER_FUZZ:%=build/fuzz/t/fuzz/%)

check-fuzz-worker: build-fuzz-worker
	@FUZZ_RUNS= FUZZ_SECONDS=$(FUZZ_SECONDS) t/fuzz/run build/fuzz/t/fuzz $(WORKER_FUZZ)

check-fuzz-worker-short: build-fuzz-worker
	@FUZZ_RUNS=$(FUZZ_RUNS) t/fuzz/run build/fuzz/t/fuzz $(WORKER_FUZZ)

build/fuzz/t/fuzz/fuzz_gguf: build/fuzz/t/unit/gguf_file.o
build/fuzz/t/fuzz/fuzz_algorithms: build/fuzz/kernels/cuda/algorithms.o

build/fuzz/t/fuzz/fuzz_%: build/fuzz/t/fuzz/fuzz_%.o build/fuzz/libpdworker.a build/libpdkernels.a
	$(CC) $(PD_LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PD_LIBS)
