# Real processes under a running load, and what can happen to them.

CHAOS := PD_BUILD=$(BUILD) t/chaos/run --seed $(or $(SEED),1)

# Each of these once: those that are not here have tests of their own in t/e2e, which kill, stop and drain.
QUICK := kill,roll,sever,upgrade,kill_nginx,reload,fill_disk,starve_nginx

.PHONY: check-chaos
check-chaos: all venv model
	$(CHAOS) --each --faults $(QUICK)

# All faults of all victims, again and again; over shm in one network.
.PHONY: check-chaos-long
check-chaos-long: all venv model
	$(CHAOS) --kv tcp --save build/test/chaos-tcp --seconds $(or $(CHAOS_SECONDS),1800)
	$(CHAOS) --kv shm --save build/test/chaos-shm --seconds $(or $(CHAOS_SECONDS),1800)
