# Everything is built under $(BUILD); `./configure` has written build/config.mk with what it found.
# A sanitized tree stands beside the plain one:  make BUILD=build/asan SANITIZER=address ...

ifeq (,$(wildcard build/config.mk))
$(error build/config.mk is missing: run ./configure first)
endif
include build/config.mk

BUILD     ?= build
SANITIZER ?=

# --- flags -------------------------------------------------------------------------------------

WARN      := -Wall -Wextra -Werror -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
OPT       ?= -O2
comma     := ,
SAN_FLAGS := $(if $(filter address,$(SANITIZER)),-fsanitize=address$(comma)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer) \
             $(if $(filter thread,$(SANITIZER)),-fsanitize=thread) \
             $(if $(filter fuzzer,$(SANITIZER)),-fsanitize=fuzzer-no-link$(comma)address$(comma)undefined -fno-sanitize-recover=all)
PD_CFLAGS  = -std=c11 -D_GNU_SOURCE $(OPT) -g $(WARN) -I. -I$(BUILD) $(DEP_CFLAGS) $(SAN_FLAGS) $(CFLAGS)
PD_LDFLAGS = $(SAN_FLAGS) $(LDFLAGS)
PD_LIBS    = -lgrpc -lgpr -lprotobuf-c -lmicrohttpd $(DEP_LIBS) -lpthread -ldl -lm

# Kernels keep every rounding where the source has it; the file name's ending chooses the
# instruction set, and run-time detection chooses the file.
KERNEL_FLAGS        := -O3 -ffp-contract=off -fno-math-errno
ISA_avx2            := -mavx2 -mfma -mf16c
ISA_avx512          := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
ISA_vnni            := $(ISA_avx512) -mavx512vnni
ISA_amx             := $(ISA_vnni) -mamx-tile -mamx-int8
ISA_dot             := $(ISA_avx512) -mavx512bf16
ISA_bf16            := $(ISA_dot) -mamx-tile -mamx-bf16
isa_of               = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $1)))))

NVCC      := $(if $(CUDA),$(CUDA)/bin/nvcc,$(shell command -v nvcc))
CUDA_ARCH := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
             -gencode arch=compute_90,code=compute_90
# Where libraries are looked for when the program runs, after the operator's folder.
$(BUILD)/kernels/cuda/library.o: PD_CFLAGS += -DPD_CUDA_TOOLKIT='"$(or $(CUDA),$(patsubst %/bin/nvcc,%,$(NVCC)),/usr/local/cuda)"'
CUDA_LIBS := $(if $(CUDA),-L$(CUDA)/lib64 -lcudart_static -lrt -lstdc++)

# --- sources: a new .c in a room is built without a line here ------------------------------------

