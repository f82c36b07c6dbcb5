# Fuzzers of the worker's rooms, in a tree of their own: the rooms are compiled for coverage by clang.

FUZZ_SECONDS ?= 20
WORKER_FUZZ  := $(patsubst t/fuzz/%.c,%,$(shell grep -L ngx_ t/fuzz/fuzz_*.c))

.PHONY: check-fuzz check-fuzz-worker
check-fuzz: check-fuzz-worker

check-fuzz-worker:
	@$(MAKE) --no-print-directory BUILD=build/fuzz CC=clang SANITIZER=fuzzer \
	    $(WORKER_FUZZ:%=build/fuzz/t/fuzz/%)
	@for fuzz in $(WORKER_FUZZ); do \
	    echo "# $$fuzz, $(FUZZ_SECONDS) s"; mkdir -p build/fuzz/corpus/$$fuzz; \
	    build/fuzz/t/fuzz/$$fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -timeout=10 -rss_limit_mb=2048 \
	        $$(test -e t/fuzz/$$fuzz.dict && echo -dict=t/fuzz/$$fuzz.dict) \
	        -artifact_prefix=build/fuzz/$$fuzz. build/fuzz/corpus/$$fuzz > build/fuzz/$$fuzz.log 2>&1 || \
	        { tail -n 40 build/fuzz/$$fuzz.log; exit 1; }; \
	    tail -n 1 build/fuzz/$$fuzz.log; \
	done

build/fuzz/t/fuzz/fuzz_gguf: build/fuzz/t/unit/gguf_file.o

build/fuzz/t/fuzz/fuzz_%: build/fuzz/t/fuzz/fuzz_%.o $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PD_LIBS)
