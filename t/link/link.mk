# The link driven by a real gRPC client: doubles of the rooms behind it, and grpcio in front.

# Whatever a double defines, the rooms' library is not asked for.
FAKE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out t/link/fake_worker.c,$(wildcard t/link/*.c)))

$(BUILD)/t/link/fake_worker: $(BUILD)/t/link/fake_worker.o $(FAKE_OBJ) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ $(PD_LIBS)

.PHONY: check-link
check-link: $(BUILD)/t/link/fake_worker venv
	TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS" PD_BUILD=$(BUILD) \
	    build/venv/bin/python t/link/test_link.py

# The same answers from one worker and from a pair, on the real model.
.PHONY: check-pair
check-pair: worker venv model
	TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS" PD_BUILD=$(BUILD) \
	    build/venv/bin/python t/link/pair.py build/model/SmolLM2-135M-Instruct.Q4_1.gguf

-include $(wildcard $(BUILD)/t/link/*.d)
