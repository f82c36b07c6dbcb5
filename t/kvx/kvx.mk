# The hand-off's proof: random histories in a simulated world.

KVX_WORLD := $(filter-out t/kvx/conformance.c,$(wildcard t/kvx/*.c))

# Its own table of transports and its own loop come before the rooms.
$(BUILD)/t/kvx/histories: $(KVX_WORLD:%.c=$(BUILD)/%.o) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ $(PD_LIBS)

HISTORIES ?= 100000

# SEED=n tells that one history step by step.
.PHONY: check-kvx-histories
check-kvx-histories: $(BUILD)/t/kvx/histories
	$< $(HISTORIES)

-include $(wildcard $(BUILD)/t/kvx/*.d)
