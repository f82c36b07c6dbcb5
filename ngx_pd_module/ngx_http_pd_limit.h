
/*
 * Limits of a tenant, for one request: which they are, what a client hears of
 * them, and when an answer has come to its end.  What counts against them is in
 * ngx_http_pd_account.h.
 */


#ifndef _NGX_HTTP_PD_LIMIT_H_INCLUDED_
#define _NGX_HTTP_PD_LIMIT_H_INCLUDED_


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_account.h"


/* pd_limit NAME=NUMBER|off ... */
char *ngx_http_pd_limit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/*
 * Finds the limits of a request that is understood: NGX_OK, NGX_ABORT: it
 * wants more than it may, see ctx->error, or NGX_ERROR: no memory.
 */
ngx_int_t ngx_http_pd_limit_claim(ngx_http_pd_ctx_t *ctx);

/* the choices are known */
void ngx_http_pd_limit_choices(ngx_http_pd_ctx_t *ctx);

/* $pd_limit_status, or $pd_limit_reason; none where nothing limits it */
void ngx_http_pd_limit_names(ngx_http_pd_claim_t *claim, ngx_uint_t reason,
    ngx_str_t *value);

/* says what is left, in headers, and in the log what dry_run has let pass */
ngx_int_t ngx_http_pd_limit_tell(ngx_http_pd_ctx_t *ctx);

/* a prompt is counted: NGX_OK, or NGX_ABORT and ctx->error: it is too long */
ngx_int_t ngx_http_pd_limit_prompt(ngx_http_pd_choice_t *choice);

/* 1 if the tenant has no more tokens for an answer that goes on */
ngx_uint_t ngx_http_pd_limit_spent(ngx_http_pd_choice_t *choice);

/* why the job was refused */
void ngx_http_pd_limit_refusal(ngx_http_pd_job_t *job,
    ngx_http_pd_result_t *result);


#endif /* _NGX_HTTP_PD_LIMIT_H_INCLUDED_ */
