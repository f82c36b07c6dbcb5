# Hostile peers: real workers among frontends, readers and sources that lie, flood, stall and die.

.PHONY: check-hostile-worker
check-hostile-worker: worker venv model
	TSAN_OPTIONS="suppressions=$(CURDIR)/t/tsan.suppressions $$TSAN_OPTIONS" PD_BUILD=$(BUILD) \
	    build/venv/bin/python t/hostile/worker.py $(LINK_MODEL)
