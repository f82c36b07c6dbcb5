# make bench-NAME runs t/bench/NAME: progress on stderr, one JSON object as the last line of stdout.

bench-%: all model venv
	@t/bench/$*

# The frontend alone: no model, no worker; what stands behind it only keeps time.
.PHONY: bench-frontend
bench-frontend: module $(addprefix $(BUILD)/t/bench/,mock_worker mock_peer turns.so)
	@PD_BUILD=$(BUILD) t/bench/frontend

.PHONY: bench-routers
bench-routers: module $(BUILD)/t/bench/mock_worker $(BUILD)/t/bench/mock_peer
	@PD_BUILD=$(BUILD) t/bench/routers

.PHONY: bench-streams
bench-streams: module $(BUILD)/t/bench/mock_worker
	@PD_BUILD=$(BUILD) t/bench/streams

.PHONY: bench-cancel
bench-cancel: module $(BUILD)/t/bench/mock_worker
	@PD_BUILD=$(BUILD) t/bench/cancel

$(BUILD)/t/bench/mock_worker: $(BUILD)/t/bench/mock_worker.o $(BUILD)/t/link/fake_text.o $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ $(PD_LIBS)

$(BUILD)/t/bench/mock_peer: $(BUILD)/t/bench/mock_peer.o
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lnghttp2

$(BUILD)/t/bench/turns.so: t/bench/turns.c
	@mkdir -p $(@D)
	$(CC) $(OPT) -Wall -Wextra -Werror -D_GNU_SOURCE -shared -fPIC -o $@ $< -ldl

# The hand-off alone, and once with everything around it.
.PHONY: bench-kv
bench-kv: $(BUILD)/t/bench/kv_pair all model
	@PD_BUILD=$(BUILD) t/bench/kv

$(BUILD)/t/bench/kv_pair: $(BUILD)/t/bench/kv_pair.o $(HELP_LIB) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

-include $(wildcard $(BUILD)/t/bench/*.d)
