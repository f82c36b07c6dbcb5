/* The bytes of a data connection over a socket: as they are, or under TLS (--kv-tls).
 *
 * Under TLS 1.3 a source shows a certificate whose SHA-256 its hello has named on the control stream: the
 * reader takes that one and no other, so no name has to match an address, and whoever can speak for the
 * source on its control stream is whom the bytes come from. With authorities (--tls-ca) both ends also
 * demand a certificate that those have signed. Sessions are not resumed.
 *
 *     watch for wire->receive_wants | wire->send_wants; what is blocked says what it waits for: under TLS
 *     a send may wait for bytes to come, and the other way round
 *
 * One thread; sockets do not block. */
#ifndef PD_KVX_WIRE_H
#define PD_KVX_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "worker/base/error.h"
#include "worker/model/model.h"

/* ---- who this process is --------------------------------------------------------------------- */

struct pd_tls;

/* Reads PEM files: a chain and its key; `authorities` NULL or empty: a reader's certificate is not asked
 * for. PD_INVALID names what is wrong with which file. */
int pd_tls_create(const char *chain, const char *key, const char *authorities, struct pd_tls **tls,
                  struct pd_error *error);
void pd_tls_free(struct pd_tls *tls); /* after all wires; NULL is fine */

/* SHA-256 of the certificate that this process shows. */
const uint8_t *pd_tls_digest(const struct pd_tls *tls);

/* ---- one connection -------------------------------------------------------------------------- */

enum { PD_WIRE_WHY = 160 };

struct pd_wire {
    int fd;                             /* stays the owner's */
    struct ssl_st *ssl;                 /* NULL: plain */
    const struct pd_tls *tls;           /* that ssl was made of */
    uint32_t receive_wants, send_wants; /* epoll events; 0: not blocked */
    uint8_t expected[PD_DIGEST];        /* of a reader: the source's certificate */
    char why[PD_WIRE_WHY];              /* after a failure; empty: the socket's */
};

/* A connection that has been accepted; `tls` NULL: plain. PD_OK or PD_NO_MEMORY. Handshakes are part of the
 * first sends and receives. */
int pd_wire_accept(struct pd_wire *wire, int fd, struct pd_tls *tls);
/* One that is being opened, to whoever shows the certificate with that digest (ignored if plain). */
int pd_wire_connect(struct pd_wire *wire, int fd, struct pd_tls *tls,
                    const uint8_t digest[PD_DIGEST]);
void pd_wire_close(struct pd_wire *wire); /* says no goodbye; harmless if it was not opened */

/* As sendmsg and recvmsg: bytes that were moved; 0 from receive: the end; -1 with errno EAGAIN: blocked;
 * -1 with another errno: broken, and `why` may say more. */
ssize_t pd_wire_send(struct pd_wire *wire, const struct iovec *pieces, size_t count);
ssize_t pd_wire_receive(struct pd_wire *wire, const struct iovec *pieces, size_t count);

/* Whether bytes have come that no event will tell of, since they are not in the socket any more. */
bool pd_wire_pending(const struct pd_wire *wire);

#endif
