# The hand-off's proof: one suite over every transport, and random histories in a simulated world.

KVX_SUITE := $(BUILD)/t/kvx/conformance.o $(BUILD)/t/kvx/conformance_ends.o
KVX_WORLD := $(filter-out t/kvx/conformance%.c,$(wildcard t/kvx/*.c))

# Its own table of transports and its own loop come before the rooms.
$(BUILD)/t/kvx/histories: $(KVX_WORLD:%.c=$(BUILD)/%.o) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ $(PD_LIBS)

HISTORIES ?= 100000

# SEED=n tells that one history step by step.
.PHONY: check-kvx-histories
check-kvx-histories: $(BUILD)/t/kvx/histories
	$< $(HISTORIES)

# The suite over the daemon's transports, and over the simulated wire.
KVX_CONFORMANCE := $(BUILD)/t/kvx/conformance $(BUILD)/t/kvx/conformance-sim

$(BUILD)/t/kvx/conformance: $(KVX_SUITE)
$(BUILD)/t/kvx/conformance-sim: $(KVX_SUITE) $(BUILD)/t/kvx/fabric.o
$(KVX_CONFORMANCE): $(HELP_LIB) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(PD_LIBS)

.PHONY: check-kvx-conformance
check-kvx-conformance: $(KVX_CONFORMANCE)
	@for suite in $^; do $$suite || exit 1; done

unit: $(KVX_CONFORMANCE) $(BUILD)/t/kvx/histories
check-unit: check-kvx-conformance

-include $(wildcard $(BUILD)/t/kvx/*.d)
