# The hand-off over real queue pairs, in a guest that has RDMA devices in software.

RDMA_TESTS := $(BUILD)/t/kvx/conformance $(BUILD)/t/rdma/test_faults

$(BUILD)/t/rdma/test_%: $(BUILD)/t/rdma/test_%.o $(HELP_LIB) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(PD_LIBS)

unit: $(RDMA_TESTS) # built everywhere, run in the guest

RDMA_CASES ?= # all of t/rdma/cases

.PHONY: check-rdma
check-rdma: all build/tiny-models/made $(RDMA_TESTS)
	@why=$$(t/rdma/guest --why-not); if [ -n "$$why" ]; then \
	    echo "# SKIPPED: nothing was tested over RDMA: $$why"; [ -z "$$PD_RDMA_REQUIRED" ]; \
	else \
	    PD_BUILD=$(BUILD) t/rdma/guest t/rdma/cases $(RDMA_CASES); \
	fi

-include $(wildcard $(BUILD)/t/rdma/*.d)
