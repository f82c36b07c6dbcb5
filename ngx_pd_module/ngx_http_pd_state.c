
/*
 * The state file as such.  It belongs to the user of the worker processes and
 * is written in place by one of them, at most once a second, under a lock.
 * What is in it: see ngx_http_pd_state_lines.h.
 *
 * During a binary upgrade the processes of two masters live: the file belongs
 * to the one that was loaded last, and the others leave it alone, until their
 * own configuration is loaded anew.
 */


#include "ngx_http_pd_state.h"
#include "ngx_http_pd_state_lines.h"

#include <sys/file.h>


#define NGX_HTTP_PD_STATE_TRIES       20       /* ms for the lock */


static ssize_t ngx_http_pd_state_read(ngx_http_pd_zone_t *zone,
    ngx_cycle_t *cycle, u_char *buf, size_t size);
static void ngx_http_pd_state_claim(ngx_http_pd_zone_t *zone, u_char *p,
    u_char *last);
static ngx_int_t ngx_http_pd_state_lock(ngx_fd_t fd, ngx_uint_t how);
static ngx_int_t ngx_http_pd_state_put(ngx_http_pd_zone_t *zone, ngx_fd_t fd,
    u_char *buf, size_t len);


void
ngx_http_pd_state_load(ngx_http_pd_main_conf_t *pmcf, ngx_cycle_t *cycle)
{
    u_char              *buf;
    ssize_t              n;
    ngx_http_pd_zone_t  *zone;

    zone = pmcf->zone->data;

    buf = ngx_alloc(NGX_HTTP_PD_STATE_MAX, cycle->log);
    if (buf == NULL) {
        return;
    }

    n = ngx_http_pd_state_read(zone, cycle, buf, NGX_HTTP_PD_STATE_MAX);

    if (n > 0 && !ngx_http_pd_state_known(buf, buf + n)) {
        ngx_log_error(NGX_LOG_ERR, cycle->log, 0,
                      "pd: \"%V\" is no state file and is left alone",
                      &zone->state);
        zone->state.len = 0;

    } else if (n > 0 && zone->fresh
               && ngx_http_pd_state_apply(pmcf, buf, buf + n) != NGX_OK)
    {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "pd: state file \"%V\" is damaged, what it says is "
                      "not believed", &zone->state);
    }

    if (n >= 0 && zone->state.len) {
        ngx_http_pd_state_claim(zone, buf, buf + n);
    }

    ngx_free(buf);
}


/* makes the file if need be, for the user of the worker processes */

static ssize_t
ngx_http_pd_state_read(ngx_http_pd_zone_t *zone, ngx_cycle_t *cycle,
    u_char *buf, size_t size)
{
    ssize_t           n;
    ngx_fd_t          fd;
    ngx_core_conf_t  *ccf;

    fd = ngx_open_file(zone->state.data, NGX_FILE_RDWR,
                       NGX_FILE_CREATE_OR_OPEN, NGX_FILE_OWNER_ACCESS);

    if (fd == NGX_INVALID_FILE) {
        ngx_log_error(NGX_LOG_ERR, cycle->log, ngx_errno,
                      "pd: " ngx_open_file_n " \"%V\" failed", &zone->state);
        return NGX_ERROR;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    if (geteuid() == 0 && ccf->user != (uid_t) NGX_CONF_UNSET
        && fchown(fd, ccf->user, -1) == -1)
    {
        ngx_log_error(NGX_LOG_ERR, cycle->log, ngx_errno,
                      "pd: fchown(\"%V\") failed", &zone->state);
    }

    /* whoever may hold it for so long: it is read */

    (void) ngx_http_pd_state_lock(fd, LOCK_SH);

    n = read(fd, buf, size);

    if (n == -1) {
        ngx_log_error(NGX_LOG_ERR, cycle->log, ngx_errno,
                      "pd: " ngx_read_fd_n " \"%V\" failed", &zone->state);
    }

    (void) ngx_close_file(fd);

    return n;
}


/* later than whoever has written it, whatever the clock says */

static void
ngx_http_pd_state_claim(ngx_http_pd_zone_t *zone, u_char *p, u_char *last)
{
    struct timeval  tv;

    ngx_gettimeofday(&tv);

    ngx_http_pd_zone_lock(zone);

    zone->sh->claim = (uint64_t) tv.tv_sec * 1000000 + tv.tv_usec;
    zone->sh->claim = ngx_max(zone->sh->claim,
                              ngx_http_pd_state_master(p, last) + 1);
    zone->sh->leases++;

    ngx_http_pd_zone_unlock(zone);
}


void
ngx_http_pd_state_save(ngx_http_pd_zone_t *zone, ngx_log_t *log)
{
    size_t     len;
    u_char    *buf;
    ngx_fd_t   fd;

    if (zone->state.len == 0
        || (zone->sh->saved == zone->sh->leases
            && zone->sh->settled == zone->sh->charges))
    {
        return;
    }

    buf = ngx_alloc(NGX_HTTP_PD_STATE_MAX, log);
    if (buf == NULL) {
        return;
    }

    ngx_http_pd_zone_lock(zone);

    zone->sh->saved = zone->sh->leases;
    zone->sh->settled = zone->sh->charges;
    len = ngx_http_pd_state_write(zone, buf) - buf;

    ngx_http_pd_zone_unlock(zone);

    fd = ngx_open_file(zone->state.data, NGX_FILE_RDWR, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_log_error(NGX_LOG_ERR, log, ngx_errno,
                      "pd: " ngx_open_file_n " \"%V\" failed", &zone->state);

    } else {

        if (ngx_http_pd_state_put(zone, fd, buf, len) != NGX_OK) {
            ngx_log_error(NGX_LOG_ERR, log, ngx_errno,
                          "pd: cannot write \"%V\"", &zone->state);
        }

        (void) ngx_close_file(fd);
    }

    ngx_free(buf);
}


static ngx_int_t
ngx_http_pd_state_put(ngx_http_pd_zone_t *zone, ngx_fd_t fd, u_char *buf,
    size_t len)
{
    u_char   head[NGX_HTTP_PD_STATE_BEGINNING];
    ssize_t  n;

    if (ngx_http_pd_state_lock(fd, LOCK_EX) != NGX_OK) {
        return NGX_ERROR;
    }

    n = pread(fd, head, sizeof(head), 0);

    if (n == -1) {
        return NGX_ERROR;
    }

    /* a later master has it: only what we know is out of date */

    if (ngx_http_pd_state_master(head, head + n) > zone->sh->claim) {
        return NGX_OK;
    }

    if (write(fd, buf, len) != (ssize_t) len || ftruncate(fd, len) == -1) {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* those who hold it write, or read, a few hundred KB */

static ngx_int_t
ngx_http_pd_state_lock(ngx_fd_t fd, ngx_uint_t how)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_PD_STATE_TRIES; i++) {

        if (flock(fd, how|LOCK_NB) == 0) {
            return NGX_OK;
        }

        ngx_msleep(1);
    }

    return NGX_BUSY;
}
