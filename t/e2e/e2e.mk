# End to end: real nginx, real workers, the real model, real clients.

PYTHON  := build/venv/bin/python
CLUSTER := PD_BUILD=$(BUILD) t/cluster

.PHONY: check-e2e check-e2e-short check-e2e-worker
check-e2e: all venv model
	PD_BUILD=$(BUILD) t/e2e/same_text
	PD_BUILD=$(BUILD) t/e2e/ranks
	PD_BUILD=$(BUILD) t/e2e/same_chat
	$(CLUSTER) --kv shm -- $(PYTHON) t/e2e/leaving.py
	$(CLUSTER) --kv tcp -- $(PYTHON) t/e2e/leaving.py
	$(CLUSTER) --mixed 1 -- $(PYTHON) t/e2e/leaving.py
	sed 's|timeout=30s|timeout=8s|' conf/cluster.conf.in > $(BUILD)/killing.conf.in
	$(CLUSTER) --conf $(BUILD)/killing.conf.in --prefill 2 --decode 2 --nginx-workers 2 -- $(PYTHON) t/e2e/killing.py
	$(CLUSTER) --register -- $(PYTHON) t/e2e/openai_client.py
	$(CLUSTER) -- sh t/e2e/curl.sh

# Three frontends before the same workers.
.PHONY: check-e2e-frontends
check-e2e: check-e2e-frontends
check-e2e-frontends: module venv
	PD_BUILD=$(BUILD) $(PYTHON) t/e2e/frontends.py

# Answers that go on elsewhere, one kind of fault after the other.
.PHONY: check-e2e-failover
check-e2e-failover: all venv model
	$(CLUSTER) --prefill 2 --decode 2 --nginx-workers 2 -- $(PYTHON) t/e2e/failing_over.py
	$(CLUSTER) --mixed 2 --nginx-workers 2 -- $(PYTHON) t/e2e/failing_over.py

# The same frontend, spoken to in HTTP/2.
.PHONY: check-e2e-http2
check-e2e: check-e2e-http2
check-e2e-http2: all venv model
	sed 's|listen 127.0.0.1:@PORT@;|& listen unix:@DIR@/http2.socket http2;|' conf/cluster.conf.in > $(BUILD)/http2.conf.in
	$(CLUSTER) --conf $(BUILD)/http2.conf.in -- sh t/e2e/http2.sh

# With sanitizers, where every token takes longer.
SLOW := PD_SLOWNESS=4 PD_PATIENCE=120 $(CLUSTER)

check-e2e-short: all check-e2e-worker
	sed 's|timeout=30s|timeout=8s|' conf/cluster.conf.in > $(BUILD)/killing.conf.in
	$(SLOW) --conf $(BUILD)/killing.conf.in --prefill 2 --decode 2 --nginx-workers 2 -- $(PYTHON) t/e2e/killing.py

check-e2e-worker: worker venv model
	$(SLOW) --kv shm -- sh t/e2e/curl.sh
	$(SLOW) --kv tcp --register -- $(PYTHON) t/e2e/leaving.py

# 2,000 requests at once: half a minute or more, so it is one of the long tests.
.PHONY: check-e2e-burst
check-e2e-burst: all venv model
	$(CLUSTER) --nginx-workers 2 -- sh t/e2e/burst.sh