WORKER_SRC := $(filter-out worker/main.c,$(wildcard worker/*.c worker/*/*.c))
PDCTL_SRC  := $(filter-out pdctl/main.c,$(wildcard pdctl/*.c))
KERNEL_SRC := $(wildcard kernels/*.c kernels/cpu/*.c kernels/reference/*.c)
CUDA_SRC   := $(wildcard kernels/cuda/*.cu)
CUDA_C     := $(wildcard kernels/cuda/*.c)
CUDA_HEAD  := $(wildcard kernels/cuda/*.h kernels/cuda/*.cuh)
UNIT_SRC   := $(wildcard t/unit/test_*.c)
DOUBLE_SRC := $(wildcard t/unit/double_*.c)
HELP_SRC   := $(filter-out $(UNIT_SRC) $(DOUBLE_SRC),$(wildcard t/unit/*.c))

WORKER_OBJ := $(WORKER_SRC:%.c=$(BUILD)/%.o) $(BUILD)/proto/pd.pb-c.o
PDCTL_OBJ  := $(PDCTL_SRC:%.c=$(BUILD)/%.o)
KERNEL_OBJ := $(KERNEL_SRC:%.c=$(BUILD)/%.o)
HELP_OBJ   := $(HELP_SRC:%.c=$(BUILD)/%.o)
UNIT_BIN   := $(UNIT_SRC:%.c=$(BUILD)/%)
MAIN_OBJ   := $(BUILD)/worker/main.o
CUDA_OBJ   := $(if $(CUDA),$(CUDA_SRC:%=$(BUILD)/%.o) $(CUDA_C:%.c=$(BUILD)/%.o))
HELP_LIB   := $(BUILD)/libpdtest.a
ROOM_LIBS  := $(BUILD)/libpdctl.a $(BUILD)/libpdworker.a $(BUILD)/libpdkernels.a

.PHONY: all
all: worker pdctl module

.PHONY: worker pdctl
worker: $(BUILD)/pd-worker
pdctl: $(BUILD)/bin/pdctl

# The CUDA backend comes as objects: device.c names it weakly, so an archive would not bring it. Where it is
# not linked, `--device cuda` says so.
$(BUILD)/pd-worker: $(MAIN_OBJ) $(CUDA_OBJ) $(ROOM_LIBS) build/config.mk
	$(CC) $(PD_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(PD_LIBS) $(CUDA_LIBS)

$(BUILD)/bin/pdctl: $(BUILD)/pdctl/main.o $(ROOM_LIBS)
	@mkdir -p $(@D)
	$(CC) $(PD_LDFLAGS) -o $@ $^ $(PD_LIBS)

$(BUILD)/libpdctl.a: $(PDCTL_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libpdworker.a: $(WORKER_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libpdkernels.a: $(KERNEL_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/kernels/%.o: kernels/%.c
	@mkdir -p $(@D)
	$(CC) $(PD_CFLAGS) $(KERNEL_FLAGS) $(call isa_of,$<) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.c | $(BUILD)/proto/pd.pb-c.h
	@mkdir -p $(@D)
	$(CC) $(PD_CFLAGS) -MMD -MP -c -o $@ $<

# What a GPU has shown of these very sources is on, the rest is off.
CUDA_SHOWN := $(BUILD)/kernels/cuda/shown.h
$(CUDA_SHOWN): t/device/shown t/device/results kernels/cuda/paths $(CUDA_SRC) $(CUDA_C) $(CUDA_HEAD)
	@mkdir -p $(@D)
	t/device/shown header > $@.new && mv $@.new $@
$(BUILD)/kernels/cuda/paths.o: $(CUDA_SHOWN)

$(BUILD)/kernels/cuda/%.cu.o: kernels/cuda/%.cu $(CUDA_HEAD) kernels/kernels.h
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -std=c++17 -O3 -I. --Werror all-warnings -Xptxas -v -c -o $@ $< 2>$@.ptxas || { cat $@.ptxas >&2; exit 1; }

# Generated code answers to its generator, not to our warnings.
$(BUILD)/proto/pd.pb-c.o: $(BUILD)/proto/pd.pb-c.c
	$(CC) $(PD_CFLAGS) -Wno-error -w -c -o $@ $<

# Messages only: both sides name a service's methods to gRPC themselves, and protobuf-c makes of a
# method called Register an identifier that C keeps for itself.
$(BUILD)/proto/pd.pb-c.c $(BUILD)/proto/pd.pb-c.h &: proto/pd.proto
	@mkdir -p $(@D)
	sed '/^service /,/^}/d' $< > $(BUILD)/proto/pd.proto
	protoc-c -I $(BUILD) --c_out=$(BUILD) $(BUILD)/proto/pd.proto

# --- module --------------------------------------------------------------------------------------

.PHONY: module
module: $(BUILD)/proto/pd.pb-c.c
	+@BUILD='$(BUILD)' SANITIZER='$(SANITIZER)' NGINX_SRC='$(NGINX_SRC)' CC='$(CC)' ngx_pd_module/build.sh

# --- install, packages, demo -----------------------------------------------------------------------

MODULES_DIR ?= $(PREFIX)/lib/nginx/modules

.PHONY: install deb demo demo-stop
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(MODULES_DIR) $(DESTDIR)$(PREFIX)/share/ngx_pd
	install -m 755 $(BUILD)/pd-worker $(BUILD)/bin/pdctl $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(BUILD)/ngx_http_pd_module.so $(DESTDIR)$(MODULES_DIR)/
	install -m 644 conf/ngx_pd.conf $(DESTDIR)$(PREFIX)/share/ngx_pd/

deb:
	@packaging/build-deb

demo: all model
	@t/demo

demo-stop:
	@t/demo stop

# --- what the tests need beside the build ---------------------------------------------------------

.PHONY: venv model
venv:
	@t/venv

model:
	@t/fetch-model

# --- unit tests ----------------------------------------------------------------------------------

.SECONDARY:
.PHONY: unit check-unit
unit: $(UNIT_BIN)

# Helpers are a library, of which a test takes what it names. A double stands in for a whole room:
# only the tests that are listed here are linked with it.
$(HELP_LIB): $(HELP_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(filter $(BUILD)/t/unit/test_engine%,$(UNIT_BIN)): $(BUILD)/t/unit/double_model.o
$(addprefix $(BUILD)/t/unit/test_engine_,borrow faults routes): $(BUILD)/t/unit/double_kvx.o

$(BUILD)/t/unit/test_%: $(BUILD)/t/unit/test_%.o $(HELP_LIB) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(PD_LIBS)

check-unit: $(UNIT_BIN)
	@export TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS"; \
	    for test in $(UNIT_BIN); do echo "# $$test"; $$test || exit 1; done

# The nginx suites: an nginx of its own for every block, against fake workers. They wait more than they
# compute, so two run at a time.
.PHONY: check-module
check-module: module venv
	PD_BUILD='$(BUILD)' PD_TEST_SLOW=$(if $(SANITIZER),8,4) prove -j2 -It/lib t/*.t

# Each folder of tests brings its own rules: t/oracle/oracle.mk and its neighbours. A folder's target is
# check-NAME.
include $(wildcard t/*/*.mk)

# --- the whole test ---------------------------------------------------------------------------------

MAKES    := $(MAKE) --no-print-directory -s
PARALLEL := $(MAKES) -j$(shell nproc)
ASAN     := BUILD=build/asan SANITIZER=address NGINX_SRC=$$(t/fetch-nginx)
TSAN     := BUILD=build/tsan SANITIZER=thread
NEWER    := BUILD=build/newer NGINX_SRC=$$(t/fetch-nginx trixie)

.PHONY: test test-long
test: venv model
	@t/run \
	    build='$(PARALLEL) all unit' \
	    unit='$(MAKES) check-unit check-mutants' \
	    kvx='$(PARALLEL) check-kvx-histories check-kv-model' \
	    module='$(MAKES) check-module' \
	    link='$(MAKES) check-link check-worker check-pdctl check-pair' \
	    oracle='$(PARALLEL) check-oracle' \
	    cuda='$(PARALLEL) test-cuda' \
	    rdma='$(MAKES) check-rdma' \
	    e2e='$(MAKES) check-e2e' \
	    chaos='$(MAKES) check-chaos' \
	    hostile='$(MAKES) check-hostile-worker' \
	    fuzz='$(PARALLEL) build-fuzz && $(MAKES) check-fuzz-short' \
	    clang='$(PARALLEL) BUILD=build/clang CC=clang all' \
	    newer-nginx='$(PARALLEL) $(NEWER) module && $(MAKES) $(NEWER) check-module' \
	    asan-build='$(PARALLEL) $(ASAN) all unit' \
	    asan-unit='$(MAKES) $(ASAN) check-unit check-kvx-histories HISTORIES=1500' \
	    asan-link='$(MAKES) $(ASAN) check-link check-worker' \
	    asan-module='$(MAKES) $(ASAN) check-module' \
	    asan-e2e='$(MAKES) $(ASAN) check-e2e-short' \
	    tsan-build='$(PARALLEL) $(TSAN) worker unit && $(MAKES) BUILD=build/tsan SANITIZER= module' \
	    tsan-unit='$(MAKES) $(TSAN) check-unit' \
	    tsan-e2e='$(MAKES) $(TSAN) check-e2e-worker' \
	    package='t/package'

# What takes longer: an hour of faults under load, fuzzers for minutes, and sanitized workers among hostile peers.
test-long: venv model
	@t/run failover='$(MAKES) check-e2e-failover' \
	    tokenizers='$(MAKES) check-tokenizer SERVED=100000' \
	    chaos='$(MAKES) check-chaos-long SEED=$$(date +%j)' \
	    fuzz='$(MAKES) check-fuzz FUZZ_SECONDS=90' \
	    mutants='$(MAKES) mutants' \
	    kv-model='$(MAKES) check-kv-model-long' \
	    burst='$(MAKES) check-e2e-burst' \
	    tsan-link='$(PARALLEL) $(TSAN) worker && $(MAKES) $(TSAN) check-link check-worker' \
	    asan-rdma='$(PARALLEL) $(ASAN) all unit && $(MAKES) $(ASAN) check-rdma RDMA_CASES="conformance faults"' \
	    asan-simt='$(PARALLEL) $(ASAN) check-simt-short' \
	    asan-hostile='$(PARALLEL) $(ASAN) worker && $(MAKES) $(ASAN) check-hostile-worker' \
	    tsan-hostile='$(PARALLEL) $(TSAN) worker && $(MAKES) $(TSAN) check-hostile-worker'

.PHONY: clean
clean:
	rm -rf $(BUILD)/worker $(BUILD)/kernels $(BUILD)/pdctl $(BUILD)/proto $(BUILD)/t $(BUILD)/nginx \
	    $(BUILD)/pd-worker $(BUILD)/bin $(BUILD)/*.a

-include $(WORKER_OBJ:.o=.d) $(PDCTL_OBJ:.o=.d) $(BUILD)/pdctl/main.d $(CUDA_C:%.c=$(BUILD)/%.d) $(KERNEL_OBJ:.o=.d) $(HELP_OBJ:.o=.d) $(DOUBLE_SRC:%.c=$(BUILD)/%.d) $(UNIT_BIN:%=%.d) $(wildcard $(BUILD)/t/oracle/*.d) $(MAIN_OBJ:.o=.d)
