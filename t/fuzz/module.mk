# Fuzzers of the module's parsers, without nginx: the shim of t/unit/module.

MODULE_FUZZ := $(patsubst t/fuzz/%.c,%,$(shell grep -l ngx_ t/fuzz/fuzz_*.c))

.PHONY: check-fuzz-module
check-fuzz: check-fuzz-module

check-fuzz-module: $(MODULE_FUZZ:%=build/t/fuzz/%)
	@for fuzz in $(MODULE_FUZZ); do \
	    echo "# $$fuzz, $(FUZZ_SECONDS) s"; mkdir -p build/fuzz/corpus/$$fuzz; \
	    build/t/fuzz/$$fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -timeout=10 -rss_limit_mb=2048 \
	        $$(test -e t/fuzz/$$fuzz.dict && echo -dict=t/fuzz/$$fuzz.dict) \
	        -artifact_prefix=build/fuzz/$$fuzz. build/fuzz/corpus/$$fuzz > build/fuzz/$$fuzz.log 2>&1 || \
	        { tail -n 40 build/fuzz/$$fuzz.log; exit 1; }; \
	    tail -n 1 build/fuzz/$$fuzz.log; \
	done

build/t/fuzz/fuzz_%: t/fuzz/fuzz_%.c $(wildcard ngx_pd_module/*.[ch] t/unit/module/*.[ch]) | build/proto/pd.pb-c.c
	@mkdir -p $(@D)
	clang $(SHIM_FLAGS) -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Ibuild \
	    -o $@ $< $(SHIM_SRC) build/proto/pd.pb-c.c -ljansson -lprotobuf-c -lcrypto
