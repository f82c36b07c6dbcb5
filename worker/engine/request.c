#include "worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

struct pd_request *pd_request_create(void)
{
    return calloc(1, sizeof(struct pd_request));
}

const char *pd_request_name(const struct pd_request *request, char name[PD_REQUEST_NAME])
{
    snprintf(name, PD_REQUEST_NAME, "%s%s%s", request->request_id[0] ? request->request_id : "-",
             request->traceparent[0] ? " traceparent=" : "", request->traceparent);
    return name;
}

void pd_request_free(struct pd_request *request)
{
    if (!request)
        return;
    pd_tokens_free(&request->prompt);
    pd_tokens_free(&request->generated);
    pd_text_stream_destroy(request->stream);
    free(request->sampling.bias);
    free(request);
}
