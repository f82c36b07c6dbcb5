/* Weights as a device wants them, kept in a file that every worker of the host maps.
 *
 * A CPU repacks a model's matrices when it loads them: seconds for a large model, and a second copy of it
 * in every process. With a cache the first worker does so into a file, under the key of what is in it, and
 * those that come after, or run beside it, map the same pages.
 *
 *     DIR/<key>.pdw      [header, a page][weight 0][weight 1] ...       where each lies follows from their sizes
 *     DIR/lock           held while a file is made: of several workers that start together one does the work
 *
 * A file appears whole, by rename, and is never written again. It is believed only if it and its folder
 * belong to this user (or root) and nobody else may write there, its header says the same key and sizes,
 * and its bytes have the sum that the header tells. Whatever is wrong with it, it is made anew.
 *
 * A folder keeps WEIGHT_FILES files; the one that was used longest ago goes first. Processes that still map
 * it keep it until they end. On tmpfs (/dev/shm) the pages are huge where the system can. */
#ifndef PD_WEIGHT_CACHE_H
#define PD_WEIGHT_CACHE_H

#include "kernels/kernels.h"
#include "worker/model/config.h"

struct pd_weight_cache;

/* Finds the file of `key` in `directory`, or begins one, with places for `count` weights of such sizes
 * (0: it has none). Waits at most two minutes for another that is making it. `threads` check the bytes. */
int pd_weight_cache_open(const char *directory, const uint8_t key[PD_DIGEST], const size_t *bytes,
                         size_t count, int threads, struct pd_weight_cache **cache,
                         struct pd_error *error);

/* Where weight `index` lies, or is to be put if the place is not filled. */
struct pd_weight_place pd_weight_cache_place(const struct pd_weight_cache *cache, size_t index);

/* Once all places are filled: lets others have the file. Does nothing for one that was found. */
int pd_weight_cache_keep(struct pd_weight_cache *cache, struct pd_error *error);

/* After the last weight in it. NULL is allowed. */
void pd_weight_cache_close(struct pd_weight_cache *cache);

#endif
