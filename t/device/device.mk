# What is run where there is a GPU, and prepared where there is none: README.md.
#
#   make device        the bundle build/device, for a machine with a GPU; minutes: nvcc compiles everything
#   make check-device  the same stages over the host's shim, small: that they run, and what `run` makes of them

DEVICE_SRC   := $(addprefix t/device/,main.c ceilings.c wrappers.c staged.c suites.c collect.c shapes.c)
DEVICE_RIG   := $(addprefix t/unit/,kernel_rig.c kernel_model.c kernel_answers.c)
DEVICE_OBJ   := $(patsubst %.c,$(BUILD)/t/device/%.o,$(DEVICE_SRC) $(DEVICE_RIG)) \
                $(addprefix $(BUILD)/t/device/suite_,layout.o products.o blocks.o attention.o operators.o sample.o)
DEVICE_CFLAGS = $(PD_CFLAGS) -It/device/include -DPD_DEVICE -Wno-missing-prototypes
# The daemon finds its libraries beside itself; RPATH, not RUNPATH, so that they find theirs there too.
BESIDE       := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib'
CUDA_HOME    := $(or $(CUDA),$(patsubst %/bin/nvcc,%,$(NVCC)))

$(BUILD)/t/device/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -MMD -MP -c -o $@ $<

# The suites that call launchers themselves take their operands through memory that a GPU sees (staged.c).
STAGED := $(foreach probe,multiply load_matrix copy quads,-Dpd_probe_$(probe)=pd_staged_$(probe))
$(BUILD)/t/device/suite_layout.o: t/simt/test_layout.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_layout $(STAGED) -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_products.o: t/simt/test_products.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_products $(foreach one,fixed small,-Dpd_cuda_matmul_$(one)=pd_staged_$(one)) -Dpd_cuda_add_slices=pd_staged_slices -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_blocks.o: t/simt/test_blocks.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_blocks $(foreach one,gather scatter,-Dpd_cuda_$(one)_ranges=pd_staged_$(one)) -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_attention.o: t/simt/test_attention.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_attention -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_operators.o: t/simt/test_operators.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_operators -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_sample.o: t/unit/test_kernels_sample.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_sample -MMD -MP -c -o $@ $<

-include $(DEVICE_OBJ:.o=.d)

# Over the shim, whose objects are named in a file that is read after this one, the
# daemon too: a bundle like the real one, but for the hashes that would make its results count.
SHIM_BUNDLE := $(BUILD)/t/device/bundle
.SECONDEXPANSION:
$(SHIM_BUNDLE)/pd-kernel-test: $(DEVICE_OBJ) $(BUILD)/t/simt/probe.o $$(SIMT_OBJ) $(BUILD)/libpdkernels.a
	@mkdir -p $(@D)
	$(CXX) $(PD_LDFLAGS) -static-libgcc -static-libstdc++ -s -o $@ $^ -lpthread -lm

$(SHIM_BUNDLE)/pd-worker: $(MAIN_OBJ) $$(SIMT_OBJ) $(ROOM_LIBS)
	@mkdir -p $(@D)
	$(CXX) $(PD_LDFLAGS) -s $(BESIDE) -o $@ $^ $(PD_LIBS)

$(BUILD)/t/device/probe.cu.o: t/simt/probe.cu t/simt/probe.h $(CUDA_HEAD)
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -std=c++17 -O3 -I. --Werror all-warnings -c -o $@ $<

# On a GPU: libc and the static CUDA runtime alone.
$(BUILD)/device/pd-kernel-test: $(DEVICE_OBJ) $(BUILD)/t/device/probe.cu.o $(CUDA_SRC:%=$(BUILD)/%.o) $(CUDA_C:%.c=$(BUILD)/%.o) $(BUILD)/libpdkernels.a
	@mkdir -p $(@D)
	$(CXX) -static-libgcc -static-libstdc++ -s -o $@ $^ -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lpthread -ldl -lm

$(BUILD)/device/pd-worker: $(MAIN_OBJ) $(CUDA_SRC:%=$(BUILD)/%.o) $(CUDA_C:%.c=$(BUILD)/%.o) $(ROOM_LIBS)
	@mkdir -p $(@D)
	$(CC) -s $(BESIDE) -o $@ $^ $(PD_LIBS) -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lstdc++

.PHONY: device check-device check-shown
device: $(BUILD)/device/pd-kernel-test $(BUILD)/device/pd-worker module
	t/device/bundle $(BUILD)/device $(BUILD)
	cat kernels/cuda/* | sha256sum | cut -c1-64 > $(BUILD)/device/source.sha256
	t/device/shown hashes > $(BUILD)/device/paths

check-shown:
	t/device/test_shown

check-device: $(SHIM_BUNDLE)/pd-kernel-test $(SHIM_BUNDLE)/pd-worker module venv
	t/device/bundle $(SHIM_BUNDLE) $(BUILD)
	t/device/check $(SHIM_BUNDLE)
	PD_SIMT_FAULT=$(abspath $(SHIM_BUNDLE))/fault t/cluster --build $(SHIM_BUNDLE) --mixed 2 --model t/device/shapes/tiny --ignore random \
	    --worker-args '--device cuda --deterministic --load-format dummy --seed 3' -- $(PYTHON) t/e2e/device_lost.py
