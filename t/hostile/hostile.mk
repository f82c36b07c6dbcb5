# Hostile peers: real workers among frontends, readers and sources that lie, flood, stall and die. Two files
# at a time: much of a test is waiting for silence to be noticed.

HOSTILE := $(sort $(wildcard t/hostile/test_hostile_*.py))

.PHONY: check-hostile-worker
check-hostile-worker: worker venv model
	printf '%s\n' $(HOSTILE) | \
	    TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS" PD_BUILD=$(BUILD) \
	    xargs -P 2 -I{} build/venv/bin/python {} $(LINK_MODEL)
