# What is run where there is a GPU, and prepared where there is none: README.md.
#
#   make device        the bundle build/device, for a machine with a GPU; minutes: nvcc compiles everything
#   make check-device  the same stages over the host's shim, small: that they run, and what `run` makes of them

DEVICE_SRC   := $(addprefix t/device/,main.c ceilings.c wrappers.c suites.c shapes.c)
DEVICE_RIG   := $(addprefix t/unit/,kernel_rig.c kernel_model.c kernel_answers.c)
DEVICE_OBJ   := $(patsubst %.c,$(BUILD)/t/device/%.o,$(DEVICE_SRC) $(DEVICE_RIG)) \
                $(addprefix $(BUILD)/t/device/suite_,layout.o operators.o sample.o)
DEVICE_CFLAGS = $(PD_CFLAGS) -It/device/include -DPD_DEVICE -Wno-missing-prototypes
CUDA_HOME    := $(or $(CUDA),$(patsubst %/bin/nvcc,%,$(NVCC)))

$(BUILD)/t/device/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -MMD -MP -c -o $@ $<

# Its probes take their operands through memory that a GPU sees (wrappers.c).
STAGED := $(foreach probe,multiply load_matrix copy quads,-Dpd_probe_$(probe)=pd_staged_$(probe))
$(BUILD)/t/device/suite_layout.o: t/simt/test_layout.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_layout $(STAGED) -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_operators.o: t/simt/test_operators.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_operators -MMD -MP -c -o $@ $<

$(BUILD)/t/device/suite_sample.o: t/unit/test_kernels_sample.c
	@mkdir -p $(@D)
	$(CC) $(DEVICE_CFLAGS) -Dmain=pd_suite_sample -MMD -MP -c -o $@ $<

-include $(DEVICE_OBJ:.o=.d)

# Over the shim, whose objects are named in a file that is read after this one.
.SECONDEXPANSION:
$(BUILD)/t/device/pd-kernel-test: $(DEVICE_OBJ) $(BUILD)/t/simt/probe.o $$(SIMT_OBJ) $(BUILD)/libpdkernels.a
	$(CXX) $(PD_LDFLAGS) -o $@ $^ -lpthread -lm

$(BUILD)/t/device/probe.cu.o: t/simt/probe.cu t/simt/probe.h $(CUDA_HEAD)
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -std=c++17 -O3 -I. --Werror all-warnings -c -o $@ $<

# On a GPU: libc and the static CUDA runtime alone.
$(BUILD)/device/pd-kernel-test: $(DEVICE_OBJ) $(BUILD)/t/device/probe.cu.o $(CUDA_SRC:%=$(BUILD)/%.o) $(CUDA_C:%.c=$(BUILD)/%.o) $(BUILD)/libpdkernels.a
	@mkdir -p $(@D)
	$(CXX) -static-libgcc -static-libstdc++ -s -o $@ $^ -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lpthread -ldl -lm

# The daemon finds its libraries beside itself; RPATH, not RUNPATH, so that they find theirs there too.
$(BUILD)/device/pd-worker: $(MAIN_OBJ) $(CUDA_SRC:%=$(BUILD)/%.o) $(CUDA_C:%.c=$(BUILD)/%.o) $(ROOM_LIBS)
	@mkdir -p $(@D)
	$(CC) -s -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib' -o $@ $^ $(PD_LIBS) -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lstdc++

.PHONY: device check-device check-shown
device: $(BUILD)/device/pd-kernel-test $(BUILD)/device/pd-worker
	t/device/bundle $(BUILD)/device $(BUILD)

check-shown:
	t/device/test_shown

SIMT_TREE := $(BUILD)/t/simt/tree
check-device: $(BUILD)/t/device/pd-kernel-test $(SIMT_TREE)/pd-worker module
	t/device/check $< $(SIMT_TREE)
