# The CUDA kernels without a GPU: compiled by nvcc for both architectures where there is an nvcc, and run on
# the host through the shim always.

CUDA_SRC  := $(wildcard kernels/cuda/*.cu)
CUDA_C    := $(wildcard kernels/cuda/*.c)
CUDA_HEAD := $(wildcard kernels/cuda/*.h kernels/cuda/*.cuh)
SIMT_OBJ  := $(patsubst %.cu,$(BUILD)/t/simt/%.o,$(filter-out kernels/cuda/gpu_%,$(CUDA_SRC))) \
             $(CUDA_C:%.c=$(BUILD)/%.o) $(BUILD)/t/simt/simt.o $(BUILD)/t/simt/runtime.o
SIMT_TEST := $(addprefix $(BUILD)/t/simt/,test_simt test_kernels_sample)
NVCC      := $(if $(CUDA),$(CUDA)/bin/nvcc,$(shell command -v nvcc))
CUDA_ARCH := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
             -gencode arch=compute_90,code=compute_90
SIMT_CXX  := $(CXX) -std=c++17 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -I.

$(BUILD)/t/simt/kernels/%.o: kernels/%.cu $(CUDA_HEAD) kernels/kernels.h t/simt/simt.h
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -x c++ -c -o $@ $<

$(BUILD)/t/simt/%.o: t/simt/%.cc t/simt/simt.h kernels/cuda/runtime.h
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -c -o $@ $<

# The backend comes as objects: device.c names it weakly, so an archive would not bring it.
$(BUILD)/t/simt/test_simt: $(BUILD)/t/simt/test_simt.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

$(BUILD)/t/simt/test_kernels_%: $(BUILD)/t/unit/test_kernels_%.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

$(BUILD)/kernels/cuda/%.cu.o: kernels/cuda/%.cu $(CUDA_HEAD) kernels/kernels.h
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -std=c++17 -O3 -I. --Werror all-warnings -c -o $@ $<

.PHONY: check-simt check-cuda test-cuda
check-simt: $(SIMT_TEST)
	@! grep -nE '<<<|asm *(volatile)? *\(|__sync|__shfl' $(filter-out kernels/cuda/gpu_%,$(CUDA_SRC)) $(filter-out %/simt.cuh,$(CUDA_HEAD)) || \
	    { echo 'kernels/cuda: spell it through simt.cuh, or only a GPU could test it'; exit 1; }
	@for test in $(SIMT_TEST); do echo "# $$test"; $$test || exit 1; done

check-cuda:
ifneq ($(NVCC),)
	@$(MAKE) --no-print-directory $(CUDA_SRC:%=$(BUILD)/%.o)
else
	@echo '# skipped: the CUDA kernels were not compiled for sm_80 and sm_90a: there is no nvcc'
endif

test-cuda: check-cuda check-simt
