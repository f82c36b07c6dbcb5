# The model of the tickets' life, checked with spin.

.PHONY: check-kv-model check-kv-model-long
check-kv-model:
	@t/kv-model/check short

check-kv-model-long:
	@t/kv-model/check long
