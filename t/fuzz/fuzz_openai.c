/* The module's reader of requests: whatever the bytes and pieces, a whole submit or a whole error.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "openai_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_error(const ngx_http_pd_error_t *error)
{
    require(error->status == 400);
    require(error->message.len > 0 && error->message.len <= NGX_HTTP_PD_ERROR_MESSAGE);
    require(error->code.len > 0);
}

static void check_prompts(struct openai_request *read)
{
    for (ngx_uint_t n = 0; n < read->request.prompts.nelts; n++) {
        Pd__V1__Submit *submit = openai_submit(read, n);

        require(submit != NULL);
        require((submit->chat != NULL) + (submit->text.len != 0) + (submit->tokens != NULL) == 1);
        require(submit->sampling != NULL && submit->model[0]);
        require(!submit->chat || submit->chat->n_messages > 0);
        require(!submit->tokens || submit->tokens->n_ids > 0);
        pd__v1__submit__free_unpacked(submit, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct openai_request whole, pieces;
    ngx_uint_t surface;
    size_t piece;

    if (size < 1)
        return 0;
    surface = data[0] & 1 ? CHAT : COMPLETIONS;
    piece = 1 + (data[0] >> 1) % 40;
    data++;
    size--;

    openai_read(&whole, surface, (const char *)data, size, 0);
    openai_read(&pieces, surface, (const char *)data, size, piece);
    require(whole.result == pieces.result);
    if (whole.result == NGX_OK) {
        require(whole.request.prompts.nelts > 0);
        check_prompts(&whole);
        check_prompts(&pieces);
    } else {
        const ngx_http_pd_error_t *a = &whole.error, *b = &pieces.error;

        check_error(a);
        check_error(b);
        require(a->message.len == b->message.len &&
                !memcmp(a->message.data, b->message.data, a->message.len));
    }
    openai_free(&whole);
    openai_free(&pieces);
    return 0;
}
