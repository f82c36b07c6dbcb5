# The kernels alone, without a model file: build/t/bench/kernels [threads [isa [auto|bf16|int8|int12|f32]]].
$(BUILD)/t/bench/kernels: $(BUILD)/t/bench/kernels.o $(BUILD)/t/bench/peaks.o $(BUILD)/libpdkernels.a
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lpthread -lm

bench-engine: $(BUILD)/t/bench/kernels

.PHONY: bench-kernels
bench-kernels: $(BUILD)/t/bench/kernels
	@$<

# What the kernels' rounding costs in accuracy: build/t/bench/divergence MODEL.
$(BUILD)/t/bench/divergence: $(BUILD)/t/bench/divergence.o $(HELP_LIB) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

bench-engine: $(BUILD)/t/bench/divergence
