# The kernels alone, without a model file: build/t/bench/kernels [threads [isa [int12|f32]]].
$(BUILD)/t/bench/kernels: $(BUILD)/t/bench/kernels.o $(BUILD)/libpdkernels.a
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lpthread -lm

.PHONY: bench-kernels
bench-kernels: $(BUILD)/t/bench/kernels
	@$<
