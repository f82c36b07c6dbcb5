# The module's parsers know nginx's types, and run here without nginx: its headers, and a shim.

NGINX_TREE      := $(or $(NGINX_SRC),/usr/share/nginx/src)
NGINX_CONFIG    := build/nginx/objs/ngx_auto_config.h
SHIM_FLAGS       = -std=gnu11 $(OPT) -g -Wall -Wextra -Wno-unused-parameter -Werror $(SAN_FLAGS) $(CFLAGS) \
                   -Ingx_pd_module -It/unit/module -I$(dir $(NGINX_CONFIG)) -I$(BUILD) \
                   $(addprefix -I$(NGINX_TREE)/src/,core event event/modules os/unix http http/v2 http/modules)
MODULE_UNIT_SRC := $(wildcard t/unit/module/test_*.c)
MODULE_UNIT_BIN := $(MODULE_UNIT_SRC:%.c=$(BUILD)/%)
PARSER_SRC      := $(wildcard $(addprefix ngx_pd_module/ngx_http_pd_,json*.c rope.c error.c stock.c openai*.c unpack.c wire.c step.c step_load.c account.c affinity.c class.c key.c limits.c prefix.c queue.c ratio.c tally.c))
SHIM_SRC        := $(PARSER_SRC) $(filter-out $(MODULE_UNIT_SRC),$(wildcard t/unit/module/*.c))
SHIM_OBJ        := $(SHIM_SRC:%.c=$(BUILD)/shim/%.o) $(BUILD)/proto/pd.pb-c.o

unit: $(MODULE_UNIT_BIN)
check-unit: check-unit-module

.PHONY: check-unit-module
check-unit-module: $(MODULE_UNIT_BIN)
	@for test in $(MODULE_UNIT_BIN); do echo "# $$test"; $$test || exit 1; done

# nginx's configure writes it; the plain tree's serves the sanitized one too.
$(NGINX_CONFIG): ngx_pd_module/config | build/proto/pd.pb-c.c
	@BUILD=build SANITIZER= NGINX_SRC='$(NGINX_SRC)' CC='$(CC)' ngx_pd_module/build.sh
	@touch $@

$(BUILD)/shim/%.o: %.c $(NGINX_CONFIG) | $(BUILD)/proto/pd.pb-c.h
	@mkdir -p $(@D)
	$(CC) $(SHIM_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/t/unit/module/test_%: $(BUILD)/shim/t/unit/module/test_%.o $(SHIM_OBJ)
	@mkdir -p $(@D)
	$(CC) $(PD_LDFLAGS) -o $@ $^ -lcmocka -ljansson -lprotobuf-c -lcrypto

-include $(SHIM_OBJ:.o=.d) $(MODULE_UNIT_SRC:%.c=$(BUILD)/shim/%.d)
