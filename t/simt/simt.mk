# The CUDA kernels without a GPU: compiled by nvcc for both architectures where there is an nvcc, and run on
# the host through the shim always.

CUDA_SRC  := $(wildcard kernels/cuda/*.cu)
SIMT_OBJ  := $(CUDA_SRC:%.cu=$(BUILD)/t/simt/%.o) $(BUILD)/t/simt/simt.o
NVCC      := $(if $(CUDA),$(CUDA)/bin/nvcc,$(shell command -v nvcc))
CUDA_ARCH := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
             -gencode arch=compute_90,code=compute_90
SIMT_CXX  := $(CXX) -std=c++17 -O1 -g -Wall -Wextra -Werror -Wno-unused-function -I.

$(BUILD)/t/simt/kernels/%.o: kernels/%.cu kernels/cuda/simt.cuh kernels/cuda/cuda.h t/simt/simt.h
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -DPD_SIMT_HOST -x c++ -c -o $@ $<

$(BUILD)/t/simt/simt.o: t/simt/simt.cc t/simt/simt.h
	@mkdir -p $(@D)
	$(SIMT_CXX) $(SAN_FLAGS) -c -o $@ $<

$(BUILD)/t/simt/test_simt: $(BUILD)/t/simt/test_simt.o $(SIMT_OBJ) $(HELP_LIB) $(ROOM_LIBS)
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

$(BUILD)/kernels/cuda/%.o: kernels/cuda/%.cu kernels/cuda/simt.cuh kernels/cuda/cuda.h
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -std=c++17 -O3 -I. --Werror all-warnings -c -o $@ $<

.PHONY: check-simt check-cuda test-cuda
check-simt: $(BUILD)/t/simt/test_simt
	@! grep -nE '<<<|asm *(volatile)? *\(|__sync|__shfl' $(CUDA_SRC) || \
	    { echo 'kernels/cuda: spell it through simt.cuh, or only a GPU could test it'; exit 1; }
	$<

check-cuda:
ifneq ($(NVCC),)
	@$(MAKE) --no-print-directory $(CUDA_SRC:%.cu=$(BUILD)/%.o)
else
	@echo '# skipped: the CUDA kernels were not compiled for sm_80 and sm_90a: there is no nvcc'
endif

test-cuda: check-cuda check-simt
