/* What a test may ask of the shim that a program does not. */
#ifndef PD_SIMT_CONTROL_H
#define PD_SIMT_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

/* The next `calls` calls of the runtime (launches included) work; every later one fails with
 * `error`, as after a sticky error of a GPU. calls < 0: none fails. */
void pd_simt_fail_after(long calls, int error);

/* Replays of recordings since the program started. */
long pd_simt_replays(void);

/* Products that were asked of the library that stands in for cuBLASLt. */
long pd_simt_gemms(void);

#ifdef __cplusplus
}
#endif

#endif
