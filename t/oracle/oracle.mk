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

# --- tokenizer ------------------------------------------------------------------------------------

check-oracle: check-tokenizer

.PHONY: check-tokenizer
check-tokenizer: $(BUILD)/t/oracle/tokenize venv model
	build/venv/bin/python t/oracle/tokenizer.py $< --gguf $(MODEL) $(QWEN3:%=--json %) $(SERVED:%=--served %)

# --- logits ---------------------------------------------------------------------------------------

check-oracle: check-logits

TINY_MODELS := build/tiny-models

$(TINY_MODELS)/made: t/oracle/tiny_models.py | venv
	build/venv/bin/python $< $(TINY_MODELS)
	@touch $@

$(BUILD)/t/oracle/test_%: $(BUILD)/t/oracle/test_%.o $(HELP_LIB) $(ROOM_LIBS)
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lcmocka $(PD_LIBS)

.PHONY: check-logits
check-logits: $(BUILD)/t/oracle/test_logits $(TINY_MODELS)/made model
	PD_MODEL=$(MODEL) PD_TINY_MODELS=$(TINY_MODELS) $<

.PHONY: check-sampling
check-oracle: check-sampling
check-sampling: $(BUILD)/t/oracle/test_sampling
	$<

# Makes the committed reference values again. Downloads torch: gigabytes, and minutes of computing.
.PHONY: references
references: model
	[ -x build/venv-references/bin/pip ] || python3 -m venv build/venv-references
	build/venv-references/bin/pip install --quiet --disable-pip-version-check -r t/oracle/requirements.txt
	build/venv-references/bin/python t/oracle/logits.py $(MODEL) t/oracle/logits.json
	build/venv-references/bin/python t/oracle/sampling.py t/oracle/sampling.json
