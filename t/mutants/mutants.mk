# Rules broken on purpose: FILE.mutants of a room, see run. `make mutants MUTANTS=kvx` runs one room's.

MUTANTS ?= $(patsubst t/mutants/%.mutants,%,$(wildcard t/mutants/*.mutants))

.PHONY: mutants
mutants: $(MUTANTS:%=mutants-%)

mutants-%: t/mutants/%.mutants unit
	t/mutants/run $(BUILD) $<

# A second's look: who changes a rule's lines changes its mutants.
.PHONY: check-mutants
check-mutants:
	@t/mutants/run --apply $(wildcard t/mutants/*.mutants)
