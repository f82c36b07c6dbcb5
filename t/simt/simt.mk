# The CUDA kernels without a GPU: compiled by nvcc for both architectures where there is an nvcc, and run on
# the host through the shim always.

SIMT_OBJ  := $(patsubst %.cu,$(BUILD)/t/simt/%.o,$(filter-out kernels/cuda/gpu_%,$(CUDA_SRC))) \
             $(CUDA_C:%.c=$(BUILD)/%.o) $(addprefix $(BUILD)/t/simt/,simt.o warp.o memory.o runtime.o)
SIMT_TEST := $(addprefix $(BUILD)/t/simt/,test_rules test_layout test_products test_blocks test_attention test_operators test_scratch test_simt test_library test_gemm test_transfer test_group test_kernels_sample test_kernels_group test_model_ranks test_engine_kvx)
SIMT_HEAD := t/simt/simt.h t/simt/fiber.h t/simt/memory.h t/simt/control.h kernels/cuda/pd_simt.cuh kernels/cuda/cuda.h kernels/cuda/runtime.h
# Every object of a kernel waits for this.
SPELT := $(BUILD)/t/simt/spelt
$(SPELT): t/simt/spelt $(CUDA_SRC) $(CUDA_HEAD)
	@mkdir -p $(@D)
	@t/simt/spelt $(filter-out kernels/cuda/gpu_%,$(CUDA_SRC)) $(filter-out %/pd_simt.cuh,$(CUDA_HEAD))
	@touch $@
$(CUDA_SRC:%=$(BUILD)/%.o) $(SIMT_OBJ): | $(SPELT)

SIMT_CXX  := $(CXX) -std=c++17 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -I.

$(BUILD)/t/simt/kernels/%.o: kernels/%.cu $(CUDA_HEAD) kernels/kernels.h t/simt/simt.h
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -x c++ -c -o $@ $<

$(BUILD)/t/simt/%.o: t/simt/%.cc $(SIMT_HEAD)
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -c -o $@ $<

$(BUILD)/t/simt/probe.o: t/simt/probe.cu t/simt/probe.h $(SIMT_HEAD)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -x c++ -c -o $@ $<

$(BUILD)/t/simt/test_layout: $(addprefix $(BUILD)/t/simt/,test_layout.o probe.o) $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

$(addprefix $(BUILD)/t/simt/,test_rules test_products test_blocks test_attention): $(BUILD)/t/simt/test_%: $(BUILD)/t/simt/test_%.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

# The same under ThreadSanitizer, which takes the kernels' barriers and nothing else for order: the shim
# itself is not instrumented.
RACE      := $(BUILD)/t/simt/race
RACE_OBJ  := $(patsubst %.cu,$(RACE)/%.o,$(filter-out kernels/cuda/gpu_%,$(CUDA_SRC))) \
             $(CUDA_C:%.c=$(BUILD)/%.o) $(addprefix $(RACE)/,simt.o warp.o memory.o runtime.o)
RACE_TEST := $(addprefix $(RACE)/,test_products test_blocks test_attention test_operators test_group test_kernels_sample)

$(RACE)/kernels/%.o: kernels/%.cu $(CUDA_HEAD) kernels/kernels.h $(SIMT_HEAD)
	@mkdir -p $(@D)
	$(SIMT_CXX) -fsanitize=thread -DPD_SIMT_HOST -DPD_SIMT_TSAN -x c++ -c -o $@ $<

$(RACE)/%.o: t/simt/%.cc $(SIMT_HEAD)
	@mkdir -p $(@D)
	$(SIMT_CXX) -DPD_SIMT_HOST -DPD_SIMT_TSAN -c -o $@ $<

$(RACE)/test_%: $(BUILD)/t/simt/test_%.o $(RACE_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) -fsanitize=thread -rdynamic -o $@ $^ -lcmocka $(PD_LIBS)

$(RACE)/test_kernels_%: $(BUILD)/t/unit/test_kernels_%.o $(RACE_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) -fsanitize=thread -o $@ $^ -lcmocka $(PD_LIBS)

.PHONY: check-simt-races
check-simt-races: $(RACE_TEST)
	for test in $(RACE_TEST); do PD_SIMT_SHAPES=2 TSAN_OPTIONS=halt_on_error=1 $$test || exit 1; done

# The backend comes as objects: device.c names it weakly, so an archive would not bring it.
$(addprefix $(BUILD)/t/simt/,test_operators test_scratch test_simt test_library test_gemm test_transfer test_group test_replay): %: %.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

