/* Step and Placed, read in place, beside the module's unpacker, which fuzz_unpack compares with
 * protobuf-c: what both take says the same, and what the unpacker takes is taken in usual form. */
#include <stdlib.h>
#include <string.h>

#include "step_view.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth)
{
    if (!truth)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ngx_http_pd_step_t step;
    static ngx_http_pd_arena_t arena;
    u_char *bytes = malloc(size + 1);
    Pd__V1__FromWorker *message;
    int taken;

    memcpy(bytes, data, size);
    message = ngx_http_pd_unpack(&arena, &pd__v1__from_worker__descriptor, bytes, size);
    taken = ngx_http_pd_step_read(&step, bytes, size) == NGX_OK;
    if (taken && message) {
        require(step_view_is(&step, message));
        require(!step.rare || ngx_http_pd_step_full(&step, message) == NGX_OK);
    }
    if (message && (message->kind_case == PD__V1__FROM_WORKER__KIND_STEP ||
                    message->kind_case == PD__V1__FROM_WORKER__KIND_PLACED)) {
        require(ngx_http_pd_step_normal(&step, message) == NGX_OK);
        require(step_view_is(&step, message));
    } else {
        require(!taken || !message);
    }
    free(bytes);
    return 0;
}
