# Real processes under a running load, and what can happen to them.

.PHONY: check-chaos
check-chaos: all venv model
	PD_BUILD=$(BUILD) t/chaos/run --seed $(or $(SEED),1) --seconds $(or $(CHAOS_SECONDS),40)
