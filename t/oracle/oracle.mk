# Oracles: our answers beside those of others.

.PHONY: check-oracle
check-oracle: check-template

# Small programs that let a script ask one room.
$(BUILD)/t/oracle/%: $(BUILD)/t/oracle/%.o $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ $(PD_LIBS)

MODEL := build/model/SmolLM2-135M-Instruct.Q4_1.gguf
QWEN3 := $(wildcard ../shared/data/qwen3-tokenizer)

.PHONY: check-template
check-template: $(BUILD)/t/oracle/render venv model
	build/venv/bin/python t/oracle/chat_template.py $< $(MODEL) $(QWEN3:%=%/tokenizer_config.json)
