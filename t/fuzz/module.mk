# Fuzzers of the module's parsers, without nginx: the shim of t/unit/module.

MODULE_FUZZ := $(patsubst t/fuzz/%.c,%,$(shell grep -l ngx_ t/fuzz/fuzz_*.c))

.PHONY: check-fuzz-module check-fuzz-module-short
build-fuzz: $(MODULE_FUZZ:%=build/t/fuzz/%)
check-fuzz: check-fuzz-module
check-fuzz-short: check-fuzz-module-short

check-fuzz-module: $(MODULE_FUZZ:%=build/t/fuzz/%)
	@mkdir -p build/fuzz
	@FUZZ_RUNS= FUZZ_SECONDS=$(FUZZ_SECONDS) t/fuzz/run build/t/fuzz $(MODULE_FUZZ)

check-fuzz-module-short: $(MODULE_FUZZ:%=build/t/fuzz/%)
	@mkdir -p build/fuzz
	@FUZZ_RUNS=$(FUZZ_RUNS) t/fuzz/run build/t/fuzz $(MODULE_FUZZ)

# what a target needs beside the shim's own
build/t/fuzz/fuzz_state: ALSO := ngx_pd_module/ngx_http_pd_state_lines.c

build/t/fuzz/fuzz_%: t/fuzz/fuzz_%.c $(wildcard ngx_pd_module/*.[ch] t/unit/module/*.[ch]) \
    | build/proto/pd.pb-c.c build/nginx/objs/ngx_auto_config.h
	@mkdir -p $(@D)
	clang $(SHIM_FLAGS) -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Ibuild \
	    -o $@ $< $(ALSO) $(SHIM_SRC) build/proto/pd.pb-c.c -ljansson -lprotobuf-c -lcrypto
