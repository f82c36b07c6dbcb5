# The link driven by a real gRPC client: doubles of the rooms behind it, and grpcio in front.

# Whatever a double defines, the rooms' library is not asked for.
FAKE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out t/link/fake_worker.c,$(wildcard t/link/*.c)))

$(BUILD)/t/link/fake_worker: $(BUILD)/t/link/fake_worker.o $(FAKE_OBJ) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -Wl,--wrap=malloc -o $@ $^ $(PD_LIBS)

.PHONY: check-link
check-link: $(BUILD)/t/link/fake_worker pdctl venv
	TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS" PD_BUILD=$(BUILD) \
	    build/venv/bin/python -m unittest discover -s t/link -p 'test_link_*.py'

# The whole worker on the real model: its life as a process, and the same answers from one and from a pair.
.PHONY: check-worker check-pair check-pdctl
check-worker check-pair check-pdctl: worker pdctl venv model
check-worker: LINK_SCRIPT := t/link/test_worker.py
check-pair: LINK_SCRIPT := t/link/pair.py
check-pdctl: LINK_SCRIPT := t/link/test_pdctl.py
check-worker check-pair check-pdctl:
	TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS" PD_BUILD=$(BUILD) \
	    build/venv/bin/python $(LINK_SCRIPT) $(LINK_MODEL)

# Workers of today, asked by a frontend that knows no messages but the first ones.
.PHONY: check-pair-frozen
check-pair: check-pair-frozen
check-pair-frozen: worker venv model
	PD_PROTO=t/frozen/pd-1.proto PD_BUILD=$(BUILD) build/venv/bin/python t/link/pair.py $(LINK_MODEL)

LINK_MODEL := build/model/SmolLM2-135M-Instruct.Q4_1.gguf

-include $(wildcard $(BUILD)/t/link/*.d)

build/fuzz/t/fuzz/fuzz_submit: build/fuzz/t/link/fake_text.o
