#include "worker/engine/engine.h"

#include <stdlib.h>

struct pd_request *pd_request_create(void)
{
    return calloc(1, sizeof(struct pd_request));
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