# Suites of t/unit that also ask the device kind "cuda" where it is linked in.
$(addprefix $(BUILD)/t/simt/,test_kernels_sample test_kernels_group test_model_ranks test_engine_kvx): $(BUILD)/t/simt/%: $(BUILD)/t/unit/%.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(PD_LIBS)
$(BUILD)/t/simt/test_engine_kvx: $(BUILD)/t/unit/double_model.o

# Stands in for a library of NVIDIA's wherever test_library puts it.
$(BUILD)/t/simt/standin.so: t/simt/standin.c
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -Wall -Wextra -Werror -o $@ $<
$(BUILD)/t/simt/test_library.run: $(BUILD)/t/simt/standin.so

# Stands in for NCCL over the shim, which is the program's.
$(BUILD)/t/simt/nccl/libnccl.so.2 $(RACE)/nccl/libnccl.so.2: t/simt/nccl_standin.cc $(SIMT_HEAD)
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -fPIC -shared -o $@ $<
$(BUILD)/t/simt/test_group: PD_LDFLAGS += -rdynamic
$(BUILD)/t/simt/test_group: | $(BUILD)/t/simt/nccl/libnccl.so.2
$(RACE)/test_group: | $(RACE)/nccl/libnccl.so.2

# Whole models: what the logits' oracle asks, of the device kind "cuda".
$(BUILD)/t/simt/test_logits: $(BUILD)/t/oracle/test_logits.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

# What only a GPU runs, over what stands in for CUDA's libraries; CUDA's headers alone are needed. Its symbols are the
# stand-in library's, which is this program.
GPU_HEAD := t/simt/cuda_standin.h kernels/cuda/gpu.h kernels/cuda/runtime.h kernels/cuda/cuda.h
GPU_OBJ  := $(addprefix $(BUILD)/t/simt/gpu/,gpu_runtime.o gpu_gemm.o cuda_standin.o cublaslt_standin.o test_gpu.o)

$(BUILD)/t/simt/gpu/%.o: kernels/cuda/%.cu $(GPU_HEAD)
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -isystem $(CUDA_HOME)/include -x c++ -c -o $@ $<

$(BUILD)/t/simt/gpu/%.o: t/simt/%.cc $(GPU_HEAD)
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -isystem $(CUDA_HOME)/include -c -o $@ $<

$(BUILD)/t/simt/gpu/test_gpu: $(GPU_OBJ) $(BUILD)/kernels/cuda/library.o
	$(CXX) $(PD_LDFLAGS) -rdynamic -o $@ $^ -lcmocka -lpthread -ldl

.PHONY: check-simt check-simt-short check-cuda test-cuda
check-simt: $(SIMT_TEST:%=%.run)
	t/simt/test_spelt

# On few shapes: for AddressSanitizer, whose fibers take six times as long.
SHORT_TEST := $(addprefix $(BUILD)/t/simt/,test_rules test_layout test_products test_blocks test_attention test_operators test_scratch test_gemm test_transfer)
check-simt-short: $(SHORT_TEST)
	for test in $(SHORT_TEST); do PD_SIMT_SHAPES=2 $$test || exit 1; done

$(BUILD)/t/simt/%.run: $(BUILD)/t/simt/%
	$<

check-cuda:
ifneq ($(NVCC),)
	@$(MAKE) --no-print-directory $(CUDA_SRC:%=$(BUILD)/%.o)
	t/simt/budgets $(BUILD) $(filter-out kernels/cuda/gpu_%,$(CUDA_SRC))
	@$(MAKE) --no-print-directory $(BUILD)/t/simt/gpu/test_gpu.run
else
	@echo '# skipped: the CUDA kernels were not compiled for sm_80 and sm_90a, and gpu_*.cu not run: there is no nvcc'
endif

# A fiber per thread of every kernel: a minute or two. Two of the tiny models have heads that the kernels take.
.PHONY: check-simt-model
check-simt-model: $(BUILD)/t/simt/test_logits $(BUILD)/t/simt/test_replay $(TINY_MODELS)/made model
	PD_MODEL=$(MODEL) $(BUILD)/t/simt/test_replay
	PD_DEVICE=cuda PD_ONLY=tiny-mistral PD_TINY_MODELS=$(TINY_MODELS) $<
	PD_DEVICE=cuda PD_ONLY=tiny-qwen3 PD_TINY_MODELS=$(TINY_MODELS) $<
	PD_DEVICE=cuda PD_ONLY=test_smollm2 PD_TEXTS=1 PD_MODEL=$(MODEL) $<

test-cuda: check-cuda check-simt check-simt-races check-simt-model check-shown check-device

-include $(wildcard $(BUILD)/t/simt/*.d)
